"""One real target in float32, loaded once for all in-process engine tests."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import torch
from platformdirs import user_cache_path

from engine.build import Target, open_target
from engine.config import EngineConfig
from engine.kernel_cache import keep_kernels

keep_kernels(user_cache_path("paceline"))  # where the target's are; never those of older sources

CONFIG = EngineConfig(
    dtype="float32",
    device="cpu",
    kv_tokens=16384,
    max_batch=8,
    threads=1,
    mtp="off",
    draft_model="off",
)
"""Tests of drafters with a model load the one they are about."""

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread() -> Generator[None]:
    """With more, a busy neighbour on the machine slows each step many times over. What a test sets
    ends with it: torch's threads are the process's."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def config() -> EngineConfig:
    return CONFIG


@pytest.fixture(scope="session")
def target() -> Target:
    """SmolLM2-135M-Instruct, float32, with room for 16,384 tokens."""
    return open_target(CONFIG, lambda stage, fraction, message: None)
