"""The real engine process under its client: killed, stuck, failing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from platformdirs import user_cache_path
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from engine.build import Target
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.stream import Stream
from engine.wire import Delta, Failed, Finished, Sampling, Snapshot, Submit

PROGRAM = (sys.executable, "-m", "tests.engine.faulty_worker")
ENDLESS = 1500

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def config(target: Target, tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    """A real engine on a tiny random model, whose cost table is measured once; what is compiled is
    the same for all models."""
    cache = tmp_path_factory.mktemp("cache")
    kernels = user_cache_path("paceline") / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (cache / "kernels").symlink_to(kernels)
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = AutoTokenizer.from_pretrained(target.loaded.path)
    tokenizer.save_pretrained(folder)
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    return EngineConfig(
        model=str(folder),
        dtype="float32",
        device="cpu",
        threads=1,
        kv_tokens=4096,
        max_batch=2,
        max_draft_length=2,
        cache_dir=str(cache),
        silence_timeout_s=60.0,
        step_timeout_s=3.0,
    )


class Running:
    """A client with what it heard."""

    def __init__(self, config: EngineConfig, folder: Path) -> None:
        self.log = folder / "engine.log"
        self.snapshots: list[Snapshot] = []
        self.client = EngineClient(config, self.log, self.snapshots.append, command=PROGRAM)

    def begin(self, name: str, tokens: int, tenant: str = "", priority: int = 0) -> Stream:
        sampling = Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        submit = Submit(name, sampling, prompt="one two", tenant=tenant, priority=priority)
        return self.client.submit(submit)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.02)

    async def restarted(self, pid: int | None) -> None:
        await self.until(lambda: self.client.state == "ready" and self.client.pid != pid)

    async def idle(self) -> None:
        """Until a snapshot shows that nothing runs and every page is free."""
        self.snapshots.clear()
        await self.until(
            lambda: (
                self.snapshots
                and self.snapshots[-1].running == 0
                and self.snapshots[-1].free_pages == self.snapshots[-1].total_pages
            )
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(config: EngineConfig, tmp_path_factory: Any) -> AsyncGenerator[Running]:
    """One client for all tests: each but the last leaves an engine that serves."""
    found = Running(config, tmp_path_factory.mktemp("log"))
    await found.client.start()
    try:
        yield found
    finally:
        await found.client.stop()


async def rest(stream: Stream) -> list[Any]:
    async with asyncio.timeout(60):
        return [event async for event in stream]


async def test_after_kill_9_what_was_streamed_fails_and_what_waited_is_completed(
    engine: Running,
) -> None:
    streamed = [engine.begin("a", ENDLESS), engine.begin("b", ENDLESS)]
    for stream in streamed:
        assert isinstance(await anext(stream), Delta)
    late, early = engine.begin("late", 5, priority=1), engine.begin("early", 5)
    pid = engine.client.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for stream in streamed:
        end = (await rest(stream))[-1]
        assert isinstance(end, Failed)
        assert end.code == "engine_restarting"
        assert "signal 9" in end.message
    for stream in (early, late):
        *deltas, end = await rest(stream)
        assert isinstance(end, Finished)
        assert sum(len(delta.pieces) for delta in deltas) == end.completion_tokens == 5
    assert engine.client.pid != pid
    assert engine.client.death is not None
    assert engine.client.death.kind == "signal"
    await engine.idle()


async def test_a_step_that_does_not_end_is_found_logged_with_its_stacks_and_killed(
    engine: Running,
) -> None:
    await rest(engine.begin("first", 5))
    pid = engine.client.pid
    stuck = engine.begin("stuck", 5, "sleep")
    await engine.until(lambda: engine.client.state == "restarting" and engine.client.death)
    stuck.cancel()
    end = (await rest(stuck))[-1]
    assert isinstance(end, Finished)
    assert end.finish_reason == "cancelled"
    assert engine.client.death is not None
    assert engine.client.death.kind == "hang"
    assert "has been running step" in engine.client.death.reason
    assert 'faulty_worker.py", line' in engine.log.read_text()
    await engine.restarted(pid)
    assert isinstance((await rest(engine.begin("last", 5)))[-1], Finished)


async def test_a_failing_step_ends_its_requests_only_and_the_third_in_a_row_the_process(
    engine: Running,
) -> None:
    pid = engine.client.pid
    for name in ("a", "b"):
        end = (await rest(engine.begin(name, 5, "raise")))[-1]
        assert isinstance(end, Failed)
        assert end.code == "internal"  # after a second attempt
        assert isinstance((await rest(engine.begin(f"good {name}", 5)))[-1], Finished)
    await engine.idle()
    assert engine.client.pid == pid
    for name in ("c", "d"):
        assert isinstance((await rest(engine.begin(name, 5, "raise")))[-1], Failed)
    await engine.until(lambda: engine.client.pid != pid and engine.client.death)
    assert engine.client.death is not None
    assert engine.client.death.reason == "The engine process ended with status 1."
    assert engine.client.death.log_line == "RuntimeError: injected fault"
