"""The batch sorted by who decides: nobody drafts, a length is given, or the controller is free."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controller.acceptance import Acceptance
from controller.contract import BatchView, Features, Offer, RequestView, Setting, Wish
from controller.cost import CostModel
from controller.draft_cost import DraftPrice
from controller.mixing import Pass, chained, mix, pick, read_tails
from controller.planner import Choices, Lengths, Table, drafting_ms
from controller.precedence import FREE, rule_for

NO_WISH = Wish()

COLD_ROWS = 32
"""A drafter that must catch up with more rows is cold."""
TRUST = 8.0
"""So many drafts of a drafter must have been seen before it catches up for everybody; until then
only probes make it."""
HORIZON = 128
"""Catching up is worth its time over so many tokens to come at most: nobody knows where an answer
will end."""

NOTHING = Choices([], [], np.zeros((0, 1)), np.zeros(0, np.intp), {})


@dataclass(slots=True)
class Lineup:
    """fixed: places in `all` of choices with the length asked for, not yet capped by the room.
    free: one choice per request whose D is the controller's. all: these and the requests that a
    guard holds back. forced and blocked count requests that decide for themselves or are stood
    down. offered: every usable offer, not chosen ones too; open: places of those that may be
    tried for requests which leave the choice to the controller."""

    all: Choices
    fixed: list[tuple[int, int]]
    free: Choices
    forced: int
    blocked: int
    offered: Choices
    open: list[int]

    def tried(self) -> list[str]:
        """Drafters that may be tried on a live step."""
        drafters = self.offered.drafters
        return list(dict.fromkeys([drafters[i] for i in self.open]))

    def candidates(self, drafter: str) -> Choices:
        """What the drafter may be tried on."""
        drafters = self.offered.drafters
        return self.offered.take([i for i in self.open if drafters[i] == drafter])

    def place(self, room: int) -> tuple[list[tuple[int, int]], float, float]:
        """The fixed choices (places in `all`) with lengths that fit the room, in the batch's
        order, their expected accepted tokens and their drafting ms."""
        placed: list[tuple[int, int]] = []
        tokens, lengths = 0.0, [0] * len(self.all)
        for i, wanted in self.fixed:
            survival = self.all.survival[i]
            length = min(wanted, self.all.longest.item(i), room)
            if length > 0:
                room -= length
                placed.append((i, length))
                tokens += float(survival[:length].sum())
                lengths[i] = length
        return placed, tokens, drafting_ms(self.all, lengths) if placed else 0.0


def line_up(
    batch: BatchView,
    offers: Sequence[Offer],
    setting: Setting,
    enabled: Container[str],
    acceptance: Acceptance,
    cost: CostModel,
    *,
    price: float,
    row_price: float,
    held: bool,
    blocks: Callable[[int], bool],
    models: Sequence[str] = (),
    tails: Sequence[str] = (),
) -> Lineup:
    """Apply the precedence and the caps. price (tokens per ms) and row_price (tokens per row)
    choose among several drafters of a request. held: the harm guard is active; blocks(request):
    the request is stood down. models: drafters that share a pass. tails: who may continue their
    drafts."""
    found = _Found(batch, offers, setting, enabled, acceptance)
    choices = found.choices(acceptance, cost)
    spans = found.spans
    open_spans = [(begin, end) for begin, end, length in spans if length is None]
    shared: Pass | None = None
    if open_spans and any(name in choices.prices for name in models):
        known = read_tails(acceptance, [name for name in tails if name in enabled])
        mixed = mix(choices, open_spans, found.room, models, known, price, row_price)
        picks, shared = mixed.picked, mixed.shared
    elif len(open_spans) == len(choices):
        picks = range(len(choices))
    else:
        picks = pick(choices, open_spans, price, row_price)
    fixed: list[tuple[int, int]] = []
    every: list[int] = []
    free: list[int] = []
    probed: list[int] = []
    stood_down: set[int] = set()
    blocked, following = 0, iter(picks)
    for begin, end, length in spans:
        if length is not None:
            gains = np.add.reduce(choices.survival[begin:end, :length], axis=1)
            fixed.append((len(every), length))
            every.append(begin + int(gains.argmax()))
            continue
        place = next(following)
        every.append(place)
        if held:
            continue
        if blocks(batch.requests[choices.requests[place]].id):
            blocked += 1
            stood_down.add(choices.requests[place])
        else:
            free.append(place)
            if found.may_try(begin):
                probed.extend(range(begin, end))
    chosen = choices if len(every) == len(choices) else choices.take(every)
    undecided = chosen if len(free) == len(every) else choices.take(free)
    if shared is not None and free:
        undecided = chained(undecided, shared, [found.room[i] for i in free])
    if not held:
        probed += [i for i in found.withheld if choices.requests[i] not in stood_down]
    return Lineup(chosen, fixed, undecided, found.forced, blocked, choices, probed)


def is_known(acceptance: Acceptance, drafter: str) -> bool:
    """Whether enough drafts of the drafter were seen to go by."""
    return acceptance.evidence(drafter) >= TRUST


class _Found:
    """The usable offers, request by request. spans: (begin, end, length asked for) of each
    request that has any; None leaves the length to the controller. room: by offer, how many tokens
    may be drafted with a tail, 0 where the drafter was asked for by name. withheld: places behind
    the spans of offers by drafters that are cold and that too little is known of."""

    def __init__(
        self,
        batch: BatchView,
        offers: Sequence[Offer],
        setting: Setting,
        enabled: Container[str],
        acceptance: Acceptance,
    ) -> None:
        by_request: dict[int, list[Offer]] = {}
        for offer in offers:
            if offer.drafter in enabled and offer.max_length > 0:
                by_request.setdefault(offer.request, []).append(offer)
        self.forced = 0
        self.spans: list[tuple[int, int, int | None]] = []
        self.withheld: range | tuple[int, ...] = ()
        self._places: list[int] = []
        self._views: list[RequestView] = []
        self._offers: list[Offer] = []
        self._caps: list[int] = []
        self.room: list[int] = []
        self._unknown: dict[str, bool] = {}
        self._acceptance = acceptance
        behind: list[tuple[int, RequestView, Offer, int]] = []
        usual = rule_for(NO_WISH, setting)
        for i, request in enumerate(batch.requests):
            wish, rule = request.wish, usual
            if wish.drafter is not None or wish.draft_length is not None or not wish.enabled:
                rule = rule_for(wish, setting)
                self.forced += rule.chosen_by == "request"
            cap = min(request.remaining - 1, setting.max_draft_length)
            if cap < 1 or rule.length == 0:
                continue
            begin = len(self._offers)
            for offer in by_request.get(request.id, ()):
                if offer.catch_up > COLD_ROWS and rule == FREE and self._is_new(offer.drafter):
                    behind.append((i, request, offer, cap))
                elif rule.drafter is None or rule.drafter == offer.drafter:
                    self._add(i, request, offer, cap, rule.drafter is None)
            if len(self._offers) > begin:
                self.spans.append((begin, len(self._offers), rule.length))
        if behind:
            self.withheld = range(len(self._offers), len(self._offers) + len(behind))
            for i, request, offer, cap in behind:
                self._add(i, request, offer, cap, False)

    def _add(self, place: int, view: RequestView, offer: Offer, cap: int, tail: bool) -> None:
        self._places.append(place)
        self._views.append(view)
        self._offers.append(offer)
        self._caps.append(min(cap, offer.max_length))
        self.room.append(cap if tail else 0)

    def _is_new(self, drafter: str) -> bool:
        """Whether too little is known of the drafter to wait for it."""
        found = self._unknown.get(drafter)
        if found is None:
            found = self._unknown[drafter] = not is_known(self._acceptance, drafter)
        return found

    def may_try(self, place: int) -> bool:
        """Whether the offer's request leaves the drafter to the controller."""
        return self.room[place] > 0

    def choices(self, acceptance: Acceptance, cost: CostModel) -> Choices:
        """All of them with their survival."""
        offers, caps = self._offers, self._caps
        if not offers:
            return NOTHING
        names = [offer.drafter for offer in offers]
        features: list[Features] = [offer.features for offer in offers]
        widest, longest = max(caps), np.array(caps, np.intp)
        survival = acceptance.survivals([view.id for view in self._views], names, features, widest)
        if min(caps) < widest:
            survival *= np.arange(widest) < longest[:, None]
        prices = {name: cost.draft_price(name) for name in dict.fromkeys(names)}
        found = Choices(self._places, names, survival, longest, prices)
        rows = [offer.catch_up for offer in offers]
        if any(rows):
            found.catch_up = np.array(rows, np.intp)
            found.charges = self._charges(found.catch_up, survival, names, prices)
        return found

    def _charges(
        self,
        rows: Lengths,
        survival: Table,
        names: Sequence[str],
        prices: Mapping[str, DraftPrice],
    ) -> Table:
        """What catching up costs in each step to come, in ms: spread over the tokens that the
        request may still emit, of which a step makes one and those that are accepted."""
        ms = rows * np.array([prices[name].per_row for name in names])
        tokens = np.array([min(view.remaining, HORIZON) for view in self._views])
        found: Table = ms * np.minimum((1.0 + np.add.reduce(survival, axis=1)) / tokens, 1.0)
        return found
