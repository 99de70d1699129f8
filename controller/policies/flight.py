"""What a policy must remember of planned steps until their outcomes come."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

IN_FLIGHT = 16
"""Planned steps whose outcomes may still come; older ones never will."""

T = TypeVar("T")


class Flight(Generic[T]):
    """A value by step, so that an outcome counts for the plan that it ran under."""

    def __init__(self) -> None:
        self._values: OrderedDict[int, T] = OrderedDict()

    def note(self, step: int, value: T) -> None:
        self._values[step] = value
        if len(self._values) > IN_FLIGHT:
            self._values.popitem(last=False)

    def take(self, step: int) -> T | None:
        """The value of a step, once; None for one that was not planned here."""
        return self._values.pop(step, None)
