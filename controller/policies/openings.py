"""Who is left to a policy: the precedence applied, request by request, before it chooses."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from controller.contract import BatchView, Offer, RequestView, Setting
from controller.precedence import rule_for


@dataclass(frozen=True, slots=True)
class Opening:
    """A request that could draft. place: in the batch. offers: by drafter, usable ones only; of
    one drafter alone where the request or the operator named it (asked). length: D where somebody
    set it, None where it is the policy's. cap: the longest draft that limits and the tokens left
    allow, >= 1, before the offer's own."""

    place: int
    request: RequestView
    offers: Mapping[str, Offer]
    asked: bool
    length: int | None
    cap: int

    def who(self, wanted: str | None) -> str | None:
        """The drafter that drafts here when the policy wants `wanted`: the one asked for, or that
        one if it offers, or None."""
        if self.asked:
            return next(iter(self.offers))
        return wanted if wanted in self.offers else None

    def longest(self, drafter: str) -> int:
        """The longest draft of a drafter that offers."""
        return min(self.cap, self.offers[drafter].max_length)


def find_openings(
    batch: BatchView, offers: Sequence[Offer], setting: Setting, enabled: Container[str]
) -> list[Opening]:
    """Requests with a usable offer, in the batch's order. setting: as it holds at this batch."""
    by_request: dict[int, dict[str, Offer]] = {}
    for offer in offers:
        if offer.drafter in enabled and offer.max_length > 0:
            by_request.setdefault(offer.request, {})[offer.drafter] = offer
    found: list[Opening] = []
    for place, request in enumerate(batch.requests):
        mine = by_request.get(request.id)
        cap = min(request.remaining - 1, setting.max_draft_length)
        if mine is None or cap < 1:
            continue
        rule = rule_for(request.wish, setting)
        if rule.length == 0:
            continue
        if rule.drafter is not None:
            named = mine.get(rule.drafter)
            if named is None:
                continue
            mine = {rule.drafter: named}
        found.append(Opening(place, request, mine, rule.drafter is not None, rule.length, cap))
    return found


def fit(wanted: Sequence[int], ids: Sequence[int], room: int) -> list[int]:
    """Lengths cut so that their sum is at most `room`: everybody's first token before anybody's
    second; of the last tokens that still fit, those of the smallest request ids. So the order of
    the batch does not count."""
    if sum(wanted) <= room:
        return list(wanted)
    level, used = 0, 0
    while True:
        count = sum(length > level for length in wanted)
        if used + count > room:
            break
        used += count
        level += 1
    found = [min(length, level) for length in wanted]
    more = sorted((i for i, length in enumerate(wanted) if length > level), key=ids.__getitem__)
    for i in more[: max(room - used, 0)]:
        found[i] += 1
    return found
