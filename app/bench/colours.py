"""Colours of the charts: one for each drafter, as in the console, and of the arms by theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.chat import DRAFTERS

PLAIN: Final = "#8a8f98"
AUTO: Final = "#1b2333"
OTHERS: Final = ("#c2558d", "#2a9d9a", "#7a8b2f", "#6b5bd2")
DASHES: Final = ("", "6 3", "2 3", "8 3 2 3")


def drafter_colour(name: str) -> str:
    """The colour of a drafter, of a chain that of its head."""
    name = name.split("+", 1)[0]
    known = {"none": PLAIN, **DRAFTERS}.get(name)
    return known or OTHERS[sum(name.encode()) % len(OTHERS)]


def arm_colour(name: str) -> str:
    """The colour of an arm: its drafter's."""
    return AUTO if name == "auto" else drafter_colour(name.split(":", 1)[0])


def dashes(colours: Mapping[str, str]) -> dict[str, str]:
    """A stroke pattern for each line of these colours: lines of one colour differ in it."""
    used: dict[str, int] = {}
    found: dict[str, str] = {}
    for name, colour in colours.items():
        found[name] = DASHES[used.get(colour, 0) % len(DASHES)]
        used[colour] = used.get(colour, 0) + 1
    return found
