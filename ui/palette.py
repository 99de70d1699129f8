"""Colours of the console: one colour per drafter and token kind, the same on every page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

DRAFTER_COLOURS: Final[dict[str, str]] = {
    "none": "#8a8f98",
    "ngram": "#2f7ed8",
    "suffix": "#e07b39",
    "draft_model": "#3a9d5d",
    "mtp": "#a05fc0",
}
"""Hex colour by drafter name."""

OTHER_COLOURS: Final = ("#c2558d", "#2a9d9a", "#7a8b2f", "#6b5bd2")
"""Colours for drafters that have none of their own."""

CORRECTION: Final = "#d64545"
BONUS: Final = "#c9a227"

ACCENT: Final = "#2457c5"
INK: Final = "#1b2333"
MUTED: Final = "#5b6475"
LINE: Final = "#dfe4ec"
GOOD: Final = "#1f8a52"
WARNING: Final = "#b26a00"
BAD: Final = "#c43636"


def drafter_colour(name: str) -> str:
    """Hex colour of a drafter; an unknown name always gets the same one of OTHER_COLOURS."""
    known = DRAFTER_COLOURS.get(name)
    return known or OTHER_COLOURS[sum(name.encode()) % len(OTHER_COLOURS)]


def arm_colours(names: Iterable[str]) -> dict[str, str]:
    """Hex colour of each arm of a benchmark: its drafter's (`ngram:4` has that of ngram), lighter
    for each further arm of the same drafter; `auto` is ink."""
    found: dict[str, str] = {}
    used: dict[str, int] = {}
    for name in names:
        own = INK if name == "auto" else drafter_colour(name.split(":", 1)[0])
        found[name] = _lighter(own, used.get(own, 0))
        used[own] = used.get(own, 0) + 1
    return found


def _lighter(colour: str, times: int) -> str:
    """The colour with a third more of white, so many times."""
    part = 1.0 - (2.0 / 3.0) ** min(times, 4)
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(one + (255 - one) * part):02x}" for one in parts)
