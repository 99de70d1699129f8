"""Whether drafts are accepted often enough: the mean acceptance rate of the last drafting steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from controller.contract import NONE, RequestOutcome


class Gate:
    """Closes when the mean acceptance rate of the last `window` drafting steps falls below the
    threshold. pause: steps until it opens again; 0: never."""

    def __init__(self, window: int, threshold: float, pause: int = 0) -> None:
        self.threshold = threshold
        self.pause = pause
        self.mean: float | None = None
        self.closed = False
        self.left = 0
        self._rates: deque[float] = deque(maxlen=window)

    def record(self, rate: float) -> bool:
        """The acceptance rate of a drafting step. True when the gate closes with it."""
        if self.closed:
            return False
        self._rates.append(rate)
        if len(self._rates) < (self._rates.maxlen or 1):
            return False
        self.mean = sum(self._rates) / len(self._rates)
        if self.mean >= self.threshold:
            return False
        self.closed, self.left = True, self.pause
        self._rates.clear()
        return True

    @property
    def rests(self) -> bool:
        """Whether it is closed in the next step too, for good or because the pause goes on."""
        return self.closed and self.left != 1

    def tick(self) -> bool:
        """One planned step. True when the gate opens again with it."""
        if not self.left:
            return False
        self.left -= 1
        if self.left:
            return False
        self.closed = False
        return True


def rejected(one: RequestOutcome) -> bool:
    """Whether a draft ended with a token that was not accepted, or with one that a mask ruled out;
    what a cut draft would have ended with is not known."""
    return (one.accepted < one.drafted or one.refused != NONE) and not one.cut


def acceptance_rate(own: Sequence[RequestOutcome]) -> float | None:
    """Accepted over really drafted tokens, however short a draft was cut; None without any."""
    drafted = sum(one.drafted for one in own)
    return sum(one.accepted for one in own) / drafted if drafted else None
