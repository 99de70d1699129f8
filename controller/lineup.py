"""The batch sorted by who decides: nobody drafts, a length is given, or the controller is free."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import numpy as np

from controller.acceptance import Acceptance
from controller.contract import BatchView, Features, Offer, RequestView, Setting, Wish
from controller.cost import CostModel
from controller.mixing import Pass, chained, mix, pick, read_tails
from controller.planner import Choices, drafting_ms
from controller.precedence import rule_for

NO_WISH = Wish()
NOTHING = Choices([], [], np.zeros((0, 1)), np.zeros(0, np.intp), {})


@dataclass(slots=True)
class Lineup:
    """fixed: places in `all` of choices with the length asked for, not yet capped by the room.
    free: one choice per request whose D is the controller's. all: these and the requests that a
    guard holds back. forced and blocked count requests that decide for themselves or are stood
    down."""

    all: Choices
    fixed: list[tuple[int, int]]
    free: Choices
    forced: int
    blocked: int

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
    found = _Found(batch, offers, setting, enabled)
    choices = found.choices(acceptance, cost)
    spans = found.spans
    open_spans = [(begin, end) for begin, end, length in spans if length is None]
    shared: Pass | None = None
    if len(open_spans) == len(choices):
        picks = range(len(choices))
    else:
        picks = pick(choices, open_spans, price, row_price)
    if models and open_spans:
        known = read_tails(acceptance, [name for name in tails if name in enabled])
        mixed = mix(choices, open_spans, found.room, models, known, price, row_price)
        picks, shared = mixed.picked, mixed.shared
    fixed: list[tuple[int, int]] = []
    every: list[int] = []
    free: list[int] = []
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
        else:
            free.append(place)
    chosen = choices if len(every) == len(choices) else choices.take(every)
    undecided = chosen if len(free) == len(every) else choices.take(free)
    if shared is not None and free:
        undecided = chained(undecided, shared, [found.room[i] for i in free])
    return Lineup(chosen, fixed, undecided, found.forced, blocked)


class _Found:
    """The usable offers, request by request. spans: (begin, end, length asked for) of each
    request that has any; None leaves the length to the controller. room: by offer, how many tokens
    may be drafted with a tail, 0 where the drafter was asked for by name."""

    def __init__(
        self,
        batch: BatchView,
        offers: Sequence[Offer],
        setting: Setting,
        enabled: Container[str],
    ) -> None:
        by_request: dict[int, list[Offer]] = {}
        for offer in offers:
            if offer.drafter in enabled and offer.max_length > 0:
                by_request.setdefault(offer.request, []).append(offer)
        self.forced = 0
        self.spans: list[tuple[int, int, int | None]] = []
        self._places: list[int] = []
        self._views: list[RequestView] = []
        self._offers: list[Offer] = []
        self._caps: list[int] = []
        self.room: list[int] = []
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
                if rule.drafter is None or rule.drafter == offer.drafter:
                    self._places.append(i)
                    self._views.append(request)
                    self._offers.append(offer)
                    self._caps.append(min(cap, offer.max_length))
                    self.room.append(cap if rule.drafter is None else 0)
            if len(self._offers) > begin:
                self.spans.append((begin, len(self._offers), rule.length))

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
        return Choices(self._places, names, survival, longest, prices)
