"""Small drafter parts that take corpora and parameters, for tests of the doors to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.drafters.corpus import CorpusState
from engine.drafters.parameters import Parameter, Value


@dataclass
class Held:
    sequences: list[list[int]] = field(default_factory=list)
    indexed: int = 0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.sequences))


class Shelves:
    """Holds corpora of up to `room` tokens and indexes `slice` of them at every look."""

    def __init__(self, room: int = 1_000_000, slice: int = 1_000) -> None:
        self.room, self.slice = room, slice
        self.held: dict[str, Held] = {}

    def put_corpus(
        self, name: str, tokens: NDArray[np.int32], lengths: NDArray[np.int64], first: bool
    ) -> None:
        held = Held() if first else self.held[name]
        others = sum(other.tokens for key, other in self.held.items() if key != name)
        if others + held.tokens + len(tokens) > self.room:
            raise ValueError("the memory is full; remove a corpus.")
        parts = np.split(tokens, np.cumsum(lengths)[:-1])
        held.sequences += [part.tolist() for part in parts]
        self.held[name] = held

    def drop_corpus(self, name: str) -> None:
        self.held.pop(name, None)

    def corpora(self) -> dict[str, CorpusState]:
        for held in self.held.values():
            held.indexed = min(held.tokens, held.indexed + self.slice)
        return {
            name: CorpusState(len(held.sequences), held.tokens, held.indexed, 4 * held.tokens)
            for name, held in self.held.items()
        }


class Tuned:
    """least must not be above most."""

    parameters: Mapping[str, Parameter] = {
        parameter.name: parameter
        for parameter in (
            Parameter("least", "int", 1, 8, 2, "Shortest match (tokens)"),
            Parameter("most", "int", 1, 8, 4, "Longest match (tokens)"),
            Parameter("share", "float", 0.0, 1.0, 0.5, "Least probability"),
            Parameter("recycling", "bool", False, True, False, "Use rejected rows"),
        )
    }

    def __init__(self) -> None:
        self.values: dict[str, Value] = {n: p.default for n, p in self.parameters.items()}

    def set_parameters(self, changes: Mapping[str, Value]) -> None:
        values = {**self.values, **changes}
        if values["least"] > values["most"]:
            raise ValueError("least must not be above most; raise most too.")
        self.values = values
