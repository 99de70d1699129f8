"""What one request's output must match: the tokens allowed next, and which drafts stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from llguidance import LLMatcher
from torch import Tensor

from engine.drafts import Draft
from engine.errors import RequestError
from engine.notation import GrammarError, reason

MOST_BREAKS = 4
"""Drafts that may break a request's matcher, which then has to follow its whole text again; after
them it decodes without drafts."""


class Constraint:
    """The grammar state of one request. Used from the loop's thread only.

    A row's mask allows what may follow the committed tokens and the drafts before it. Once the
    grammar is complete only `end_ids` are allowed; before, they are allowed where the text may
    end, and special tokens never are (a grammar in Lark notation may name some). Two wishes can
    contradict a grammar, so they are applied here, where the grammar can win: `ignore_eos` bars
    the end ids, and `min_tokens` bars them and `stop_token_ids`, only while some other token is
    allowed. A complete text therefore always ends its request, with an end id as its last token.

    Cutting drafts keeps the law of the output. A row whose draft d is illegal has p(d) = 0.
    When d is a function of the committed text (one-hot), the row's token is the target's own draw
    whether d is there or not: it is never d, so cutting before d changes nothing but work. When d
    was drawn from q, the row must give min(p, q) + P(rejected) · residual, and the residual
    max(0, p - q) / Z is drawn exactly when the draw was rejected. Cutting before an illegal d
    would draw from p instead, but only in the cases where q happened to give an illegal token, and
    tokens with q > p would come out too often. So d stays as the last draft, p(d) = 0 rejects it,
    and the residual follows. What comes after an illegal draft is never reached and goes in
    both cases; likewise after an end id, which ends the request when it is committed."""

    def __init__(
        self,
        start: Callable[[], LLMatcher],
        renew: Callable[[], LLMatcher],
        vocabulary: int,
        end_ids: frozenset[int],
        *,
        stop_token_ids: Iterable[int] = (),
        min_tokens: int = 0,
        ignore_eos: bool = False,
    ) -> None:
        """start: gives a matcher at the start of the grammar, called from the loop's thread when
        it is needed. renew: another, for when the lexer that the first one shares is used up.
        vocabulary: logits per row."""
        self._start = start
        self._started: LLMatcher | None = None
        self._renew = renew
        self._bytes = 4 * ((vocabulary + 31) // 32)
        self._free = b"\xff" * self._bytes
        self._vocabulary = vocabulary
        self._end_ids = end_ids
        self._early = end_ids.union(stop_token_ids)
        self._min_tokens = min_tokens
        self._ignore_eos = ignore_eos
        self._committed: list[int] = []
        self._fault: RequestError | None = None
        self._breaks = 0

    def admit(self, draft: Draft) -> tuple[Draft, Tensor]:
        """The draft up to its first illegal token (before it, or with it when it was drawn from q),
        and the mask of its rows: int32 [1 + len, ceil(V / 32)] on the CPU, bit set = allowed,
        lowest bit first. The state stays as it was. A row that no draft can reach allows all.

        A draft also ends where the grammar allows no token after it or has become too complex to
        say which: the row there allows nothing, and only if its draft is committed is that row
        the first of a later step.

        Raises RequestError when nothing may follow the committed text, or when the grammar has
        become too complex for it."""
        if self._fault is not None:
            raise self._fault
        if self._breaks >= MOST_BREAKS:
            draft = draft.cut(0)  # settled before it was drawn: the law of the output stays
        try:
            first = self._row(0)
        except _Broken:
            self._renew_matcher()
            try:
                first = self._row(0)
            except _Broken as broken:
                raise _failure(str(broken)) from broken
        if not first.strip(b"\0"):
            raise RequestError(
                "invalid_request",
                "the grammar came to a place where no token of the model may follow; "
                "let it accept more, or let it end there.",
            )
        return self._admit(draft, first)

    def advance(self, token: int) -> None:
        """Follow a committed token. When the grammar cannot, the next `admit` raises."""
        if token in self._end_ids or self._fault is not None:
            return  # nothing follows
        followed = self._follow(token)
        self._committed.append(token)
        if not followed:
            try:
                self._renew_matcher()
            except RequestError as error:
                self._fault = error

    def _admit(self, draft: Draft, first: bytes | bytearray) -> tuple[Draft, Tensor]:
        rows = [first]
        kept = followed = 0
        refused = False
        try:
            for place, token in enumerate(draft.tokens):
                row = rows[place]
                legal = 0 <= token < self._vocabulary and row[token >> 3] >> (token & 7) & 1
                if legal or draft.drawn(place):
                    kept += 1
                else:
                    refused = True
                if not legal or token in self._end_ids:
                    rows.extend([self._free] * (kept - place))
                    break
                if not self._follow(token):
                    raise _Broken
                followed += 1
                rows.append(self._row(place + 1))
                if not rows[-1].strip(b"\0"):
                    break
        except _Broken:
            rows.append(bytes(self._bytes))
            self._return()
        else:
            if followed:
                self._matcher.rollback(followed)
        words = torch.frombuffer(bytearray().join(rows), dtype=torch.int32)
        draft = draft.refuse(kept) if refused else draft.cut(kept)
        return draft, words.view(len(rows), -1)

    def _row(self, place: int) -> bytes | bytearray:
        """The mask after `place` drafts, which the matcher has followed."""
        mask = self._matcher.compute_bitmask()[: self._bytes]
        if self._matcher.is_error():
            raise _Broken(reason(self._matcher))
        barred: Iterable[int] = self._end_ids if self._ignore_eos else ()
        if len(self._committed) + place < self._min_tokens:
            barred = self._early
        if barred:
            rest = bytearray(mask)
            for token in barred:
                rest[token >> 3] &= ~(1 << (token & 7))
            if rest.strip(b"\0"):
                return rest
        return mask

    @property
    def _matcher(self) -> LLMatcher:
        if self._started is None:
            self._started = self._start()
        return self._started

    def _follow(self, token: int) -> bool:
        return 0 <= token < self._vocabulary and self._matcher.consume_token(token)

    def _return(self) -> None:
        """Leave a draft that broke the matcher: another one goes to the committed text."""
        self._breaks += 1
        self._started = self._start()
        if not self._matcher.consume_tokens(self._committed):
            self._renew_matcher()

    def _renew_matcher(self) -> None:
        """Bring a new matcher, whose lexer is its own, to where the request is."""
        try:
            self._started = self._renew()
        except GrammarError as error:
            raise _failure(str(error)) from error
        if not self._matcher.consume_tokens(self._committed):
            raise _failure(reason(self._matcher))


class _Broken(Exception):
    """The matcher has failed, and its state is lost."""


def _failure(why: str) -> RequestError:
    return RequestError(
        "invalid_request", f"the grammar cannot follow this text any further ({why}); simplify it."
    )
