"""A device without memory: first drafts go, then the batch is split, then one request ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from engine import verification
from engine.batch import Chunk
from engine.executor import Executor, Step
from engine.request import Request
from engine.verification import is_shortage
from engine.wire import Failed, Finished
from tests.engine.scripted import Harness, ScriptedDrafter

VOCABULARY = 16


class SmallDevice:
    """Runs the real executor, and out of memory above `rows` rows in one forward."""

    def __init__(self, executor: Executor, rows: int, error: Exception) -> None:
        self._verify = executor.verify
        self.rows = rows
        self.error = error
        self.sizes: list[int] = []

    def verify(self, chunks: Sequence[Chunk]) -> Step:
        rows = sum(len(chunk.ids) for chunk in chunks)
        self.sizes.append(rows)
        if rows > self.rows:
            raise self.error
        return self._verify(chunks)


def counting(last: int, position: int) -> list[float]:
    return [8.0 if token == (last + 1) % VOCABULARY else 0.0 for token in range(VOCABULARY)]


def right(tokens: list[int], length: int) -> list[int]:
    return [(tokens[-1] + 1 + place) % VOCABULARY for place in range(length)]


def engine_on(
    rows: int, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None, length: int = 3
) -> tuple[Harness, SmallDevice]:
    harness = Harness(
        VOCABULARY, counting, [ScriptedDrafter(right)], lambda s, r, n: ("ngram", length)
    )
    device = SmallDevice(harness.executor, rows, error or torch.OutOfMemoryError("no memory"))
    monkeypatch.setattr(harness.executor, "verify", device.verify)
    return harness, device


def text(harness: Harness, request: Request) -> list[int]:
    return [piece.token for piece in harness.pieces(request)]


def counted(start: int, count: int) -> list[int]:
    return [(start + 1 + place) % VOCABULARY for place in range(count)]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_shortage_drops_the_drafts_and_every_text_is_whole(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    harness, device = engine_on(4, monkeypatch, error)
    requests = [harness.add([start], 30) for start in range(4)]
    harness.drain()
    for start, request in enumerate(requests):
        assert text(harness, request) == counted(start, 30)
    assert max(device.sizes) > 4
    assert sum(size > 4 for size in device.sizes) <= 2  # the next steps do not run into it


def test_a_shortage_without_drafts_splits_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, _ = engine_on(2, monkeypatch, length=0)
    requests = [harness.add([start], 10) for start in range(7)]
    harness.drain()
    for start, request in enumerate(requests):
        assert text(harness, request) == counted(start, 10)


def test_a_long_prompt_is_prefilled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, _ = engine_on(8, monkeypatch)
    request = harness.add([5] * 50, 10)
    harness.drain()
    assert text(harness, request) == counted(5, 10)


def test_only_the_request_that_cannot_fit_ends_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, _ = engine_on(8, monkeypatch)
    good = harness.add([5], 40)
    harness.engine.step()
    broken = harness.add([1, 2], 40)
    verify = harness.executor.verify

    def picky(chunks: Sequence[Chunk]) -> Step:
        if any(chunk.request == broken.id for chunk in chunks):
            raise torch.OutOfMemoryError("no memory")
        return verify(chunks)

    monkeypatch.setattr(harness.executor, "verify", picky)
    harness.drain()
    end = harness.end(broken)
    assert isinstance(end, Failed)
    assert end.code == "out_of_memory"
    assert "--memory-fraction" in end.message
    assert isinstance(harness.end(good), Finished)
    assert text(harness, good) == counted(5, 40)
    pages = harness.engine.scheduler.pages
    pages.check()


def test_drafting_comes_back_when_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "RELAX_STEPS", 8)
    harness, device = engine_on(3, monkeypatch)
    harness.add([0], 1000)
    for _ in range(10):
        harness.engine.step()
    device.rows = 100
    for _ in range(32):
        harness.engine.step()
    assert harness.controller.outcomes[5].rows == 1
    assert harness.controller.outcomes[-1].rows == 4


def test_other_errors_are_no_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_shortage(RuntimeError("shape mismatch"))
    harness, _ = engine_on(0, monkeypatch, RuntimeError("shape mismatch"))
    request = harness.add([0], 8)
    harness.drain()
    end = harness.end(request)
    assert isinstance(end, Failed)
    assert end.code == "internal"
