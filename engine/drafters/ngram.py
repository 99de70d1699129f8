"""N-gram drafter (prompt lookup): continues the latest earlier occurrence of the last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from controller.contract import Features, Offer, ShadowScore
from controller.shadow import ShadowCursor
from engine.drafts import Draft
from engine.request import Request

MAX_N = 5
"""Longest n-gram indexed; longer matches are found by comparing backwards."""

MATCH_CAP = 32
"""Match lengths above this are reported as this."""


class NgramIndex:
    """Incremental hash index of one text: n-gram -> where its latest occurrence continues.

    Appending costs O(MAX_N), a lookup O(MAX_N + MATCH_CAP). An n-gram enters the index only when
    the token after it is known, so a text never matches its own end. Longest n wins; among equal
    n-grams the latest occurrence."""

    def __init__(self, end_ids: frozenset[int]) -> None:
        self.tokens: list[int] = []
        self.prompt_length = 0
        self._end_ids = end_ids
        self._next: dict[tuple[int, ...], int] = {}

    def append(self, token: int) -> None:
        tokens = self.tokens
        end = len(tokens)
        for n in range(1, min(MAX_N, end) + 1):
            self._next[tuple(tokens[end - n :])] = end
        tokens.append(token)

    def match(self) -> tuple[int, int]:
        """(match length, position that continues it) for the text's end; (0, 0) for none."""
        tokens = self.tokens
        end = len(tokens)
        for n in range(min(MAX_N, end), 0, -1):
            start = self._next.get(tuple(tokens[end - n :]))
            if start is not None:
                length = n
                limit = min(MATCH_CAP, start)
                while length < limit and tokens[start - length - 1] == tokens[end - length - 1]:
                    length += 1
                return length, start
        return 0, 0

    def draft(self, start: int, length: int) -> list[int]:
        """Up to `length` tokens copied from `start`, running on into the draft itself when the
        text ends first (a loop of any period), cut after an end-of-sequence token."""
        tokens = self.tokens
        period = len(tokens) - start
        drafted: list[int] = []
        for offset in range(length):
            token = tokens[start + offset] if offset < period else drafted[offset - period]
            drafted.append(token)
            if token in self._end_ids:
                break
        return drafted

    def features(self, matched: int, start: int, streak: int) -> Features:
        source = "prompt" if start < self.prompt_length else "output"
        return Features(match_length=matched, streak=streak, source=source)


class _State:
    """Index, shadow cursor and this step's match of one request."""

    __slots__ = ("cursor", "index", "start")

    def __init__(self, index: NgramIndex, cursor: ShadowCursor) -> None:
        self.index = index
        self.cursor = cursor
        self.start = 0


class NgramDrafter:
    """Model-free: every draft is one-hot and costs microseconds on the host."""

    name = "ngram"
    kind: Literal["model_free", "model"] = "model_free"

    def __init__(self, max_draft_length: int, end_ids: frozenset[int]) -> None:
        self._max = max_draft_length
        self._end_ids = end_ids
        self._states: dict[int, _State] = {}

    def admit(self, request: Request) -> None:
        index = NgramIndex(self._end_ids)
        for token in request.tokens:
            index.append(token)
        index.prompt_length = request.prompt_length
        cursor = ShadowCursor(self.name, len(request.tokens))
        self._states[request.id] = _State(index, cursor)

    def offer(self, request: Request) -> Offer | None:
        state = self._states[request.id]
        matched, state.start = state.index.match()
        if not matched:
            return None
        features = state.index.features(matched, state.start, state.cursor.streak)
        return Offer(request.id, self.name, self._max, features)

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        return [
            Draft(self._states[request.id].index.draft(self._states[request.id].start, length))
            for request, length in zip(requests, lengths, strict=True)
        ]

    def commit(
        self, request: Request, tokens: Sequence[int], drafted: int, accepted: int, ended: bool
    ) -> tuple[ShadowScore, ...]:
        state = self._states[request.id]
        index, cursor = state.index, state.cursor
        if drafted:
            scores = cursor.follow(tokens, drafted, accepted, index.append)
        else:
            scores = cursor.advance(tokens, lambda _: self._shadow(state), index.append)
        if ended:
            scores = [*scores, *cursor.finish()]
        return tuple(scores)

    def _shadow(self, state: _State) -> tuple[Features, Sequence[int]]:
        matched, start = state.index.match()
        if not matched:
            return Features(), ()
        features = state.index.features(matched, start, state.cursor.streak)
        return features, state.index.draft(start, self._max)

    def forget(self, request: int) -> None:
        self._states.pop(request, None)
