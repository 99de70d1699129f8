"""The plan as an operator sees it: smoothed over steps, and when and why it changed.

Per-request D moves at every step; that is no decision. A regime is the most used drafter and the
mean D per request over about 64 steps, and it changes only when that changes clearly and stays so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping

from controller import reasons as codes
from controller.averages import Averages, Sample
from controller.contract import NONE, Candidate
from controller.limits import BY_BUDGET, BY_TARGET, OFTEN
from controller.reasons import because

PERSIST_STEPS = 48
SETTLE_STEPS = 64
SPACING_S = 1.0
STARTS_AT, STOPS_AT = 0.15, 0.03
TAKES_OVER_AT = 1.25
DEPTH_FACTOR, DEPTH_OFFSET = 2.0, 1.0
LEAST_CAUSE = 0.1
DECISIVE = 10.0
"""The weight of what decides most of a plan by itself, as the logarithm of a ratio."""
Z90 = 1.645


class Regime:
    """The averages, the regime in force, and the detection of a change.

    While the plan looks like another one, the steps since then are averaged apart, so that a
    decision rests on the new regime alone and not on a mixture with the old one."""

    def __init__(self, drafters: tuple[str, ...], lengths: tuple[int, ...]) -> None:
        self.drafters = drafters
        self._lengths = lengths
        self.drafter = NONE
        self.depth = 0.0
        self._averages = Averages(drafters, lengths)
        self._fresh = Averages(drafters, lengths)
        self._base: dict[str, float] = {}
        self._since = 0
        self._held = 0
        self._opened_at = -math.inf

    @property
    def means(self) -> dict[str, float]:
        """The smoothed inputs by name, empty before the first step."""
        return self._averages.means()

    def update(self, sample: Sample) -> None:
        """Take in one planned step."""
        self._since += 1
        self._averages.update(sample)
        if self._held:
            self._fresh.update(sample)

    def restart(self) -> None:
        """The setting changed: what was smoothed before no longer describes the plan."""
        self._averages.samples = 0
        self._held = 0

    def relist(self, drafters: tuple[str, ...]) -> None:
        """Other drafters from here on; what was smoothed of the others is kept."""
        self.drafters = drafters
        self._averages = self._averages.relisted(drafters)
        self._fresh = Averages(drafters, self._lengths)
        if self.drafter not in (NONE, *drafters):
            self.drafter, self.depth = NONE, 0.0

    # --- change -------------------------------------------------------------------------------

    def changed(self, now: float) -> bool:
        """Whether the plan has clearly become another one, which the averages then describe.
        `now` in seconds."""
        drafter, depth = self._leader(), self._averages.depth
        differs = drafter != self.drafter
        if not differs and drafter != NONE:
            ratio = (depth + DEPTH_OFFSET) / (self.depth + DEPTH_OFFSET)
            differs = not 1.0 / DEPTH_FACTOR < ratio < DEPTH_FACTOR
        if not differs:
            self._held = 0
            return False
        if not self._held:
            self._fresh = Averages(self.drafters, self._lengths)
        self._held += 1
        if (
            self._held < PERSIST_STEPS
            or self._since < SETTLE_STEPS
            or 0.0 <= now - self._opened_at < SPACING_S  # the clock may be set back
        ):
            return False
        self._averages = self._fresh
        self._fresh = Averages(self.drafters, self._lengths)
        return True

    def reason(self, probed: Container[str], rearmed: bool, models: Container[str]) -> str:
        """Code of the largest cause of the change from the regime in force to the present one.
        probed: the drafters that were tried of late, while the plan left them out; rearmed: the
        harm guard let go of late; models: those that no shadow scores."""
        leader = self._leader()
        starts = self.drafter == NONE
        stops = leader == NONE
        up = starts or (not stops and self.means["depth"] > self.depth)
        if up and rearmed:
            return codes.REARMED
        sign = 1.0 if up else -1.0
        causes = {
            "match": sign * self._log_ratio("offered", 0.01),
            "acceptance": sign * self._log_ratio("first", 0.02),
            "price": -sign * self._log_ratio("row_cost", 0.02),
            "wish": 0.9 * self._decides("forced"),  # a constraint goes before
            "guard": -2.0 * sign * self._difference("blocked"),
            "target": self._decides(BY_TARGET),
            "budget": self._decides(BY_BUDGET),
        }
        cause = max(causes, key=lambda c: causes[c])
        if causes[cause] < LEAST_CAUSE:
            cause = "mixed"
        # A probe tells acceptance and what rows take; another load changes the price by itself.
        learned = cause == "acceptance" or (
            cause == "price" and abs(self._log_ratio("batch", 0.0)) < LEAST_CAUSE
        )
        if starts and learned and leader in probed:
            return codes.PROBE
        if starts and cause == "acceptance" and leader not in models:
            cause = "shadow"
        return {
            "match": (codes.NO_MATCH, codes.MATCH),
            "acceptance": (codes.ACCEPTANCE_DOWN, codes.ACCEPTANCE_UP),
            "price": (codes.PRICE_UP, codes.PRICE_DOWN),
            "wish": (codes.WISH, codes.WISH),
            "guard": (codes.REQUEST_GUARD, codes.REQUEST_GUARD),
            "shadow": (codes.SHADOW_WIN, codes.SHADOW_WIN),
            "target": (codes.TPOT_TARGET, codes.TPOT_TARGET),
            "budget": (codes.DRAFT_BUDGET, codes.DRAFT_BUDGET),
            "mixed": (codes.MIXED, codes.MIXED),
        }[cause][up]

    def sentence(self, reason: str) -> str:
        """The reason in words with the numbers behind it."""
        drafter, depth = self._leader(), self.means["depth"]
        if drafter == NONE:
            change = f"Drafting with {self.drafter} stops"
        elif self.drafter == NONE:
            change = f"Drafting with {drafter} starts, {depth:.1f} tokens per request and step"
        elif drafter != self.drafter:
            change = f"Drafting changes from {self.drafter} to {drafter} at mean D {depth:.1f}"
        else:
            verb = "rises" if depth > self.depth else "falls"
            change = f"Mean D of {drafter} {verb} from {self.depth:.1f} to {depth:.1f}"
        return f"{change}: {because(reason, self.means, self._base)}."

    def enter(self, drafter: str, depth: float, now: float) -> None:
        """A decision was opened: this regime is in force from here."""
        self.drafter, self.depth = drafter, depth
        self._base = dict(self.means)
        self._since = self._held = 0
        self._opened_at = now

    # --- predictions --------------------------------------------------------------------------

    def candidates(
        self, drafter: str, depth: float, spread: float, evidence: Callable[[str], float]
    ) -> list[Candidate]:
        """The plan itself (first), plain decoding, and every drafter at uniform lengths, each
        averaged over the recent steps, with 90 % intervals from the evidence behind the
        acceptance and the spread of the cost residuals."""
        means = self.means
        plain = means["plain_tokens"]
        found = [
            self._candidate(drafter, depth, means["tokens"], means["ms"], spread, evidence),
            self._candidate(NONE, 0.0, plain, means["plain_ms"], spread, evidence),
        ]
        for name, length, tokens, ms in self._averages.grid():
            if means.get("offered " + name, 0.0) > 0.0:
                found.append(self._candidate(name, length, tokens, ms, spread, evidence))
        return found

    def inputs(self) -> Mapping[str, object]:
        """What the decision was made on, rounded for reading."""
        return {key: round(value, 4) for key, value in self.means.items()}

    def leader(self) -> tuple[str, float]:
        """The most used drafter and mean D per request of the recent steps."""
        drafter = self._leader()
        return drafter, self._averages.depth if drafter != NONE else 0.0

    def _candidate(
        self,
        drafter: str,
        length: float,
        tokens: float,
        ms: float,
        spread: float,
        evidence: Callable[[str], float],
    ) -> Candidate:
        return candidate(
            drafter,
            length,
            tokens,
            ms,
            gained=max(tokens - self.means["batch"], 0.0),
            first=self.means.get("first", 0.2),
            evidence=evidence(drafter) if drafter != NONE else 1.0,
            spread=spread,
        )

    def _leader(self) -> str:
        shares = dict(zip(self.drafters, self._averages.shares(), strict=True))
        if not shares:
            return NONE
        leader = max(shares, key=shares.__getitem__)
        if self.drafter == NONE:
            return leader if sum(shares.values()) > STARTS_AT else NONE
        if sum(shares.values()) < STOPS_AT:
            return NONE
        if leader != self.drafter and shares[leader] > TAKES_OVER_AT * shares[self.drafter]:
            return leader
        return self.drafter

    def _decides(self, share: str) -> float:
        """How much of a change is due to what decides that share of it, a constraint of steps or
        wishes of requests: whatever else moved, a plan that these do not admit is not taken."""
        now = self.means.get(share, 0.0)
        return DECISIVE * now if now > OFTEN else 2.0 * abs(self._difference(share))

    def _difference(self, key: str) -> float:
        return self.means.get(key, 0.0) - self._base.get(key, 0.0)

    def _log_ratio(self, key: str, offset: float) -> float:
        now = self.means.get(key)
        before = self._base.get(key, now)
        if now is None or before is None:
            return 0.0
        return math.log((max(now, 0.0) + offset) / (max(before, 0.0) + offset))


def rate_error(rate: float, evidence: float) -> float:
    """Relative standard error of a rate of acceptance seen in `evidence` drafts."""
    rate = min(max(rate, 0.01), 0.99)
    return math.sqrt((1.0 - rate) / (rate * (evidence + 1.0)))


def candidate(
    drafter: str,
    length: float,
    tokens: float,
    ms: float,
    *,
    gained: float,
    first: float,
    evidence: float,
    spread: float,
) -> Candidate:
    """A candidate with its 90 % interval. gained: expected accepted tokens, whose relative error
    is that of the first position's rate over `evidence` drafts; spread: relative error of ms."""
    relative = math.hypot(rate_error(first, evidence) * gained / tokens, spread)
    goodput = 1000.0 * tokens / ms
    return Candidate(
        drafter=drafter,
        draft_length=round(float(length), 3),
        predicted_tokens=tokens,
        predicted_ms=ms,
        goodput=goodput,
        low=goodput * max(0.0, 1.0 - Z90 * relative),
        high=goodput * (1.0 + Z90 * relative),
    )
