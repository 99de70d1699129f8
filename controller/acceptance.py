"""Conditional acceptance per drafter, position and context, learned without bias under a moving D.

Kaplan-Meier counts: position k is counted only when it was reached and verified, so
`accepted / reached` estimates a_k = P(k accepted | 1..k-1 accepted) whatever D was. Counts are
discounted. Levels, each shrunk to the one before: prior by match length, drafter, bucket
(match length x streak x source), request (a correction of the odds).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from operator import mul

from controller.contract import Features

POSITIONS = 32
"""Positions kept apart; deeper ones read the last."""

MATCH_EDGES = (2, 3, 4, 6, 9, 17)
STREAK_EDGES = (1, 2, 4)
MAX_SOURCES = 8
MAX_REQUESTS = 4096

BUCKET_MEMORY = 400
DRAFTER_MEMORY = 1000
REQUEST_MEMORY = 64

FIRST_BY_MATCH = (0.12, 0.2, 0.3, 0.4, 0.55, 0.7, 0.8)
"""Prior of a_1 of model-free drafters by match bucket: .2 for a short match, rising."""
DEEPER = 0.8
"""Prior of a_2 of model-free drafters; once they are right they stay right (about .6 to .9)."""
MODEL_RATE = 0.7
"""Flat prior of drafters that report no match length."""

BUCKET_WEIGHT = 8.0
DRAFTER_WEIGHT = 12.0
REQUEST_WEIGHT = 8.0
ODDS_LIMIT = 8.0
LOWEST, HIGHEST = 0.005, 0.995


def shift(rate: float, odds: float) -> float:
    """The rate whose odds are `odds` times those of `rate`."""
    return rate * odds / (1.0 - rate + rate * odds)


class Rates:
    """Discounted `accepted` and `reached` counts per position."""

    __slots__ = ("accepted", "keep", "reached")

    def __init__(self, memory: int) -> None:
        self.keep = 1.0 - 1.0 / memory
        self.accepted: list[float] = []
        self.reached: list[float] = []

    def learn(self, accepted: int, rejected: bool) -> None:
        """Positions 1..accepted were accepted; with `rejected` the next one was not."""
        seen = min(accepted + rejected, POSITIONS)
        while len(self.reached) < seen:
            self.accepted.append(0.0)
            self.reached.append(0.0)
        for k in range(seen):
            self.reached[k] = self.keep * self.reached[k] + 1.0
            self.accepted[k] = self.keep * self.accepted[k] + (k < accepted)

    def shrunk(self, k: int, parent: float, weight: float) -> float:
        """Estimate of a_{k+1}: the parent's value counts as `weight` observations."""
        if k >= len(self.reached):
            return parent
        return (self.accepted[k] + weight * parent) / (self.reached[k] + weight)


class Correction:
    """How the odds of acceptance differ from what was expected, discounted and shrunk to 1."""

    __slots__ = ("accepts", "expected", "keep", "missed", "rejects", "weight")

    def __init__(self, memory: int, weight: float) -> None:
        self.keep = 1.0 - 1.0 / memory
        self.weight = weight
        self.accepts = self.rejects = self.expected = self.missed = 0.0

    def learn(self, rate: float, hit: bool) -> None:
        """One trial that was expected to succeed with probability `rate`."""
        keep = self.keep
        self.accepts = keep * self.accepts + hit
        self.rejects = keep * self.rejects + (not hit)
        self.expected = keep * self.expected + rate
        self.missed = keep * self.missed + 1.0 - rate

    @property
    def odds(self) -> float:
        weight = self.weight
        factor = (self.accepts + weight) / (self.expected + weight)
        factor *= (self.missed + weight) / (self.rejects + weight)
        return min(max(factor, 1.0 / ODDS_LIMIT), ODDS_LIMIT)


Bucket = tuple[int, int, str]


class DrafterRates:
    """One drafter: its overall rates and those of its buckets."""

    def __init__(self) -> None:
        self.overall = Rates(DRAFTER_MEMORY)
        self.first = Correction(DRAFTER_MEMORY, DRAFTER_WEIGHT)
        self.buckets: dict[Bucket, Rates] = {}
        self.sources: set[str] = set()
        self._curves: dict[Bucket, list[float]] = {}
        self._deeper: list[float] = []
        self._stale = False

    def bucket(self, features: Features) -> Bucket:
        """The bucket of the features; sources beyond the first eight share one."""
        source = features.source
        if source not in self.sources:
            if len(self.sources) < MAX_SOURCES:
                self.sources.add(source)
            else:
                source = "*"
        match = bisect_right(MATCH_EDGES, features.match_length) if features.match_length else -1
        return match, bisect_right(STREAK_EDGES, features.streak), source

    def curve(self, bucket: Bucket) -> list[float]:
        """a_1 .. a_POSITIONS of the bucket from everything learned."""
        if self._stale:
            self._curves.clear()
            self._deeper.clear()
            self._stale = False
        return self.recent_curve(bucket)

    def recent_curve(self, bucket: Bucket) -> list[float]:
        """The same as of the last `curve`, which saves rebuilding it for each outcome."""
        curve = self._curves.get(bucket)
        if curve is None:
            curve = self._curves[bucket] = self._build(bucket)
        return curve

    def learn(self, bucket: Bucket, accepted: int, rejected: bool) -> None:
        if accepted or rejected:
            self.first.learn(prior_first(bucket), accepted > 0)
        self.overall.learn(accepted, rejected)
        rates = self.buckets.get(bucket)
        if rates is None:
            rates = self.buckets[bucket] = Rates(BUCKET_MEMORY)
        rates.learn(accepted, rejected)
        self._stale = True

    def _build(self, bucket: Bucket) -> list[float]:
        if not self._deeper:
            value = DEEPER if bucket[0] >= 0 else MODEL_RATE
            for k in range(1, POSITIONS):
                # An unobserved position reads the one before it.
                value = self.overall.shrunk(k, value, DRAFTER_WEIGHT)
                self._deeper.append(value)
        parents = [shift(prior_first(bucket), self.first.odds), *self._deeper]
        rates = self.buckets.get(bucket)
        if rates is not None:
            parents = [rates.shrunk(k, p, BUCKET_WEIGHT) for k, p in enumerate(parents)]
        return [min(max(p, LOWEST), HIGHEST) for p in parents]


def prior_first(bucket: Bucket) -> float:
    """Prior of a_1 before anything was observed."""
    return FIRST_BY_MATCH[bucket[0]] if bucket[0] >= 0 else MODEL_RATE


class Acceptance:
    """The acceptance model of all drafters and running requests. Memory is bounded: buckets are
    a fixed grid, requests are dropped by `forget` (and, failing that, oldest first)."""

    def __init__(self) -> None:
        self._drafters: dict[str, DrafterRates] = {}
        self._requests: OrderedDict[tuple[int, str], tuple[Correction, Correction]] = OrderedDict()

    def learn(
        self,
        request: int,
        drafter: str,
        features: Features,
        drafted: int,
        accepted: int,
        censored: bool = False,
    ) -> None:
        """Credit one verified or shadow draft. `censored`: the text ended inside the draft, so
        position accepted + 1 counts neither way."""
        if drafted <= 0:
            return
        rejected = accepted < drafted and not censored
        rates = self._drafter(drafter)
        bucket = rates.bucket(features)
        curve = rates.recent_curve(bucket)
        key = (request, drafter)
        pair = self._requests.get(key)
        if pair is None:
            pair = (
                Correction(REQUEST_MEMORY, REQUEST_WEIGHT),
                Correction(REQUEST_MEMORY, REQUEST_WEIGHT),
            )
            self._requests[key] = pair
            if len(self._requests) > MAX_REQUESTS:
                self._requests.popitem(last=False)
        for k in range(min(accepted + rejected, POSITIONS)):
            pair[k > 0].learn(curve[k], k < accepted)
        rates.learn(bucket, accepted, rejected)

    def rates(self, request: int, drafter: str, features: Features, length: int) -> list[float]:
        """a_1 .. a_length for the request's next draft."""
        table = self._drafter(drafter)
        curve = table.curve(table.bucket(features))
        found = curve[:length] if length <= POSITIONS else curve + curve[-1:] * (length - POSITIONS)
        pair = self._requests.get((request, drafter))
        if pair is not None:
            first, deeper = pair[0].odds, pair[1].odds
            found = [a * deeper / (1.0 - a + a * deeper) for a in found]
            found[0] = shift(curve[0], first)
        return found

    def survival(self, request: int, drafter: str, features: Features, length: int) -> list[float]:
        """S_1 .. S_length, S_k = a_1 * ... * a_k: the chance that position k is accepted."""
        return list(accumulate(self.rates(request, drafter, features, length), mul))

    def typical(self, drafter: str, length: int) -> list[float]:
        """S_1 .. S_length over all the drafter's recent drafts, whatever their features."""
        overall = self._drafter(drafter).overall
        value, rates = FIRST_BY_MATCH[1], []
        for k in range(min(length, POSITIONS)):
            value = overall.shrunk(k, DEEPER if k == 1 else value, DRAFTER_WEIGHT)
            rates.append(value)
        rates += rates[-1:] * (length - len(rates))
        return list(accumulate(rates, mul))

    def evidence(self, drafter: str) -> float:
        """Discounted number of drafts seen of the drafter."""
        overall = self._drafter(drafter).overall
        return overall.reached[0] if overall.reached else 0.0

    def forget(self, request: int) -> None:
        for drafter in self._drafters:
            self._requests.pop((request, drafter), None)

    def report(self) -> dict[str, object]:
        """Per drafter: discounted reached and accepted and the rate, by position."""
        return {
            name: {
                "positions": [
                    {
                        "position": k + 1,
                        "reached": round(reached, 2),
                        "accepted": round(table.overall.accepted[k], 2),
                        "rate": round(table.overall.accepted[k] / reached, 4) if reached else None,
                    }
                    for k, reached in enumerate(table.overall.reached)
                ],
                "buckets": len(table.buckets),
            }
            for name, table in self._drafters.items()
        }

    def _drafter(self, name: str) -> DrafterRates:
        table = self._drafters.get(name)
        if table is None:
            table = self._drafters[name] = DrafterRates()
        return table
