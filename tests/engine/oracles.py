"""Plain Python that the compiled drafters must agree with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from controller.contract import Features, ShadowScore
from engine.drafters.ngram.index import MATCH_CAP, MAX_N


class NgramIndex:
    """n-gram -> where its latest occurrence continues, in a dict."""

    def __init__(self, end_ids: frozenset[int] = frozenset()) -> None:
        self.tokens: list[int] = []
        self._end_ids = end_ids
        self._next: dict[tuple[int, ...], int] = {}

    def append(self, token: int) -> None:
        tokens = self.tokens
        end = len(tokens)
        for n in range(1, min(MAX_N, end) + 1):
            self._next[tuple(tokens[end - n :])] = end
        tokens.append(token)

    def match(self, min_n: int = 1, max_n: int = MAX_N) -> tuple[int, int]:
        """(match length, position that continues it) for the text's end; (0, 0) for none."""
        tokens = self.tokens
        end = len(tokens)
        for n in range(min(max_n, end), min_n - 1, -1):
            start = self._next.get(tuple(tokens[end - n :]))
            if start is not None:
                length = n
                limit = min(MATCH_CAP, start)
                while length < limit and tokens[start - length - 1] == tokens[end - length - 1]:
                    length += 1
                return length, start
        return 0, 0

    def draft(self, start: int, length: int) -> list[int]:
        tokens = self.tokens
        period = len(tokens) - start
        drafted: list[int] = []
        for offset in range(length):
            token = tokens[start + offset] if offset < period else drafted[offset - period]
            drafted.append(token)
            if token in self._end_ids:
                break
        return drafted


Propose = Callable[[int], tuple[Features, Sequence[int]]]
"""Given the history length, the drafter's features and draft (empty: no proposal). It is called
when its index holds exactly that history."""

Append = Callable[[int], None]
"""Takes one committed token into the drafter's index."""


class ShadowCursor:
    """One request's shadow of one drafter, token by token."""

    def __init__(self, drafter: str, length: int) -> None:
        self.drafter = drafter
        self.length = length
        self.streak = 0
        self._draft: tuple[int, ...] = ()
        self._features = Features()
        self._matched = 0
        self._bonus = False

    def advance(self, tokens: Sequence[int], propose: Propose, append: Append) -> list[ShadowScore]:
        """Score the committed tokens one by one; the scores of the drafts settled by them."""
        scores: list[ShadowScore] = []
        for token in tokens:
            if self._bonus:
                self._bonus = False
            elif self._draft or self._begin(propose):
                if token == self._draft[self._matched]:
                    self._matched += 1
                    self._bonus = self._matched == len(self._draft)
                    if self._bonus:
                        scores.append(self._settle())
                else:
                    scores.append(self._settle())
            append(token)
            self.length += 1
        return scores

    def follow(
        self, tokens: Sequence[int], drafted: int, accepted: int, append: Append
    ) -> list[ShadowScore]:
        """The drafter ran live: take the tokens in unscored and restart after them."""
        scores = self.finish()
        for token in tokens:
            append(token)
        self.length += len(tokens)
        if drafted:
            self.streak = self.streak + 1 if accepted else 0
        return scores

    def finish(self) -> list[ShadowScore]:
        """The text ended, or the drafter goes live: the unsettled draft, censored."""
        self._bonus = False
        return [self._settle(censored=True)] if self._draft else []

    def _begin(self, propose: Propose) -> bool:
        features, draft = propose(self.length)
        self._draft = tuple(draft)
        self._features = replace(features, streak=self.streak)
        self._matched = 0
        return bool(self._draft)

    def _settle(self, censored: bool = False) -> ShadowScore:
        score = ShadowScore(self.drafter, len(self._draft), self._matched, self._features, censored)
        self.streak = self.streak + 1 if self._matched else 0
        self._draft = ()
        return score
