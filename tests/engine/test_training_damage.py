"""Stages over files that are damaged or of other data, and on a disk without room: one sentence."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.errors import StartError
from engine.training.answers import read_arrays
from engine.training.fitting import train
from engine.training.job import Corpus, Fit
from engine.training.journal import Journal
from engine.training.shards import Shard, path_of, read, write
from engine.training.vocabulary_ranking import read_ids
from tests.conftest import ROOT, clean_environment
from tests.engine.test_fit import ABOUT, shard, stored, target_folder, tiny_job

SMALL = 4096
"""Bytes that a file may take where the disk is full."""


@pytest.fixture
def job(tmp_path: Path) -> Fit:
    return tiny_job(tmp_path, tokens=100, checkpoint_steps=1)


def silent(*told: Any) -> None:
    pass


def answers(path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savez(
        path,
        tokens=rng.integers(0, 40000, 20000).astype(np.uint16),
        offsets=np.arange(0, 20001, 100),
        prompt_index=np.arange(200),
    )
    return path


@pytest.mark.parametrize("kept", [0, 7, 100, 2000])
def test_a_checkpoint_that_is_cut_off_is_told(job: Fit, kept: int) -> None:
    train(job, silent)
    checkpoint = Path(job.run) / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:kept])
    with pytest.raises(StartError, match=r"checkpoint\.pt cannot be read .*Remove it"):
        train(job, silent)


def test_shards_of_other_data_are_refused(job: Fit) -> None:
    train(job, silent)
    target = Path(job.config.model)
    stored(Path(job.shards).with_name("more"), target, texts=4, seed=5)
    other = msgspec.structs.replace(job, shards=str(Path(job.shards).with_name("more")))
    with pytest.raises(StartError, match=r"other data .*shards"):
        train(other, silent)
    target_folder(target.with_name("another"), seed=9)
    config = EngineConfig(model=str(target.with_name("another")), threads=1)
    fresh = msgspec.structs.replace(job, config=config, run=f"{job.run}2")
    with pytest.raises(StartError, match="weights"):
        train(fresh, silent)


@pytest.mark.parametrize("kept", [0, 7, 100, 3000])
def test_a_shard_that_is_cut_off_is_told(job: Fit, kept: int) -> None:
    path = path_of(Path(job.shards), 0)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(StartError, match=r"shard-00000\.safetensors .*extract"):
        train(job, silent)


@pytest.mark.parametrize(
    "damage",
    [
        {"offsets": torch.tensor([0, 9])},
        {"answers": torch.tensor([900, 3, 3, 3, 3, 3])},
        {"features": torch.zeros(2, 96)},
        {"top_ids": torch.zeros(3, 4, dtype=torch.int32)},
        {"top_logprobs": torch.zeros(3, 4)},
        {"tokens": -shard().tokens - 1},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_a_shard_whose_parts_do_not_fit_is_told(tmp_path: Path, damage: dict[str, Any]) -> None:
    assert set(damage) < {field.name for field in fields(Shard)}
    write(path_of(tmp_path, 0), replace(shard(), **damage), ABOUT)
    with pytest.raises(StartError, match="no shard of training data"):
        read(path_of(tmp_path, 0))


@pytest.mark.parametrize("kept", [0, 5, 60, 2000])
def test_an_npz_that_is_cut_off_is_told(tmp_path: Path, kept: int) -> None:
    whole = answers(tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[:kept])
    with pytest.raises(StartError, match=r"a\.npz"):
        read_arrays(tmp_path / "a.npz")
    Journal(tmp_path / "parts", "run")
    (tmp_path / "parts" / "part-000000.npz").write_bytes(whole[:kept])
    with pytest.raises(StartError, match=r"part-000000\.npz .*Remove it"):
        Journal(tmp_path / "parts", "run")


def test_a_part_whose_arrays_do_not_fit_is_told(tmp_path: Path) -> None:
    Journal(tmp_path, "run")
    part = tmp_path / "part-000000.npz"
    np.savez(part, numbers=np.arange(3), offsets=np.array([0, 1]), tokens=np.arange(4))
    with pytest.raises(StartError, match=r"part-000000\.npz .*Remove it"):
        Journal(tmp_path, "run")


def test_draft_ids_that_are_another_file_are_told(tmp_path: Path) -> None:
    for content in (b"", b"\x93NUMPY\x01\x00", answers(tmp_path / "a.npz").read_bytes()):
        (tmp_path / "ids.npy").write_bytes(content)
        with pytest.raises(StartError, match=r"ids\.npy.*paceline train vocabulary"):
            read_ids(tmp_path / "ids.npy", 10)


def test_a_model_without_the_sizes_is_told(job: Fit) -> None:
    config = Path(job.config.model) / "config.json"
    config.write_text(config.read_text().replace("vocab_size", "size"))
    with pytest.raises(StartError, match="vocab_size"):
        train(job, silent)


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, SMALL))


@pytest.mark.parametrize("stage", ["fit", "corpus"])
def test_a_full_disk_is_told_in_a_line_and_leaves_no_part(
    job: Fit, tmp_path: Path, stage: str
) -> None:
    """Files that end at a few kilobytes stand for it."""
    if stage == "fit":
        (tmp_path / "job.json").write_bytes(msgspec.json.encode(job))
        line, told = ["engine.training.fitting", str(tmp_path / "job.json")], b""
    else:
        made = Corpus(str(answers(tmp_path / "a.npz")), str(tmp_path / "corpus.npz"))
        line, told = ["engine.training"], msgspec.json.encode(made) + b"\n"
    with subprocess.Popen(
        [sys.executable, "-m", *line],
        cwd=ROOT, env=clean_environment(OMP_NUM_THREADS="1"), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=limited,
    ) as done:  # fmt: skip
        assert done.stdin is not None
        assert done.stdout is not None
        assert done.stderr is not None
        done.stdin.write(told)
        done.stdin.flush()
        last = msgspec.json.decode(done.stdout.read().splitlines()[-1])
        assert done.wait(200) == 1
        assert done.stderr.read() == b""
    assert "cannot write" in last["error"]
    assert "\n" not in last["error"].strip()
    left = {path.suffix for path in tmp_path.rglob("*")}
    assert not left & {".part", ".tmp", ".lock"}
    assert not (tmp_path / "corpus.npz").exists()
