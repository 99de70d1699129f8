"""The batch sorted by who decides: nobody drafts, a length is given, or the controller is free."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from controller.acceptance import Acceptance
from controller.contract import BatchView, Offer, Setting
from controller.cost import CostModel
from controller.planner import Choice, pick
from controller.precedence import rule_for


@dataclass(slots=True)
class Lineup:
    """fixed: choices with the length asked for, not yet capped by the room. free: one choice per
    request whose D is the controller's. all: these and the requests that a guard holds back.
    forced and blocked count requests that decide for themselves or are stood down."""

    fixed: list[tuple[Choice, int]] = field(default_factory=list)
    free: list[Choice] = field(default_factory=list)
    all: list[Choice] = field(default_factory=list)
    forced: int = 0
    blocked: int = 0

    def place(self, room: int) -> tuple[list[tuple[Choice, int]], float, float]:
        """The fixed choices with lengths that fit the room, in the batch's order, their expected
        accepted tokens and their drafting ms."""
        placed: list[tuple[Choice, int]] = []
        tokens = draft_ms = 0.0
        for choice, wanted in self.fixed:
            length = min(wanted, len(choice.survival), room)
            if length > 0:
                room -= length
                placed.append((choice, length))
                tokens += sum(choice.survival[:length])
                draft_ms += choice.draft_ms
        return placed, tokens, draft_ms


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
) -> Lineup:
    """Apply the precedence and the caps. price (tokens per ms) and row_price (tokens per row)
    choose among several drafters of a request. held: the harm guard is active; blocks(request):
    the request is stood down."""
    by_request: dict[int, list[Offer]] = {}
    for offer in offers:
        if offer.drafter in enabled and offer.max_length > 0:
            by_request.setdefault(offer.request, []).append(offer)
    lineup = Lineup()
    for i, request in enumerate(batch.requests):
        rule = rule_for(request, setting)
        lineup.forced += rule.chosen_by == "request"
        cap = min(request.remaining - 1, setting.max_draft_length)
        if cap < 1 or rule.length == 0:
            continue
        choices = [
            Choice(
                i,
                offer.drafter,
                acceptance.survival(
                    request.id, offer.drafter, offer.features, min(cap, offer.max_length)
                ),
                cost.draft_ms(offer.drafter),
            )
            for offer in by_request.get(request.id, ())
            if rule.drafter in (None, offer.drafter)
        ]
        if not choices:
            continue
        if rule.length is not None:
            length = rule.length
            best = max(choices, key=lambda c: sum(c.survival[:length]))
            lineup.fixed.append((best, length))
            lineup.all.append(best)
            continue
        best = pick(choices, price, row_price)
        lineup.all.append(best)
        if held:
            continue
        if blocks(request.id):
            lineup.blocked += 1
        else:
            lineup.free.append(best)
    return lineup
