"""Training in several processes: a run interrupted after every step is the undisturbed one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

from engine.training.shards import path_of, write
from tests.engine.test_fit import about_of, shard, target_folder

ROOT = Path(__file__).parents[2]


def test_processes_of_unequal_shards_resume_each_where_it_was(tmp_path: Path) -> None:
    target = target_folder(tmp_path / "target")
    (tmp_path / "shards").mkdir()
    for place, texts in enumerate((14, 5)):
        write(path_of(tmp_path / "shards", place), shard(texts, place), about_of(target))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    shared = os.environ | {
        "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.engine.fit_process", str(tmp_path)]
    both = [
        subprocess.Popen(command, cwd=ROOT, env=shared | {"RANK": rank, "LOCAL_RANK": "0"})
        for rank in ("0", "1")
    ]
    try:
        assert [one.wait(300) for one in both] == [0, 0]
    finally:
        for one in both:
            one.kill()
            one.wait()
    (steps, whole, parts), (_, _, others) = (
        torch.load(tmp_path / f"found{rank}.pt") for rank in range(2)
    )
    assert len(steps) > 10
    assert steps[1:] == list(range(1, steps[0] + 1))
    for name, value in whole.items():
        assert torch.equal(value, parts[name])
        assert torch.equal(value, others[name])
