"""Free scoring of a model-free drafter on committed text: what would it have got?

The cursor plays the drafter as if it ran at every step: it drafts at a step start, compares with
the tokens that follow, and starts again after its own accepted + 1 tokens. Scoring at step starts
only is what makes the scores comparable to live ones (reference: positions that follow a
rejection or a bonus token are harder than average).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from controller.contract import Features, ShadowScore

Propose = Callable[[int], tuple[Features, Sequence[int]]]
"""Given the history length, the drafter's features and draft (empty: no proposal). It is called
when its index holds exactly that history."""

Append = Callable[[int], None]
"""Takes one committed token into the drafter's index."""


class ShadowCursor:
    """One request's shadow of one drafter.

    `length` is the history length when the cursor starts (the prompt, already in the index).
    Every committed token goes through exactly one of `advance` (the drafter did not run for the
    request in this step) and `follow` (it did), which append it to the index; so no position is
    scored both live and in the shadow. `streak` is for the features of live offers."""

    __slots__ = ("_bonus", "_draft", "_features", "_matched", "drafter", "length", "streak")

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
        """The drafter ran live: take the tokens in unscored and restart after them. A shadow
        draft cut off by this is returned censored; the choice to go live was made before these
        tokens were known, so the censoring is unbiased."""
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
