"""What a verify step costs by its rows, with packed weights and with torch's own linear layers.

    python -m tests.engine.speed_rows [--dtype float32] [--repeats N]

Prints one JSON line: medians of milliseconds by requests and rows, both kinds in turn."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Sequence
from unittest.mock import patch

import torch

from engine.build import Target, open_target
from engine.calibration import measured_chunks
from engine.config import EngineConfig

SHAPES = ((1, 0), (1, 1), (1, 2), (1, 3), (1, 7), (1, 15), (4, 0), (8, 0), (8, 1), (8, 3), (8, 7))
"""Requests, and drafted rows of each."""
CONTEXT = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="float32")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    config = EngineConfig(
        dtype=given.dtype, device="cpu", threads=given.threads, mtp="off", draft_model="off"
    )
    packed = opened(config)
    with patch("engine.linear.packs", never), patch("engine.fusing.packs", never):
        plain = opened(config)
    found = {
        f"{requests} requests, {requests * (1 + drafted)} rows": measured(
            [packed, plain], requests, drafted, given.repeats
        )
        for requests, drafted in SHAPES
    }
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, {given.dtype}"
    print(json.dumps({"machine": machine, "ms": found}))


def opened(config: EngineConfig) -> Target:
    return open_target(config, lambda stage, fraction, message: None)


def never(device: torch.device, dtype: torch.dtype) -> bool:
    return False


def measured(
    targets: Sequence[Target], requests: int, drafted: int, repeats: int
) -> dict[str, float]:
    """Medians of both in turn."""
    times: list[list[float]] = [[] for _ in targets]
    for number in range(repeats + 1):
        for target, mine in zip(targets, times, strict=True):
            chunks = measured_chunks(target.executor, target.pool, requests, drafted, CONTEXT)
            begin = time.perf_counter()
            target.executor.verify(chunks).result()
            if number:  # the first run of a shape warms up
                mine.append(1e3 * (time.perf_counter() - begin))
    packed, plain = (statistics.median(mine) for mine in times)
    return {"packed": round(packed, 1), "plain": round(plain, 1)}


if __name__ == "__main__":
    main()
