"""Conditional acceptance per drafter, position and context, learned without bias under a moving D.

Kaplan-Meier counts: position k is counted only when it was reached and verified, so
`accepted / reached` estimates a_k = P(k accepted | 1..k-1 accepted) whatever D was. Counts are
discounted. Levels, each shrunk to the one before: prior by match length, drafter
(drafter_rates.py), bucket (bucket_rates.py), tenant and request (request_odds.py, corrections of
the odds).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import mul

import numpy as np

from controller.bucket_rates import BucketRates
from controller.buckets import Buckets
from controller.choices import Table
from controller.contract import Features, RequestView
from controller.correction import shift
from controller.counts import POSITIONS, Counts
from controller.drafter_rates import DRAFTER_MEMORY, MOST_WAITING, DrafterRates
from controller.request_odds import DEEPER, RequestOdds

FEW = 4
"""So many drafts are priced one by one; for more, a table of all buckets is kept."""

Drafts = tuple[str, Sequence[int], Sequence[Features]]
"""Possible drafts of one drafter: its name, and for each the request and its features."""


@dataclass(slots=True)
class _Known:
    """A drafter: its number among the buckets' drafters, its buckets and its own rates."""

    number: int
    buckets: Buckets
    rates: DrafterRates


class Acceptance:
    """The acceptance model of all drafters and running requests. Memory is bounded: buckets are
    a fixed grid, requests are dropped by `forget` (and, failing that, oldest first)."""

    def __init__(self) -> None:
        self._drafters: dict[str, _Known] = {}
        self._all = Counts(DRAFTER_MEMORY)
        self._buckets = BucketRates()
        self._odds = RequestOdds()

    # --- learning -----------------------------------------------------------------------------

    def learn(
        self,
        request: int,
        drafter: str,
        features: Features,
        drafted: int,
        accepted: int,
        censored: bool = False,
        chances: Sequence[float] = (),
    ) -> None:
        """Credit one verified or shadow draft. `censored`: the text ended inside the draft, so
        position accepted + 1 counts neither way. chances: that each verified position had of being
        accepted, where they are known. They are what is counted then: the same mean, with less
        variance."""
        if drafted <= 0:
            return
        seen = accepted + (accepted < drafted and not censored)
        if seen > POSITIONS:
            seen = POSITIONS
            accepted = min(accepted, seen)
        if chances:
            chances = chances[:seen] if len(chances) >= seen else ()
        known = self._drafters.get(drafter) or self._drafter(drafter)
        buckets = self._buckets
        row = known.buckets.row(features)
        first = second = 0.0
        if seen:
            expected = buckets.expected(row, seen)
            first, second = self._odds.learn(request, drafter, expected, accepted, seen, chances)
        news = known.rates.news
        news.append((accepted, seen, buckets.priors[row], first, second, chances))
        buckets.learn(row, accepted, seen, chances)
        if len(news) >= MOST_WAITING:
            known.rates.take_news()
            self._cut(known)
            buckets.begin_plan()

    def meet(self, requests: Sequence[RequestView]) -> None:
        """Whose these requests are: a new one starts as its tenant's others did."""
        self._odds.meet(requests)

    def settle(self) -> None:
        """A step was learned from: the table is brought up to date now, if the last plan needed it,
        so that the next one finds it so."""
        if self._buckets.planned:
            self._refresh()
            self._buckets.settle()
            self._buckets.planned = False

    def forget(self, request: int) -> None:
        self._odds.forget(request)

    def forget_drafter(self, drafter: str) -> None:
        """Drop what was learned of a drafter; its rows stay for the next one of that name."""
        known = self._drafters.get(drafter)
        if known is None:
            return
        self._odds.forget_drafter(drafter)
        for row in known.buckets.rows:
            self._buckets.clear(row)
        known.rates.forget()

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
            known = self._drafters.get(drafter) or self._drafter(drafter)
            rows += known.buckets.find(features)
            slots += map(self._odds.slots(drafter).__getitem__, requests)
        self._buckets.begin_plan()
        self._refresh()
        if len(rows) <= FEW:
            each = [self._rates_of(*one, length) for one in zip(rows, slots, strict=True)]
            return np.array(each).T.copy()
        self._buckets.planned = True
        self._buckets.settle()
        first, deeper = self._odds.table.take(slots, 1)
        found = self._buckets.odds[:length].take(rows, 1)
        found[0] *= first
        found[1:] *= deeper
        found /= found + 1.0
        return found

    def _rates_of(self, row: int, slot: int, length: int) -> list[float]:
        """a_1 .. a_length of a draft by itself."""
        found, factors = self._buckets.curve(row, length), self._odds.factors
        first, deeper = shift(found[0], factors[slot]), factors[DEEPER + slot]
        if deeper == 1.0:
            return [first, *found[1:]]
        return [first, *[rate * deeper / (1.0 - rate + rate * deeper) for rate in found[1:]]]

    def _refresh(self) -> None:
        for known in self._drafters.values():
            if known.rates.due:
                known.rates.write(self._buckets.parents(known.number))
                self._cut(known)

    def _cut(self, known: _Known) -> None:
        """Where the drafter's content has changed, its buckets keep little of what was before."""
        for positions in known.rates.take_changes():
            self._buckets.cut(known.buckets.rows, positions)

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
        known = self._drafter(drafter)
        return known.rates.typical(length, len(known.buckets) > 0)

    def evidence(self, drafter: str) -> float:
        """Discounted number of drafts seen of the drafter."""
        return self._drafter(drafter).rates.evidence

    def report(self) -> dict[str, object]:
        """Per drafter: discounted reached and accepted and the rate, by position."""
        return {
            name: {
                "positions": known.rates.report(),
                "buckets": len(known.buckets),
                "resets": known.rates.resets,
            }
            for name, known in self._drafters.items()
        }

    # --- drafters -----------------------------------------------------------------------------

    def _drafter(self, name: str) -> _Known:
        known = self._drafters.get(name)
        if known is None:
            number, rates = self._buckets.add_drafter(), DrafterRates(self._all)
            buckets = Buckets(partial(self._add_row, number, rates))
            known = self._drafters[name] = _Known(number, buckets, rates)
            rates.write(self._buckets.parents(number))
        return known

    def _add_row(self, number: int, rates: DrafterRates, match: int) -> int:
        if match:
            rates.matches()
        return self._buckets.add_row(number, match)
