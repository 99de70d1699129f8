"""The door of the engine: every request is checked here, whatever way it came."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from controller.contract import NONE, Wish
from engine.draw import Draw
from engine.errors import RequestError
from engine.output import Output
from engine.request import Request
from engine.text import Text
from engine.wire import Sampling, Submit

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_IDS = 64


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
    ) -> None:
        self._text = text
        self._limits = limits
        self._stop_ids = stop_ids
        self._is_enabled = is_enabled
        self._ids = itertools.count(1)

    def request(self, submit: Submit) -> Request:
        """is_enabled(name) is None for a drafter that does not exist."""
        arrived = time.perf_counter()
        sampling = submit.sampling
        check_sampling(sampling, self._limits.vocabulary)
        self.check_wish(submit.speculation)
        prompt = self._prompt(submit)
        max_tokens = self._max_tokens(len(prompt), sampling.max_tokens)
        return Request(
            id=next(self._ids),
            name=submit.id,
            tokens=prompt,
            prompt_length=len(prompt),
            max_tokens=max_tokens,
            draw=Draw(sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed),
            wish=submit.speculation,
            tenant=submit.tenant,
            output=Output(
                self._text.stream(),
                stop=sampling.stop,
                end_ids=frozenset() if sampling.ignore_eos else self._stop_ids,
                stop_token_ids=frozenset(sampling.stop_token_ids),
                max_tokens=max_tokens,
            ),
            arrived=arrived,
        )

    def check_wish(self, wish: Wish) -> None:
        if wish.drafter not in (None, NONE):
            enabled = self._is_enabled(wish.drafter)
            if enabled is None:
                raise RequestError(
                    "unknown_drafter",
                    f"there is no drafter {wish.drafter[:64]!r}; GET /api/drafters lists them.",
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
        if submit.messages is not None:
            ids, param = self._text.render(submit.messages), "messages"
        elif submit.prompt is not None:
            ids, param = self._text.encode(submit.prompt), "prompt"
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
        largest = min(self._limits.context_length, self._limits.pool_tokens)
        if len(ids) >= largest:
            raise RequestError(
                "context_length_exceeded",
                f"the prompt has {len(ids)} tokens; the limit is {largest} tokens for prompt and "
                "answer together. Shorten the prompt.",
                param,
            )
        return ids

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


def check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Bound every number. Raises RequestError naming the field and its range."""
    _between("temperature", sampling.temperature, 0.0, 2.0)
    _between("top_k", sampling.top_k, 0, 2**31 - 1)
    _between("top_p", sampling.top_p, 0.0, 1.0)
    if sampling.top_p == 0.0:
        raise RequestError("invalid_request", "top_p must be more than 0.", "top_p")
    if sampling.seed is not None:
        _between("seed", sampling.seed, -(2**63), 2**63 - 1)
    if sampling.max_tokens is not None:
        _between("max_tokens", sampling.max_tokens, 1, 2**31 - 1)
    if len(sampling.stop) > MAX_STOP_STRINGS:
        raise RequestError(
            "invalid_request", f"stop holds more than {MAX_STOP_STRINGS} strings.", "stop"
        )
    if any(not 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in sampling.stop):
        raise RequestError(
            "invalid_request",
            f"each stop string must have 1 to {MAX_STOP_CHARACTERS} characters.",
            "stop",
        )
    if len(sampling.stop_token_ids) > MAX_STOP_IDS or any(
        not 0 <= token < vocabulary for token in sampling.stop_token_ids
    ):
        raise RequestError(
            "invalid_request",
            f"stop_token_ids takes at most {MAX_STOP_IDS} ids between 0 and {vocabulary - 1}.",
            "stop_token_ids",
        )


def _between(name: str, value: float, low: float, high: float) -> None:
    if math.isnan(value) or not low <= value <= high:
        raise RequestError(
            "invalid_request", f"{name} must be between {low} and {high}, not {value}.", name
        )
