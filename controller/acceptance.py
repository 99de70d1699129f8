"""Conditional acceptance per drafter, position and context, learned without bias under a moving D.

Kaplan-Meier counts: position k is counted only when it was reached and verified, so
`accepted / reached` estimates a_k = P(k accepted | 1..k-1 accepted) whatever D was. Counts are
discounted. Levels, each shrunk to the one before: prior by match length, drafter, bucket
(match length x streak x source), request (a correction of the odds).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from controller.choices import Table
from controller.contract import Features
from controller.correction import Correction, shift
from controller.counts import POSITIONS, Counts

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


FIRST_LENGTH = 16
"""Positions that are looked up at once while learning."""

FEW = 4
"""So many drafts are priced one by one; for more, a table of all buckets is kept."""

Drafts = tuple[str, Sequence[int], Sequence[Features]]
"""Possible drafts of one drafter: its name, and for each the request and its features."""

MOST_KNOWN = 1024
"""So many features are remembered with their rows; they come again and again."""


class _Slots(dict[int, int]):
    """By request, where its odds for a drafter lie: 0, odds of 1, for those that taught nothing."""

    def __missing__(self, request: int) -> int:
        return 0


class DrafterRates:
    """One drafter: where its rows are, its first position's odds, and its deeper rates. known: rows
    by the identity of features, which held keeps alive; slots: of its requests' factors."""

    __slots__ = (
        "deeper",
        "first",
        "held",
        "known",
        "news",
        "number",
        "overall",
        "patience",
        "rows",
        "slots",
        "sources",
        "stale",
    )

    def __init__(self, number: int, overall: int) -> None:
        self.number = number
        self.overall = overall
        self.first = Correction(DRAFTER_MEMORY, DRAFTER_WEIGHT)
        self.rows: dict[tuple[int, int, str], int] = {}
        self.known: dict[int, int] = {}
        self.held: list[Features] = []
        self.slots = _Slots()
        self.sources: set[str] = set()
        self.deeper = MODEL_RATE
        self.news: list[tuple[int, int, int]] = []
        self.patience = 1
        self.stale = True


class _Pair:
    """How one request differs for one drafter: at the first position and at deeper ones."""

    __slots__ = ("deeper", "first", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.first = Correction(REQUEST_MEMORY, REQUEST_WEIGHT)
        self.deeper = Correction(REQUEST_MEMORY, REQUEST_WEIGHT)


class Acceptance:
    """The acceptance model of all drafters and running requests. Memory is bounded: buckets are
    a fixed grid, requests are dropped by `forget` (and, failing that, oldest first).

    The factors of all requests on the odds lie in one table, since planning reads many at once;
    for more than a few drafts the odds of all buckets do too."""

    def __init__(self) -> None:
        self._drafters: dict[str, DrafterRates] = {}
        self._requests: OrderedDict[tuple[int, str], _Pair] = OrderedDict()
        self._free_slots: list[int] = []
        self._factors = array("d", [1.0]) * (2 * (MAX_REQUESTS + 2))
        self._factor_table = np.frombuffer(self._factors).reshape(2, -1)
        self._overall = Counts(DRAFTER_MEMORY)
        self._buckets = Counts(BUCKET_MEMORY)
        self._kinds = np.zeros(0, np.intp)
        self._parents = np.zeros((0, POSITIONS))
        self._odds = np.zeros((POSITIONS, 0))
        self._planned = np.zeros((0, POSITIONS))
        self._before: dict[int, list[float]] = {}
        self._many = self._settled = False

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
            curve = self._expected(row, seen)
            pair.first.learn(curve[0], accepted > 0)
            self._factors[pair.slot] = pair.first.odds
            if seen > 1:
                pair.deeper.learn_run(curve, accepted, seen)
                self._factors[MAX_REQUESTS + 2 + pair.slot] = pair.deeper.odds
        rates.news.append((accepted, seen, row))
        self._buckets.learn(row, accepted, seen)
        self._settled = False

    def _expected(self, row: int, length: int) -> list[float]:
        """a_1 .. a_length or more of a bucket as planned with, before this step's news."""
        if self._many and row < len(self._planned):
            return self._planned[row, :length].tolist()
        found = self._before.get(row)
        if found is None or len(found) < length:
            found = self._before[row] = self._curve(row, max(length, FIRST_LENGTH))
        return found

    def _curve(self, row: int, length: int) -> list[float]:
        """a_1 .. a_length of a bucket."""
        at, found = row * POSITIONS, []
        hits, trials = self._buckets.accepted, self._buckets.reached
        parents = self._parents[self._kinds.item(row), :length].tolist()
        for k, parent in enumerate(parents, at):
            rate = (parent * BUCKET_WEIGHT + hits[k]) / (trials[k] + BUCKET_WEIGHT)
            found.append(min(max(rate, LOWEST), HIGHEST))
        return found

    def _pair(self, request: int, drafter: str) -> _Pair:
        if len(self._requests) >= MAX_REQUESTS:
            self._drop(*next(iter(self._requests)))
        slot = self._free_slots.pop() if self._free_slots else len(self._requests) + 1
        pair = self._requests[request, drafter] = _Pair(slot)
        self._drafters[drafter].slots[request] = slot
        return pair

    def _drop(self, request: int, drafter: str) -> None:
        pair = self._requests.pop((request, drafter), None)
        if pair is not None:
            del self._drafters[drafter].slots[request]
            self._free_slots.append(pair.slot)
            self._factors[pair.slot] = self._factors[MAX_REQUESTS + 2 + pair.slot] = 1.0

    def forget(self, request: int) -> None:
        for drafter in self._drafters:
            self._drop(request, drafter)

    def forget_drafter(self, drafter: str) -> None:
        """Drop what was learned of a drafter; its rows stay for the next one of that name."""
        table = self._drafters.get(drafter)
        if table is None:
            return
        for key in [key for key in self._requests if key[1] == drafter]:
            self._drop(*key)
        for row in table.rows.values():
            self._buckets.clear(row)
        self._overall.clear(table.overall)
        table.first = Correction(DRAFTER_MEMORY, DRAFTER_WEIGHT)
        table.news.clear()
        table.stale, self._settled = True, False

    # --- reading ------------------------------------------------------------------------------

    def survivals(self, drafts: Sequence[Drafts], length: int) -> Table:
        """S_1 .. S_length of one possible draft per row, float64 [n, length]: S_k = a_1 ... a_k,
        the chance that position k is accepted. In memory position by position."""
        rates = self._rates(drafts, min(length, POSITIONS))
        if length > POSITIONS:
            rates = np.pad(rates, ((0, length - POSITIONS), (0, 0)), mode="edge")
        return np.multiply.accumulate(rates, axis=0, out=rates).T

    def _rates(self, drafts: Sequence[Drafts], length: int) -> Table:
        """a_1 .. a_length for each request's next draft, float64 [length <= POSITIONS, n]."""
        rows: list[int] = []
        slots: list[int] = []
        for drafter, requests, features in drafts:
            rates = self._drafters.get(drafter) or self._drafter(drafter)
            # The same few features come again and again, and an identity is fast to look up.
            try:
                rows += map(rates.known.__getitem__, map(id, features))
            except KeyError:
                del rows[len(slots) :]
                rows += self._looked_up(rates, features)
            slots += map(rates.slots.__getitem__, requests)
        self._before.clear()
        if len(rows) <= FEW:
            self._refresh_all()
            each = [self._rates_of(*one, length) for one in zip(rows, slots, strict=True)]
            return np.array(each).T.copy()
        self._many = True
        self._build_table()
        first, deeper = self._factor_table.take(slots, 1)
        found = self._odds[:length].take(rows, 1)
        found[0] *= first
        found[1:] *= deeper
        found /= found + 1.0
        return found

    def _rates_of(self, row: int, slot: int, length: int) -> list[float]:
        """a_1 .. a_length of a draft by itself."""
        found, deeper = self._curve(row, length), self._factors[MAX_REQUESTS + 2 + slot]
        first = shift(found[0], self._factors[slot])
        if deeper == 1.0:
            return [first, *found[1:]]
        return [first, *[rate * deeper / (1.0 - rate + rate * deeper) for rate in found[1:]]]

    def settle(self) -> None:
        """A step was learned from: the table is brought up to date now, if the last plan needed it,
        so that the next one finds it so."""
        if self._many:
            self._build_table()
            self._many = False

    def _build_table(self) -> None:
        if self._settled:
            return
        self._refresh_all()
        rows = self._buckets.rows
        accepted, reached = self._buckets.tables()
        rates = self._parents.take(self._kinds[:rows], 0)
        rates *= BUCKET_WEIGHT
        rates += accepted[:rows]
        rates /= reached[:rows] + BUCKET_WEIGHT
        np.maximum(rates, LOWEST, out=rates)
        np.minimum(rates, HIGHEST, out=rates)
        self._planned = rates
        self._odds = np.ascontiguousarray((rates / (1.0 - rates)).T)
        self._settled = True

    def _refresh_all(self) -> None:
        for table in self._drafters.values():
            if table.stale or len(table.news) >= table.patience:
                self._refresh(table)

    def _looked_up(self, rates: DrafterRates, features: Sequence[Features]) -> list[int]:
        """The rows of features of which some are not known yet."""
        if len(rates.known) > MOST_KNOWN:
            rates.known.clear()
            rates.held.clear()
        for one in features:
            if id(one) not in rates.known:
                rates.known[id(one)] = self._row(rates, one)
                rates.held.append(one)  # an identity is one's own only as long as one lives
        return [rates.known[id(one)] for one in features]

    def _refresh(self, table: DrafterRates) -> None:
        """The drafter's rates with the news. An unobserved position reads the one before it."""
        self._take_news(table)
        self._settled = False
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
        found, table.news, table.stale, self._settled = table.news, [], True, False
        table.first.learn_many(
            [PRIORS[self._kinds.item(row) % len(PRIORS)] for _, seen, row in found if seen],
            sum(accepted > 0 for accepted, _, _ in found),
        )
        self._overall.learn_many(table.overall, [a for a, _, _ in found], [s for _, s, _ in found])

    def rates(self, request: int, drafter: str, features: Features, length: int) -> list[float]:
        """a_1 .. a_length for the request's next draft."""
        found = self._rates([(drafter, [request], [features])], min(length, POSITIONS))
        found = found[:, 0].tolist()
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
            self._settled = False
            kind = rates.number * len(PRIORS) + match
            self._kinds = np.append(self._kinds, np.intp(kind))
            if match and rates.deeper != DEEPER:
                rates.deeper, rates.stale = DEEPER, True
        return row
