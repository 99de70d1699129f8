"""One of two processes that train together: `python -m tests.engine.fit_process FOLDER`.

Trains undisturbed, then once more interrupted after every step."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from engine.training.fit import fit
from engine.training.fit_options import Options
from tests.engine.test_fit import FACTS, KEPT

OPTIONS = Options(
    tokens=700, rows=24, depth=1, rate=1e-2, layers=1, precision="float32", seed=3
)  # fmt: skip


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    steps: list[int] = []

    def train(name: str, options: Options) -> torch.nn.Module:
        trained = fit(
            folder / "target", FACTS, folder / "shards", KEPT, folder / name, options,
            lambda report: steps.append(report.step),
        )  # fmt: skip
        dist.barrier()  # the first process has written its checkpoint
        return trained

    whole = train("whole", OPTIONS)
    while True:
        parts = train("parts", replace(OPTIONS, seconds=1e-9))
        if torch.load(folder / "parts" / "checkpoint.pt")["tokens"] >= OPTIONS.tokens:
            break
    found = folder / f"found{dist.get_rank()}.pt"
    torch.save([steps, whole.state_dict(), parts.state_dict()], found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
