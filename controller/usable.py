"""The offers of a step that may be used, as arrays, with who decides over each and the caps."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.acceptance import Acceptance, Drafts
from controller.choices import Choices, Lengths, nothing, own_ms
from controller.contract import BatchView, Offer, RequestView, Setting, Wish
from controller.cost import CostModel
from controller.precedence import FREE, Rule, rule_for
from controller.unmeasured import longest

NO_WISH = Wish()

COLD_ROWS = 32
"""A drafter that must catch up with more rows is cold."""
TRUST = 8.0
"""So many drafts of a drafter must have been seen before it catches up for everybody; until then
only probes make it."""
HORIZON = 128
"""Catching up is worth its time over so many tokens to come at most: nobody knows where an answer
will end."""
BY_CONTROLLER = -1

ByDrafter = Mapping[str, Sequence[Offer]]
Rules = Mapping[int, Rule]
"""By place in the batch, the rule of each request with a wish of its own."""


@dataclass(slots=True)
class Usable:
    """choices: every usable offer. room: by choice, how many tokens its request may draft with a
    tail, 0 where it asked for the drafter by name. withheld: by choice, whether it is of a drafter
    that is cold and that too little is known of; None for nowhere. wanted: by request, the length
    that somebody asked for or BY_CONTROLLER; None when the controller picks all. forced: requests
    that decide for themselves."""

    choices: Choices
    room: Lengths
    withheld: NDArray[np.bool_] | None
    wanted: Lengths | None
    forced: int


def is_known(acceptance: Acceptance, drafter: str) -> bool:
    """Whether enough drafts of the drafter were seen to go by."""
    return acceptance.evidence(drafter) >= TRUST


def usable(
    batch: BatchView,
    offers: Sequence[Offer],
    setting: Setting,
    enabled: Container[str],
    acceptance: Acceptance,
    cost: CostModel,
) -> Usable:
    """Apply the precedence and the caps: the offer, `remaining - 1`, the operator's limit; where
    nothing was measured also the guidelines', unless somebody asked for a length."""
    requests, usual = batch.requests, rule_for(NO_WISH, setting)
    ids, _, _, remaining, _, _, wishes = zip(*requests, strict=True)
    rules = {
        i: rule_for(wish, setting)
        for i, wish in enumerate(wishes)
        if wish.drafter is not None or wish.draft_length is not None or not wish.enabled
    }
    forced = sum([rule.chosen_by == "request" for rule in rules.values()])
    place_of = dict(zip(ids, range(len(ids)), strict=True))
    most = setting.max_draft_length
    limits = [left - 1 if left <= most else most for left in remaining]
    decided = rules or usual != FREE
    bound = longest(cost, len(requests))
    if bound is not None:
        for i, limit in enumerate(limits):
            if rules.get(i, usual).length is None:
                limits[i] = min(limit, bound)
    found = _by_drafter(offers, enabled)
    if decided:
        found = _only(found, lambda offer: _allows(rules, usual, place_of, offer))
    columns = _columns(found, place_of, limits)
    if columns is None:
        return Usable(nothing(), np.zeros(0, np.intp), None, None, forced)
    choices = _choices(columns, requests, acceptance, cost)
    room, wanted, withheld = np.array(columns.room, np.intp), None, None
    if decided:
        each = [rules.get(i, usual) for i in range(len(requests))]
        if any([rule.length is not None for rule in each]):
            lengths = [BY_CONTROLLER if rule.length is None else rule.length for rule in each]
            wanted = np.array(lengths, np.intp)
        named = np.array([rule.drafter is not None for rule in each])
        room = np.where(named[choices.requests], 0, room)
    if choices.catch_up is not None:
        free = np.array([rules.get(i, usual) == FREE for i in range(len(requests))])
        new = np.array([not is_known(acceptance, name) for name in choices.names])
        withheld = (choices.catch_up > COLD_ROWS) & free[choices.requests] & new[choices.who]
        room = np.where(withheld, 0, room)
        withheld = withheld if withheld.any() else None
    return Usable(choices, room, withheld, wanted, forced)


def _by_drafter(offers: Sequence[Offer], enabled: Container[str]) -> ByDrafter:
    """The offers of each drafter that may draft. They mostly come drafter by drafter already."""
    names = [offer.drafter for offer in offers]
    found: dict[str, Sequence[Offer]] = {}
    for name in dict.fromkeys(names):
        if name in enabled:
            begin, count = names.index(name), names.count(name)
            together = names[begin : begin + count].count(name) == count
            found[name] = (
                offers[begin : begin + count]
                if together
                else [offer for offer in offers if offer.drafter == name]
            )
    return found


def _only(offers: ByDrafter, kept: Callable[[Offer], bool]) -> ByDrafter:
    """Those offers alone, without drafters that have none left."""
    found = {name: [one for one in mine if kept(one)] for name, mine in offers.items()}
    return {name: mine for name, mine in found.items() if mine}


def _allows(rules: Rules, usual: Rule, place_of: Mapping[int, int], offer: Offer) -> bool:
    rule = rules.get(place_of.get(offer.request, -1), usual)
    return rule.length != 0 and rule.drafter in (None, offer.drafter)


class _Columns(NamedTuple):
    """The offers column by column. drafts and counts: by drafter; the others by offer: the
    request's place in the batch, how many tokens it may draft with a tail, and without, and the
    rows of text to compute first. Lists of numbers, because most batches are small."""

    drafts: list[Drafts]
    counts: list[int]
    places: list[int]
    room: list[int]
    longest: list[int]
    catch_up: list[int]


def _columns(
    offers: ByDrafter, place_of: Mapping[int, int], limits: Sequence[int]
) -> _Columns | None:
    """limits: how many tokens each request of the batch may draft. Offers for nobody in it, and
    what may not draft at all, are left out; None when nothing is left."""
    drafts: list[Drafts] = []
    places: list[int] = []
    offered: list[int] = []
    catch_up: list[int] = []
    for name, mine in offers.items():
        requests, _, lengths, features, rows = zip(*mine, strict=True)
        drafts.append((name, requests, features))
        try:
            places += map(place_of.__getitem__, requests)
        except KeyError:
            here = _only(offers, lambda offer: offer.request in place_of)
            return _columns(here, place_of, limits)
        offered += lengths
        catch_up += rows
    if not places:
        return None
    room = [limits[place] for place in places]
    longest = [a if a < b else b for a, b in zip(room, offered, strict=True)]
    if min(longest) < 1:
        can = _only(offers, lambda one: min(one.max_length, limits[place_of[one.request]]) > 0)
        return _columns(can, place_of, limits)
    counts = [len(mine) for mine in offers.values()]
    return _Columns(drafts, counts, places, room, longest, catch_up)


def _choices(
    columns: _Columns, requests: Sequence[RequestView], acceptance: Acceptance, cost: CostModel
) -> Choices:
    """All of them with their survival."""
    names = tuple([name for name, _, _ in columns.drafts])
    who, places = np.arange(len(names)).repeat(columns.counts), np.array(columns.places, np.intp)
    longest = np.array(columns.longest, np.intp)
    widest, shortest = max(columns.longest), min(columns.longest)
    survival = acceptance.survivals(columns.drafts, widest)
    if shortest < widest:
        survival.T[shortest:] *= np.arange(shortest, widest)[:, None] < longest
    prices = [cost.draft_price(name) for name in names]
    catch_up = charges = None
    if any(columns.catch_up):
        catch_up = np.array(columns.catch_up, np.intp)
        ms = catch_up * np.array([price.per_row for price in prices])[who]
        left = np.array([min(one.remaining, HORIZON) for one in requests])[places]
        # What catching up costs in each step to come: spread over the tokens that the request may
        # still emit, of which a step makes one and those that are accepted.
        charges = ms * np.minimum((1.0 + np.add.reduce(survival, axis=1)) / left, 1.0)
    own = own_ms(prices, who, charges)
    return Choices(
        places,
        names,
        who,
        survival,
        longest,
        prices,
        own,
        catch_up=catch_up,
        charges=charges,
    )
