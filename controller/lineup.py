"""The batch sorted by who decides: nobody drafts, a length is given, or the controller is free."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from controller.acceptance import Acceptance
from controller.barring import bars_of
from controller.choices import Choices, Lengths
from controller.contract import BatchView, Offer, Setting
from controller.cost import CostModel
from controller.mixing import Grid, Mix, chained, mix, read_tails, worth_of
from controller.planner import drafting_ms, surplus
from controller.pricing import Price
from controller.promises import ByKind
from controller.usable import BY_CONTROLLER, Usable, usable

NONE_PROMISED: ByKind = {}


@dataclass(slots=True)
class Lineup:
    """fixed: places in `all` of choices with the length asked for, not yet capped by the room.
    free: one choice per request whose D is the controller's. all: these and the requests that a
    guard holds back. forced and blocked count requests that decide for themselves or are stood
    down. offered: every usable offer, not chosen ones too."""

    all: Choices
    fixed: list[tuple[int, int]]
    free: Choices
    forced: int
    blocked: int
    offered: Choices
    _open: Callable[[], Lengths]

    @property
    def may_try(self) -> bool:
        """Whether any request leaves the choice to the controller."""
        return len(self._open()) > 0 if self.forced or self.blocked else len(self.offered) > 0

    def candidates(self, drafter: str) -> Choices:
        """What the drafter may be tried on: offers for requests that leave the choice to the
        controller."""
        offered = self.offered
        if drafter not in offered.names:
            return offered.take(())
        places = self._open()
        return offered.take(places[offered.who[places] == offered.names.index(drafter)])

    def place(
        self, room: int, cap: int | None = None
    ) -> tuple[list[tuple[int, int]], float, float]:
        """The fixed choices (places in `all`) with lengths that fit the room, in the batch's
        order, their expected accepted tokens and their drafting ms. cap: the most that each may
        have of what was asked for."""
        if not self.fixed:
            return [], 0.0, 0.0
        placed: list[tuple[int, int]] = []
        tokens, lengths = 0.0, np.zeros(len(self.all), np.intp)
        for i, wanted in self.fixed:
            length = min(
                wanted if cap is None else min(wanted, cap), self.all.longest.item(i), room
            )
            if length > 0:
                room -= length
                placed.append((i, length))
                tokens += float(self.all.survival[i, :length].sum())
                lengths[i] = length
        return placed, tokens, drafting_ms(self.all, lengths)


def line_up(
    batch: BatchView,
    offers: Sequence[Offer],
    setting: Setting,
    enabled: Container[str],
    acceptance: Acceptance,
    cost: CostModel,
    *,
    price: Price,
    held: bool,
    down: Container[int],
    blocks: Callable[[int], bool],
    models: Sequence[str] = (),
    tails: Sequence[str] = (),
    promised: ByKind = NONE_PROMISED,
) -> Lineup:
    """Apply the precedence and the caps. price: chooses among several drafters of a request. held:
    the harm guard is active; down: requests that may be stood down, blocks(request): this one is.
    models: drafters that share a pass. tails: who may continue their drafts. promised: the bars at
    which their drafts may end."""
    found = usable(batch, offers, setting, enabled, acceptance, cost)
    choices = found.choices
    if not len(choices):
        return Lineup(choices, [], choices, found.forced, 0, choices, lambda: choices.requests)
    mixed, wanted = _pick(found, batch, enabled, acceptance, models, tails, price, promised)
    places = (mixed.picked >= 0).nonzero()[0]
    every = mixed.picked[places]
    fixed: list[tuple[int, int]] = []
    free = np.arange(len(every))
    if wanted is not None:
        lengths = wanted[places]
        fixed = [(i, lengths.item(i)) for i in (lengths >= 0).nonzero()[0].tolist()]
        free = (lengths < 0).nonzero()[0]
    stood_down: list[int] = []
    if held:
        free = free[:0]
    else:
        ids = [batch.requests[i].id for i in places[free].tolist()] if down else ()
        blocked = [i for i, request in enumerate(ids) if request in down and blocks(request)]
        if blocked:
            stood_down = places[free[blocked]].tolist()
            free = np.delete(free, blocked)
    chosen = choices.take(every)
    undecided = chosen if len(free) == len(every) else chosen.take(free)
    if mixed.shared is not None and len(free):
        undecided = chained(undecided, mixed.shared, found.room[every[free]])
    tried = partial(_open, found, places[free], stood_down, held)
    blocked = len(stood_down)
    return Lineup(chosen, fixed, undecided, found.forced, blocked, choices, tried)


def _pick(
    found: Usable,
    batch: BatchView,
    enabled: Container[str],
    acceptance: Acceptance,
    models: Sequence[str],
    tails: Sequence[str],
    price: Price,
    promised: ByKind,
) -> tuple[Mix, Lengths | None]:
    """The choice of each request, and the lengths that somebody asked for."""
    choices, wanted, n = found.choices, found.wanted, len(batch.requests)
    modelled = any([name in choices.names for name in models])
    if n == 1 and wanted is None and found.withheld is None and not modelled:
        return Mix(np.array([surplus(choices, price).argmax()]), None), None
    usual = None if found.withheld is None else np.flatnonzero(~found.withheld)
    given: Lengths | None = None
    if wanted is not None:
        places = np.arange(len(choices)) if usual is None else usual
        asked = wanted[choices.requests[places]] != BY_CONTROLLER
        usual, given = places[~asked], places[asked]
    grid = Grid(choices, n, usual)
    if modelled:
        known = read_tails(acceptance, [name for name in tails if name in enabled])
        bars = bars_of(models, promised, batch.requests) if promised else {}
        mixed = mix(grid, found.room, models, known, price, bars)
    elif choices.alone:
        mixed = Mix(grid.places[0], None)
    else:
        mixed = Mix(grid.best(worth_of(choices, price)), None)
    if wanted is not None and given is not None:
        _pick_given(mixed.picked, choices, given, wanted)
    return mixed, wanted


def _pick_given(picked: Lengths, choices: Choices, places: Lengths, wanted: Lengths) -> None:
    """For requests with a length given, the choice with the most expected tokens at it."""
    best: dict[int, float] = {}
    for j in places.tolist():
        request = choices.requests.item(j)
        gain = float(np.add.reduce(choices.survival[j, : wanted.item(request)]))
        if gain > best.get(request, -1.0):
            best[request], picked[request] = gain, j


def _open(found: Usable, free: Lengths, stood_down: Sequence[int], held: bool) -> Lengths:
    """Which choices may be tried: of requests that are free in drafter and length, and of cold
    drafters. Rarely asked for, so made only then."""
    choices = found.choices
    if held:
        return choices.requests[:0]
    allowed = found.room > 0
    if len(free) < np.count_nonzero(np.bincount(choices.requests)):
        mine = np.zeros(int(np.maximum.reduce(choices.requests)) + 1, bool)
        mine[free] = True
        allowed &= mine[choices.requests]
    if found.withheld is not None:
        withheld = found.withheld
        if stood_down:
            withheld = withheld & ~np.isin(choices.requests, stood_down)
        allowed |= withheld
    return np.flatnonzero(allowed)
