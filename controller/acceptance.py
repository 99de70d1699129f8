"""Conditional acceptance per drafter, position and context, learned without bias under a moving D.

Kaplan-Meier counts: position k is counted only when it was reached and verified, so
`accepted / reached` estimates a_k = P(k accepted | 1..k-1 accepted) whatever D was. Counts are
discounted. Levels, each shrunk to the one before: prior by match length, drafter, bucket
(match length x streak x source), request (a correction of the odds).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from controller.contract import Features
from controller.correction import Correction, shift
from controller.counts import POSITIONS, Counts, Table

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

NEWS_SHARE, MOST_NEWS = 32, 15
"""A drafter's own rates are brought up to date when its news are 1/32 of what it knows, or 15
drafts: its buckets, which are always up to date, count more by then."""

BUCKET_WEIGHT = 8.0
DRAFTER_WEIGHT = 12.0
REQUEST_WEIGHT = 8.0
LOWEST, HIGHEST = 0.005, 0.995

MATCHES = [0] + [1 + bisect_right(MATCH_EDGES, n) for n in range(1, MATCH_EDGES[-1] + 1)]
"""Bucket by match length: 0 without one; the last holds for everything longer."""
STREAKS = [bisect_right(STREAK_EDGES, n) for n in range(STREAK_EDGES[-1] + 1)]
PRIORS = (MODEL_RATE, *FIRST_BY_MATCH)
"""Prior of a_1 by bucket of the match length."""


NO_PAIR = (Correction(REQUEST_MEMORY, REQUEST_WEIGHT), Correction(REQUEST_MEMORY, REQUEST_WEIGHT))
"""Of a request that taught nothing yet."""


class DrafterRates:
    """One drafter: where its rows are, its first position's odds, and its deeper rates."""

    __slots__ = (
        "deeper",
        "first",
        "news",
        "number",
        "overall",
        "patience",
        "rows",
        "sources",
        "stale",
    )

    def __init__(self, number: int, overall: int) -> None:
        self.number = number
        self.overall = overall
        self.first = Correction(DRAFTER_MEMORY, DRAFTER_WEIGHT)
        self.rows: dict[tuple[int, int, str], int] = {}
        self.sources: set[str] = set()
        self.deeper = MODEL_RATE
        self.news: list[tuple[int, int, int]] = []
        self.patience = 1
        self.stale = True


class Acceptance:
    """The acceptance model of all drafters and running requests. Memory is bounded: buckets are
    a fixed grid, requests are dropped by `forget` (and, failing that, oldest first)."""

    def __init__(self) -> None:
        self._drafters: dict[str, DrafterRates] = {}
        self._requests: OrderedDict[tuple[int, str], tuple[Correction, Correction]] = OrderedDict()
        self._overall = Counts(DRAFTER_MEMORY)
        self._buckets = Counts(BUCKET_MEMORY)
        self._kinds = np.zeros(0, np.intp)
        self._parents = np.zeros((0, POSITIONS))
        self._planned: dict[int, int] = {}
        self._curves = np.zeros((0, POSITIONS))
        self._expected: dict[int, list[float]] = {}

    # --- learning -----------------------------------------------------------------------------

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
        seen = accepted + (accepted < drafted and not censored)
        if seen > POSITIONS:
            seen = POSITIONS
            accepted = min(accepted, seen)
        rates = self._drafters.get(drafter) or self._drafter(drafter)
        row = self._row(rates, features)
        pair = self._requests.get((request, drafter)) or self._pair(request, drafter)
        if seen:
            place = self._planned.get(row)
            if place is None:
                curve = self._expected.get(row) or self._expect(row)
            elif seen == 1:
                curve = (self._curves.item(place, 0),)
            else:
                curve = self._curves[place, :seen].tolist()
            pair[0].learn(curve[0], accepted > 0)
            if seen > 1:
                pair[1].learn_run(curve, accepted, seen)
        rates.news.append((accepted, seen, row))
        self._buckets.learn(row, accepted, seen)

    def _expect(self, row: int) -> list[float]:
        """a_1 .. a_POSITIONS of a bucket that the last plan did not price."""
        accepted, reached = self._buckets.tables()
        found = self._parents[self._kinds[row]] * BUCKET_WEIGHT + accepted[row]
        found /= reached[row] + BUCKET_WEIGHT
        curve: list[float] = np.clip(found, LOWEST, HIGHEST).tolist()
        self._expected[row] = curve
        return curve

    def _pair(self, request: int, drafter: str) -> tuple[Correction, Correction]:
        pair = (
            Correction(REQUEST_MEMORY, REQUEST_WEIGHT),
            Correction(REQUEST_MEMORY, REQUEST_WEIGHT),
        )
        self._requests[request, drafter] = pair
        if len(self._requests) > MAX_REQUESTS:
            self._requests.popitem(last=False)
        return pair

    def forget(self, request: int) -> None:
        for drafter in self._drafters:
            self._requests.pop((request, drafter), None)

    def forget_drafter(self, drafter: str) -> None:
        """Drop what was learned of a drafter; its rows stay for the next one of that name."""
        table = self._drafters.get(drafter)
        if table is None:
            return
        for key in [key for key in self._requests if key[1] == drafter]:
            del self._requests[key]
        for row in table.rows.values():
            self._buckets.clear(row)
            self._expected.pop(row, None)
        self._overall.clear(table.overall)
        table.first = Correction(DRAFTER_MEMORY, DRAFTER_WEIGHT)
        table.news.clear()
        table.stale = True
        self._planned = {}

    # --- reading ------------------------------------------------------------------------------

    def survivals(
        self,
        requests: Sequence[int],
        drafters: Sequence[str],
        features: Sequence[Features],
        length: int,
    ) -> Table:
        """S_1 .. S_length of one possible draft per row, float64 [n, length]: S_k = a_1 ... a_k,
        the chance that position k is accepted."""
        rates = self._rates(requests, drafters, features, min(length, POSITIONS))
        if length > POSITIONS:
            rates = np.pad(rates, ((0, 0), (0, length - POSITIONS)), mode="edge")
        return np.multiply.accumulate(rates, axis=1, out=rates)

    def _rates(
        self,
        requests: Sequence[int],
        drafters: Sequence[str],
        features: Sequence[Features],
        length: int,
    ) -> Table:
        """a_1 .. a_length for each request's next draft, float64 [n, length <= POSITIONS]."""
        rows: list[int] = []
        own = self._drafters
        for drafter, found in zip(drafters, features, strict=True):
            rows.append(self._row(own.get(drafter) or self._drafter(drafter), found))
        for table in self._drafters.values():
            if table.stale or len(table.news) >= table.patience:
                self._refresh(table)
        index = np.array(rows, np.intp)
        accepted, reached = self._buckets.tables()
        curves = self._parents.take(self._kinds.take(index), 0)
        curves *= BUCKET_WEIGHT
        curves += accepted.take(index, 0)
        trials = reached.take(index, 0)
        trials += BUCKET_WEIGHT
        curves /= trials
        np.maximum(curves, LOWEST, out=curves)
        np.minimum(curves, HIGHEST, out=curves)
        self._planned = dict(zip(rows, range(len(rows)), strict=True))
        self._curves = curves
        self._expected.clear()
        odds = np.empty_like(curves)
        pairs = [self._requests.get(key, NO_PAIR) for key in zip(requests, drafters, strict=True)]
        odds.T[:] = [pair[1].odds for pair in pairs]
        odds[:, 0] = [pair[0].odds for pair in pairs]
        rates = curves[:, :length] * odds[:, :length]
        scale = 1.0 - curves[:, :length]
        scale += rates
        rates /= scale
        return rates

    def _refresh(self, table: DrafterRates) -> None:
        """The drafter's rates with the news. An unobserved position reads the one before it."""
        self._take_news(table)
        at = table.overall * POSITIONS
        hits = self._overall.accepted[at : at + POSITIONS]
        trials = self._overall.reached[at : at + POSITIONS]
        value, found = table.deeper, [0.0]
        for k in range(1, POSITIONS):
            if not trials[k]:
                found += [value] * (POSITIONS - k)
                break
            value = (hits[k] + DRAFTER_WEIGHT * value) / (trials[k] + DRAFTER_WEIGHT)
            found.append(value)
        table.patience = 1 + min(int(trials[0] / NEWS_SHARE), MOST_NEWS)
        odds = table.first.odds
        mine = self._parents[table.number * len(PRIORS) : (table.number + 1) * len(PRIORS)]
        mine[:] = found
        mine[:, 0] = [shift(prior, odds) for prior in PRIORS]
        table.stale = False

    def _take_news(self, table: DrafterRates) -> None:
        """Count the drafts credited since the last time in the drafter's own rates. Within one
        batch of news the order does not count."""
        if not table.news:
            return
        found, table.news, table.stale = table.news, [], True
        table.first.learn_many(
            [PRIORS[self._kinds.item(row) % len(PRIORS)] for _, seen, row in found if seen],
            sum(accepted > 0 for accepted, _, _ in found),
        )
        self._overall.learn_many(table.overall, [a for a, _, _ in found], [s for _, s, _ in found])

    def rates(self, request: int, drafter: str, features: Features, length: int) -> list[float]:
        """a_1 .. a_length for the request's next draft."""
        found = self._rates([request], [drafter], [features], min(length, POSITIONS))[0].tolist()
        return found + found[-1:] * (length - len(found))

    def survival(self, request: int, drafter: str, features: Features, length: int) -> list[float]:
        """S_1 .. S_length, S_k = a_1 * ... * a_k: the chance that position k is accepted."""
        return list(accumulate(self.rates(request, drafter, features, length), mul))

    def typical(self, drafter: str, length: int) -> list[float]:
        """S_1 .. S_length over all the drafter's recent drafts, whatever their features."""
        table = self._drafter(drafter)
        self._take_news(table)
        at = table.overall * POSITIONS
        counts = self._overall
        matches = table.deeper == DEEPER or not table.rows
        value, rates = FIRST_BY_MATCH[1] if matches else MODEL_RATE, []
        for k in range(min(length, POSITIONS)):
            parent = DEEPER if k == 1 and matches else value
            hits = counts.accepted[at + k] + DRAFTER_WEIGHT * parent
            value = hits / (counts.reached[at + k] + DRAFTER_WEIGHT)
            rates.append(value)
        rates += rates[-1:] * (length - len(rates))
        return list(accumulate(rates, mul))

    def evidence(self, drafter: str) -> float:
        """Discounted number of drafts seen of the drafter."""
        table = self._drafter(drafter)
        self._take_news(table)
        return self._overall.reached[table.overall * POSITIONS]

    def report(self) -> dict[str, object]:
        """Per drafter: discounted reached and accepted and the rate, by position."""
        return {name: self._report(table) for name, table in self._drafters.items()}

    def _report(self, table: DrafterRates) -> dict[str, object]:
        self._take_news(table)
        at = table.overall * POSITIONS
        positions = [
            {
                "position": k + 1,
                "reached": round(reached, 2),
                "accepted": round(self._overall.accepted[at + k], 2),
                "rate": round(self._overall.accepted[at + k] / reached, 4),
            }
            for k, reached in enumerate(self._overall.reached[at : at + POSITIONS])
            if reached
        ]
        return {"positions": positions, "buckets": len(table.rows)}

    # --- rows ---------------------------------------------------------------------------------

    def _drafter(self, name: str) -> DrafterRates:
        table = self._drafters.get(name)
        if table is None:
            table = DrafterRates(len(self._drafters), self._overall.add_row())
            self._drafters[name] = table
            self._parents = np.vstack((self._parents, np.zeros((len(PRIORS), POSITIONS))))
            self._refresh(table)
        return table

    def _row(self, rates: DrafterRates, features: Features) -> int:
        """The row of the features' bucket; sources beyond the first eight share one."""
        match, streak, source = features.match_length, features.streak, features.source
        match = MATCHES[match] if match < len(MATCHES) else MATCHES[-1]
        streak = STREAKS[streak] if streak < len(STREAKS) else STREAKS[-1]
        row = rates.rows.get((match, streak, source))
        return self._new_row(rates, match, streak, source) if row is None else row

    def _new_row(self, rates: DrafterRates, match: int, streak: int, source: str) -> int:
        if source not in rates.sources:
            if len(rates.sources) < MAX_SOURCES:
                rates.sources.add(source)
            else:
                source = "*"
        key = (match, streak, source)
        row = rates.rows.get(key)
        if row is None:
            row = rates.rows[key] = self._buckets.add_row()
            kind = rates.number * len(PRIORS) + match
            self._kinds = np.append(self._kinds, np.intp(kind))
            if match and rates.deeper != DEEPER:
                rates.deeper, rates.stale = DEEPER, True
        return row
