"""The door of the engine: every request is checked here, whatever way it came."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.contract import NONE, Wish
from engine.bounds import MAX_SALT, between, check_sampling, invalid
from engine.draft_models.sources import NAMES
from engine.draw import Draw
from engine.errors import RequestError
from engine.output import Output
from engine.request import Request
from engine.text import Text
from engine.wire import Grammar, Sampling, Submit

if TYPE_CHECKING:  # its library is loaded with the first grammar
    from engine.grammar import Constraint

MAX_PROMPT_ALTERNATIVES = 1_000_000
"""Log probabilities of one prompt: they travel in one frame."""

CONTINUED = 8
"""Tokens of a plain prompt that its answer's text goes on from."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Lengths in tokens. pool_tokens: what all pages together hold."""

    context_length: int
    pool_tokens: int
    max_draft_length: int
    vocabulary: int


class Intake:
    """Turns a Submit into a Request, or raises RequestError. Does not touch the engine loop's
    state, so it may run on another thread."""

    def __init__(
        self,
        text: Text,
        limits: Limits,
        stop_ids: frozenset[int],
        is_enabled: Callable[[str], bool | None],
        constrain: Callable[[Sampling], Constraint | None],
        knows: Callable[[Grammar], bool] = lambda grammar: False,
    ) -> None:
        """is_enabled(name) is None for a drafter that does not exist. constrain: compiles the
        grammar of a request, if it has one; raises RequestError. knows: whether it would answer at
        once for this grammar."""
        self._text = text
        self._limits = limits
        self._stop_ids = stop_ids
        self._is_enabled = is_enabled
        self._constrain = constrain
        self._knows = knows
        self._ids = itertools.count(1)

    def quick(self, sampling: Sampling) -> bool:
        """Whether `request` needs to compile no grammar for it."""
        return sampling.grammar is None or self._knows(sampling.grammar)

    def request(self, submit: Submit) -> Request:
        """The checked request. May take seconds when a grammar is compiled."""
        arrived = time.perf_counter()
        sampling = submit.sampling
        check_sampling(sampling, self._limits.vocabulary)
        between("priority", submit.priority, -(2**31), 2**31 - 1)
        between("cache_salt", len(submit.cache_salt), 0, MAX_SALT)
        self.check_wish(submit.speculation)
        prompt = self._prompt(submit)
        max_tokens = self._max_tokens(len(prompt), sampling.max_tokens)
        if sampling.min_tokens > max_tokens:
            raise invalid(
                "min_tokens",
                f"min_tokens must be at most max_tokens, here {max_tokens}, "
                f"not {sampling.min_tokens}.",
            )
        most = len(prompt) * (1 + (sampling.prompt_logprobs or 0))
        if sampling.prompt_logprobs is not None and most > MAX_PROMPT_ALTERNATIVES:
            raise invalid(
                "prompt_logprobs",
                f"the prompt's {len(prompt)} tokens make {most} log probabilities, at most "
                f"{MAX_PROMPT_ALTERNATIVES} fit; ask for fewer or shorten the prompt.",
            )
        # A grammar that is complete can only end: it knows when min_tokens and ignore_eos give way.
        constraint = self._constrain(sampling)
        end_ids = self._stop_ids
        if sampling.ignore_eos and constraint is None:
            end_ids = frozenset()
        stop_token_ids = frozenset(sampling.stop_token_ids)
        early_ids = frozenset() if constraint is not None else end_ids | stop_token_ids
        return Request(
            id=next(self._ids),
            name=submit.id,
            tokens=prompt,
            prompt_length=len(prompt),
            max_tokens=max_tokens,
            draw=self._draw(sampling, early_ids),
            wish=submit.speculation,
            tenant=submit.tenant,
            output=Output(
                self._text.stream(() if submit.messages is not None else prompt[-CONTINUED:]),
                stop=sampling.stop,
                end_ids=end_ids,
                stop_token_ids=stop_token_ids,
                max_tokens=max_tokens,
                min_tokens=sampling.min_tokens,
            ),
            arrived=arrived,
            priority=submit.priority,
            cache_salt=submit.cache_salt,
            constraint=constraint,
            grammar_field=sampling.grammar.field if sampling.grammar else None,
        )

    def _draw(self, sampling: Sampling, early_ids: frozenset[int]) -> Draw:
        """early_ids: what min_tokens masks."""
        allowed = sampling.allowed_token_ids
        return Draw(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=sampling.seed,
            min_p=sampling.min_p,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=tuple(sampling.logit_bias.items()),
            bad_words=self._bad_words(sampling.bad_words),
            allowed_token_ids=None if allowed is None else tuple(set(allowed)),
            min_tokens=sampling.min_tokens if early_ids else 0,
            end_ids=tuple(early_ids),
            logprobs=sampling.logprobs,
            prompt_logprobs=sampling.prompt_logprobs,
        )

    def _bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The token sequences of each word, at the start of a text and after a space."""
        sequences: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = word.lstrip() or word
            for spelling in (bare, f" {bare}"):
                ids = tuple(self._text.encode(spelling))
                if ids and all(token < self._limits.vocabulary for token in ids):
                    sequences[ids] = None
        return tuple(sequences)

    def check_wish(self, wish: Wish) -> None:
        if wish.drafter not in (None, NONE):
            enabled = self._is_enabled(wish.drafter)
            if enabled is None and wish.drafter in NAMES:
                raise RequestError(
                    "unknown_drafter",
                    f"drafter {wish.drafter!r} is not loaded. An operator loads it with "
                    f"`paceline drafter load {wish.drafter}` or POST "
                    f"/api/drafters/{wish.drafter}/load.",
                    "speculation.drafter",
                )
            if enabled is None:
                raise RequestError(
                    "unknown_drafter",
                    f"there is no drafter {wish.drafter[:64]!r}; GET /api/drafters lists them, and "
                    "which of them are loaded.",
                    "speculation.drafter",
                )
            if not enabled:
                raise RequestError(
                    "drafter_disabled",
                    f"drafter {wish.drafter!r} is disabled by the operator; "
                    "leave speculation.drafter out or name another.",
                    "speculation.drafter",
                )
        length, largest = wish.draft_length, self._limits.max_draft_length
        if length is not None and not 0 <= length <= largest:
            raise RequestError(
                "draft_length_out_of_range",
                f"draft_length must be between 0 and {largest}, not {length}.",
                "speculation.draft_length",
            )

    def _prompt(self, submit: Submit) -> list[int]:
        given = [submit.messages, submit.prompt, submit.prompt_ids]
        if sum(value is not None for value in given) != 1:
            raise RequestError(
                "invalid_request", "give exactly one of messages and prompt.", "prompt"
            )
        largest = min(self._limits.context_length, self._limits.pool_tokens)
        if submit.messages is not None:
            param, written = "messages", self._text.write(submit.messages)
            self._check_size(written, largest, param)
            ids = self._text.encode(written)
        elif submit.prompt is not None:
            param = "prompt"
            self._check_size(submit.prompt, largest, param)
            ids = self._text.encode_whole(submit.prompt)
        else:
            ids, param = list(submit.prompt_ids or ()), "prompt"
        if any(not 0 <= token < self._limits.vocabulary for token in ids):
            raise RequestError(
                "invalid_request",
                f"{param} holds token ids outside 0..{self._limits.vocabulary - 1}.",
                param,
            )
        if not ids:
            raise RequestError("invalid_request", f"{param} is empty; send some text.", param)
        if len(ids) >= largest:
            raise RequestError(
                "context_length_exceeded",
                f"the prompt has {len(ids)} tokens; the limit is {largest} tokens for prompt and "
                "answer together. Shorten the prompt.",
                param,
            )
        return ids

    def _check_size(self, text: str, largest: int, param: str) -> None:
        """Refuse a text of more bytes than so many tokens can stand for, before it costs the time
        to encode it."""
        if len(text) * 4 < largest or (each := self._text.most_bytes) is None:
            return
        size, most = len(text.encode()), largest * each
        if size > most:
            raise RequestError(
                "context_length_exceeded",
                f"the prompt has {size} bytes, more than {most}, which is what {largest} tokens "
                f"can stand for at most; the limit is {largest} tokens for prompt and answer "
                "together. Shorten the prompt.",
                param,
            )

    def _max_tokens(self, prompt: int, asked: int | None) -> int:
        room = min(self._limits.context_length, self._limits.pool_tokens) - prompt
        if asked is None:
            return room
        if asked > room:
            raise RequestError(
                "context_length_exceeded",
                f"the prompt has {prompt} tokens and max_tokens is {asked}, but only "
                f"{prompt + room} fit. Lower max_tokens to {room} or shorten the prompt.",
                "max_tokens",
            )
        return asked
