"""How far a fit is: its checkpoint on disk, and the lines of its learning curve."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from engine.errors import StartError
from engine.training.undisturbed import undisturbed


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
    """Where the run is, on disk. run: what its course depends on, by name: plain values. rank: of
    this process, each of which has its own epoch and place in it, as its own batches."""

    def __init__(self, path: Path, run: Mapping[str, object], rank: int) -> None:
        self._path = path
        self._rank = rank
        self._run = {name: value for name, value in run.items() if name != "seconds"}
        self.step = self.tokens = self.epoch = self.place = 0
        self.line = ""
        """The line of the curve that belongs to the checkpoint."""

    def load(
        self, module: nn.Module, rates: Sequence[torch.optim.Optimizer], device: torch.device
    ) -> bool:
        """Take up the run where the checkpoint stands; whether there is one. Raises StartError."""
        if not self._path.exists():
            return False
        try:
            stored = torch.load(self._path, map_location=device, weights_only=True)
            before = dict(stored["run"])
            changed = {*before, *self._run} if before.keys() != self._run.keys() else set()
            changed |= {name for name, value in self._run.items() if before.get(name) != value}
            if not changed:
                module.load_state_dict(stored["module"])
                for rate, one in zip(rates, stored["rates"], strict=True):
                    rate.load_state_dict(one)
                self.step, self.tokens = int(stored["step"]), int(stored["tokens"])
                self.epoch, self.place = map(int, stored["places"][self._rank])
                self.line = str(stored.get("line", ""))
        except torch.OutOfMemoryError:
            raise
        except (
            OSError, RuntimeError, EOFError, ValueError, TypeError, KeyError, AttributeError,
            IndexError, pickle.UnpicklingError,
        ) as error:  # fmt: skip
            raise StartError(
                "checkpoint_broken",
                f"{self._path} cannot be read ({str(error)[:200]}). Remove it to train from the "
                "start.",
            ) from error
        if changed:
            raise StartError(
                "training_differs",
                f"{self._path} belongs to a run with other options or other data "
                f"({', '.join(sorted(changed))}). Resume with the same ones, or choose another "
                "folder.",
            )
        return True

    def save(
        self,
        module: nn.Module,
        rates: Sequence[torch.optim.Optimizer],
        places: Sequence[Sequence[int]],
    ) -> None:
        """Write the checkpoint in one go. places: epoch and place of every process, by rank.
        Raises StartError."""
        scratch = self._path.with_suffix(".part")
        stored = {
            "run": self._run,
            "module": module.state_dict(),
            "rates": [rate.state_dict() for rate in rates],
            "step": self.step,
            "tokens": self.tokens,
            "places": [list(place) for place in places],
            "line": self.line,
        }
        try:
            with undisturbed():
                torch.save(stored, scratch)
                scratch.replace(self._path)
        except (OSError, RuntimeError) as error:  # PyTorch's writer tells a full disk as the latter
            with suppress(OSError):
                scratch.unlink()
            raise StartError(
                "out_not_writable",
                f"cannot write the checkpoint {self._path}: {str(error)[:200]}. Free space there; "
                "the run goes on from the checkpoint before.",
            ) from error


def mend(curve: Path, state: State) -> None:
    """Make a learning curve what it was at the checkpoint: a run that was killed may have written
    no line for it, or begun one."""
    if not state.line or not curve.exists():
        return
    lines = [line for line in curve.read_text().splitlines() if _step_of(line) < state.step]
    scratch = curve.with_suffix(".part")
    scratch.write_text("".join(f"{line}\n" for line in [*lines, state.line]))
    scratch.replace(curve)


def _step_of(line: str) -> float:
    """The step of a line of the curve, infinite for a piece of one."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf


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
