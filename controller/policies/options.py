"""Reads a policy's options: bounded, with errors that say which option, what it got, what it takes.

Tables are written in one line: `4:4,8:2` is 4 up to 4, then 2 up to 8; `1-16:3` is a range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

MOST_OPTIONS = 32
LONGEST_TEXT = 4096
LONGEST_VALUE = 1024
LONGEST_NAME = 64
MOST_ENTRIES = 64
LARGEST_BATCH = 1_000_000
LONGEST_DRAFT = 64
AUTO = "auto"
"""As a drafter: a model where there is one, else the first drafter."""


class OptionError(ValueError):
    """An option that the policy does not have, or a value that it does not take. The text begins
    with the option's name and a colon."""


def parse_options(text: str) -> dict[str, object]:
    """Options written as `KEY=VALUE KEY=VALUE`. OptionError for anything else."""
    if len(text) > LONGEST_TEXT:
        raise OptionError(f"options: at most {LONGEST_TEXT} characters may be given")
    found: dict[str, object] = {}
    for part in text.split():
        name, equals, value = part.partition("=")
        if not equals or not name or not value:
            raise OptionError(
                f"{name[:LONGEST_NAME]}: options are written as KEY=VALUE, with spaces in between"
            )
        if name in found:
            raise OptionError(f"{name[:LONGEST_NAME]}: is given twice")
        found[name] = value
    return found


class Options:
    """Takes options by name, each with its default, and remembers what is in force."""

    def __init__(self, policy: str, given: Mapping[str, object]) -> None:
        if len(given) > MOST_OPTIONS:
            raise OptionError(f"options: at most {MOST_OPTIONS} may be given")
        self._policy = policy
        self._left = dict(given)
        self.in_force: dict[str, object] = {}

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number from low to high."""
        found = self._number(name, default, f"a whole number from {low} to {high}")
        if not low <= found <= high or found != int(found):
            raise self._wrong(name, f"{found:g}", f"a whole number from {low} to {high}")
        self.in_force[name] = int(found)
        return int(found)

    def real(self, name: str, default: float, low: float, high: float) -> float:
        """A number from low to high."""
        wanted = f"a number from {low:g} to {high:g}"
        found = self._number(name, default, wanted)
        if not low <= found <= high:
            raise self._wrong(name, f"{found:g}", wanted)
        self.in_force[name] = found
        return found

    def word(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """One of the allowed words."""
        found = self._text(name, default)
        if found not in allowed:
            raise self._wrong(name, found, f"one of {', '.join(allowed)}")
        return found

    def drafter(self, name: str = "drafter", default: str = AUTO) -> str:
        """A drafter's name. It may be one that is loaded later."""
        found = self._text(name, default)
        if not re.fullmatch(r"[\w.-]{1,64}", found):
            raise self._wrong(name, found, f"a drafter's name, or {AUTO}")
        return found

    def table(self, name: str, default: str, largest: int) -> list[tuple[int, int]]:
        """`UP_TO:VALUE,...` as (up to, value), the first rising, the second from 0 to largest."""
        text = self._text(name, default)
        wanted = f"UP_TO:VALUE,... such as {default}, rising, values from 0 to {largest}"
        found = [
            (int(match[1]), int(match[2])) for match in self._entries(name, text, PAIR, wanted)
        ]
        self._check(name, text, [one for one, _ in found], [two for _, two in found], largest)
        return found

    def ranges(self, name: str, default: str, largest: int) -> list[tuple[int, int, int]]:
        """`FIRST-LAST:VALUE,...` as (first, last, value), both ends included, from 1 on, rising,
        without overlap; values from 0 to largest."""
        text = self._text(name, default)
        wanted = f"FIRST-LAST:VALUE,... such as {default}, values from 0 to {largest}"
        found = [
            (int(match[1]), int(match[2]), int(match[3]))
            for match in self._entries(name, text, RANGE, wanted)
        ]
        ends = [end for first, last, _ in found for end in (first, last)]
        if found[0][0] != 1:
            raise OptionError(f"{name}: the first range must start at 1, not {found[0][0]}")
        if any(first > last for first, last, _ in found) or any(
            before[1] >= after[0] for before, after in pairwise(found)
        ):
            raise OptionError(f"{name}: the ranges must rise and not overlap: {text}")
        if ends[-1] > LARGEST_BATCH:
            raise OptionError(f"{name}: a batch is at most {LARGEST_BATCH}")
        if any(value > largest for _, _, value in found):
            raise OptionError(f"{name}: each value must be 0 to {largest}")
        return found

    def numbers(self, name: str, default: str, largest: int) -> list[int]:
        """`1,2,4`, rising, from 1 to largest."""
        text = self._text(name, default)
        wanted = f"rising whole numbers from 1 to {largest}, such as {default}"
        found = [int(match[0]) for match in self._entries(name, text, NUMBER, wanted)]
        if found != sorted(set(found)) or not 1 <= found[0] <= found[-1] <= largest:
            raise self._wrong(name, text, wanted)
        return found

    def text(self, name: str, default: str) -> str:
        """Free text, for a notation of the policy's own."""
        return self._text(name, default)

    def finish(self) -> None:
        """OptionError when there are options that nobody took."""
        for name in self._left:
            known = ", ".join(self.in_force) or "no options"
            raise OptionError(
                f"{name[:LONGEST_NAME]}: is no option of policy {self._policy}; it has {known}"
            )

    # --- parts --------------------------------------------------------------------------------

    def _number(self, name: str, default: float, wanted: str) -> float:
        value = self._left.pop(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise self._wrong(name, value, wanted)
        try:
            found = float(value)
        except (ValueError, OverflowError):
            raise self._wrong(name, value, wanted) from None
        if not math.isfinite(found):
            raise self._wrong(name, value, wanted)
        return found

    def _text(self, name: str, default: str) -> str:
        value = self._left.pop(name, default)
        if not isinstance(value, str) or not 0 < len(value) <= LONGEST_VALUE:
            raise self._wrong(name, value, f"text of at most {LONGEST_VALUE} characters")
        self.in_force[name] = value
        return value

    def _entries(
        self, name: str, text: str, pattern: re.Pattern[str], wanted: str
    ) -> list[re.Match[str]]:
        parts = text.split(",")
        matches = [pattern.fullmatch(part.strip()) for part in parts]
        found = [match for match in matches if match is not None]
        if len(found) < len(parts):
            raise self._wrong(name, text, wanted)
        if len(found) > MOST_ENTRIES:
            raise OptionError(f"{name}: takes at most {MOST_ENTRIES} entries")
        return found

    def _check(
        self, name: str, text: str, sizes: list[int], values: list[int], largest: int
    ) -> None:
        if sizes != sorted(set(sizes)) or not 1 <= sizes[0] <= sizes[-1] <= LARGEST_BATCH:
            raise OptionError(f"{name}: batches must rise, from 1 to {LARGEST_BATCH}: {text}")
        if any(value > largest for value in values):
            raise OptionError(f"{name}: each value must be 0 to {largest}: {text}")

    def _wrong(self, name: str, value: object, wanted: str) -> OptionError:
        return OptionError(f"{name}: must be {wanted}, not {str(value)[:LONGEST_NAME]!r}")


NUMBER = re.compile(r"\d{1,7}")
PAIR = re.compile(r"(\d{1,7})\s*:\s*(\d{1,7})")
RANGE = re.compile(r"(\d{1,7})\s*-\s*(\d{1,7})\s*:\s*(\d{1,7})")
