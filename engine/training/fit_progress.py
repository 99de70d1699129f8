"""How far a fit is: its checkpoint on disk, and the lines of its learning curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from engine.errors import StartError


@dataclass(frozen=True)
class Report:
    """One line of the learning curve. tokens: seen so far. agreement: for each position, the share
    of rows whose most likely token is the target's."""

    step: int
    tokens: int
    loss: float
    agreement: tuple[float, ...]
    tokens_per_second: float


class State:
    """Where the run is, on disk."""

    def __init__(self, path: Path, options: Mapping[str, object]) -> None:
        self._path = path
        self._options = {name: value for name, value in options.items() if name != "seconds"}
        self.step = self.tokens = self.epoch = self.place = 0

    def load(
        self, module: nn.Module, rates: Sequence[torch.optim.Optimizer], device: torch.device
    ) -> None:
        if not self._path.exists():
            return
        stored = torch.load(self._path, map_location=device, weights_only=True)
        if stored["options"] != self._options:
            changed = [
                name
                for name, value in self._options.items()
                if stored["options"].get(name) != value
            ]
            raise StartError(
                "training_differs",
                f"{self._path} belongs to a run with other options ({', '.join(changed)}). Resume "
                "with the same ones, or choose another folder.",
            )
        module.load_state_dict(stored["module"])
        for rate, one in zip(rates, stored["rates"], strict=True):
            rate.load_state_dict(one)
        self.step, self.tokens, self.epoch, self.place = stored["place"]

    def save(self, module: nn.Module, rates: Sequence[torch.optim.Optimizer]) -> None:
        scratch = self._path.with_suffix(".part")
        stored = {
            "options": self._options,
            "module": module.state_dict(),
            "rates": [rate.state_dict() for rate in rates],
            "place": [self.step, self.tokens, self.epoch, self.place],
        }
        torch.save(stored, scratch)
        scratch.replace(self._path)


class Recent:
    """Sums since the last report."""

    def __init__(self, depth: int) -> None:
        self._losses: list[float] = []
        self._counts = [[0, 0] for _ in range(depth)]

    def add(self, loss: float, counts: Sequence[tuple[int, int]]) -> None:
        self._losses.append(loss)
        for mine, (agreed, rows) in zip(self._counts, counts, strict=True):
            mine[0] += agreed
            mine[1] += rows

    def report(self, state: State, rate: float) -> Report:
        loss = sum(self._losses) / max(len(self._losses), 1)
        agreement = tuple(agreed / max(rows, 1) for agreed, rows in self._counts)
        self.__init__(len(self._counts))
        return Report(state.step, state.tokens, loss, agreement, rate)
