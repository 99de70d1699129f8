"""Parameters of a drafter that an operator may change while it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Value = bool | int | float


@dataclass(frozen=True, slots=True)
class Parameter:
    """low and high are allowed themselves; for a bool they are False and True. text: what it does,
    for a label, with its unit."""

    name: str
    kind: Literal["int", "float", "bool"]
    low: Value
    high: Value
    default: Value
    text: str

    def check(self, value: Value) -> Value:
        """The value in the parameter's own type. Raises ValueError."""
        if self.kind == "bool":
            if not isinstance(value, bool):
                raise ValueError(f"{self.name} must be true or false.")
            return value
        # A NaN is in no range.
        if isinstance(value, bool) or not self.low <= value <= self.high:
            raise ValueError(f"{self.name} must be between {self.low} and {self.high}.")
        if self.kind == "float":
            return float(value)
        if value != int(value):
            raise ValueError(
                f"{self.name} must be a whole number between {self.low} and {self.high}."
            )
        return int(value)


@runtime_checkable
class Tunable(Protocol):
    """A drafter with parameters."""

    @property
    def parameters(self) -> Mapping[str, Parameter]: ...

    @property
    def values(self) -> Mapping[str, Value]:
        """A value for every parameter."""
        ...

    def set_parameters(self, changes: Mapping[str, Value]) -> None:
        """Change some, from the next step on: all of them or, with ValueError, none. The changes
        have been checked one by one with `Parameter.check`; a ValueError of its own says which do
        not go together, and what to do."""
        ...
