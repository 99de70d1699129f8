"""The controller's choice, slowly and plainly: a reference for the fast plan.

Every position of every request is looked at by itself, with nothing but the acceptance's scalar
rates, the cost model's times and the drafters' prices.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.contract import Offer, Plan, RequestView
from controller.controller import AdaptiveController
from controller.planner import MIN_GAIN
from controller.pricing import Price


def chosen(
    controller: AdaptiveController,
    requests: Sequence[RequestView],
    offers: Sequence[Offer],
    price: Price,
) -> dict[int, tuple[Offer, list[float]]]:
    """By request, the offer of the largest surplus at these prices and its S_1, S_2, ..."""
    longest = controller.setting.max_draft_length
    found: dict[int, tuple[Offer, list[float]]] = {}
    for request in requests:
        best = float("-inf")
        for offer in offers:
            if offer.request != request.id:
                continue
            length = min(offer.max_length, request.remaining - 1, longest)
            if length < 1:
                continue
            survival = controller.acceptance.survival(
                request.id, offer.drafter, offer.features, length
            )
            worth = sum(max(s - price.per_row, 0.0) for s in survival)
            worth -= price.per_ms * controller.cost.draft_price(offer.drafter).per_request
            if worth > best:
                best, found[request.id] = worth, (offer, survival)
    return found


def goodput(
    controller: AdaptiveController,
    requests: Sequence[RequestView],
    choice: dict[int, tuple[Offer, list[float]]],
    lengths: dict[int, int],
) -> float:
    """Expected tokens per ms of a step with these lengths."""
    n, context = len(requests), sum(request.context_len for request in requests)
    rows = sum(lengths.values())
    ms = float(controller.cost.verify_curve(n, rows, context)[rows])
    ms += controller.cost.overhead_ms(n, rows > 0)
    drafting: dict[str, list[int]] = {}
    tokens = float(n)
    for request, length in lengths.items():
        if length:
            offer, survival = choice[request]
            tokens += sum(survival[:length])
            drafting.setdefault(offer.drafter, []).append(length)
    for name, found in drafting.items():
        ms += controller.cost.draft_price(name).ms(len(found), max(found))
    return tokens / ms


def best_goodput(
    controller: AdaptiveController,
    requests: Sequence[RequestView],
    choice: dict[int, tuple[Offer, list[float]]],
    room: int,
) -> float:
    """Of all prefixes of the positions in order of survival, the best one's goodput; plain decoding
    when it gains too little."""
    positions = sorted(
        (
            (s, request, k)
            for request, (_, survival) in choice.items()
            for k, s in enumerate(survival)
        ),
        key=lambda one: (-one[0], one[2]),
    )
    lengths = dict.fromkeys(choice, 0)
    plain = best = goodput(controller, requests, choice, lengths)
    for _, request, _ in positions[:room]:
        lengths[request] += 1
        best = max(best, goodput(controller, requests, choice, lengths))
    return best if best > plain * (1.0 + MIN_GAIN) else plain


def planned(plan: Plan) -> dict[int, int]:
    """The lengths of a plan, by request."""
    return {one.request: one.length for one in plan.allotments if one.length}
