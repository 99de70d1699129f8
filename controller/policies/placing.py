"""What openings get of the picks made for them: cut to what each allows, and to the room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.contract import NONE, Allotment
from controller.policies.openings import Opening, fit

Pick = tuple[str, int]
"""(drafter, D)."""

PLAIN: Pick = (NONE, 0)


def rows_of(allotted: Mapping[int, Allotment]) -> int:
    """Drafted rows of allotments."""
    return sum(one.length for one in allotted.values())


def place(openings: Sequence[Opening], picks: Sequence[Pick], room: int) -> dict[int, Allotment]:
    """Allotments by place in the batch, cut to what the openings allow and to the room."""
    wanted = [
        min(length, one.longest(drafter)) if drafter in one.offers else 0
        for one, (drafter, length) in zip(openings, picks, strict=True)
    ]
    lengths = fit(wanted, [one.request.id for one in openings], room)
    return {
        one.place: Allotment(one.request.id, drafter, length)
        for one, (drafter, _), length in zip(openings, picks, lengths, strict=True)
        if length > 0
    }


def uncut(
    openings: Sequence[Opening],
    picks: Sequence[Pick],
    allotted: Mapping[int, Allotment],
    longest: int,
) -> frozenset[int]:
    """The requests that got what was picked for them, as far as the drafter offers and the
    operator's longest D reach, which both hold for every step. The others were cut by the end of
    their text, the room, the draft budget or the TPOT target: they say little about the pick."""
    found: list[int] = []
    for one, (drafter, length) in zip(openings, picks, strict=True):
        offer, got = one.offers.get(drafter), allotted.get(one.place)
        wanted = min(length, longest, offer.max_length) if offer is not None else 0
        if wanted == (got.length if got is not None else 0):
            found.append(one.request.id)
    return frozenset(found)
