"""Colours of the console: one colour per drafter and token kind, the same on every page."""

from __future__ import annotations

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
