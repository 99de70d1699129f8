"""Start-up calibration: measures the cost of verify steps, and caches the table."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from controller.contract import CostPoint
from engine.batch import Chunk
from engine.draw import Draw
from engine.executor import Executor
from engine.kv import KvPool
from engine.linear import packs
from engine.pages import Pages

VERSION = 6
REPEATS = 3
NOISY = 1.3
"""Runs of one shape that differ by more than this factor were disturbed."""
BATCHES = (1, 2, 4, 8, 16, 32, 64)
DRAFTS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
FEW_DRAFTS = (0, 1, 3, 6, 12, 16)
"""Draft lengths measured for one or two requests, and for more."""
FIRST_STEP = " (the first one on a machine compiles for it)"
BUDGET_S = 40.0
"""After this, only what is measured counts; the model of the cost fills in and learns online."""
MOST_ROWS = 128
CONTEXTS = (256, 1024)

Progress = Callable[[float, str], None]


def cost_points(
    executor: Executor,
    pool: KvPool,
    max_batch: int,
    max_draft_length: int,
    key: str,
    cache_dir: Path,
    *,
    fresh: bool,
    progress: Progress,
) -> tuple[list[CostPoint], bool]:
    """The measured table and whether it came from the cache.

    key: everything the cost depends on (model, device, dtype, threads, versions)."""
    name = hashlib.sha256(f"{VERSION}|{key}|{max_batch}|{max_draft_length}".encode()).hexdigest()
    path = cache_dir / "calibration" / f"{name[:16]}.json"
    if not fresh:
        cached = _read(path, key)
        if cached is not None:
            progress(1.0, "Step costs are known from an earlier start")
            return cached, True
    points = measure(executor, pool, max_batch, max_draft_length, progress)
    _write(path, key, points)
    return points, False


def measure(
    executor: Executor,
    pool: KvPool,
    max_batch: int,
    max_draft_length: int,
    progress: Progress,
) -> list[CostPoint]:
    """Median milliseconds of real verify steps over (requests, rows, context).

    Short contexts get every shape; one longer context gets the shapes that show its slope."""
    progress(0.0, "Measuring what a step costs on this machine")
    shapes = _shapes(executor, pool, max_batch, max_draft_length)
    for keys, values in zip(pool.keys, pool.values, strict=True):
        used = max(requests * context for requests, _, context in shapes)
        span = min(used + 2 * pool.page_size * max_batch, len(keys))
        keys[:span].zero_()
        values[:span].zero_()
    points: list[CostPoint] = []
    begin = time.perf_counter()
    for index, (requests, drafted, context) in enumerate(shapes):
        spent = (time.perf_counter() - begin) / BUDGET_S
        if points and spent > 1.0:
            break
        done = max(index / len(shapes), min(spent, 1.0))
        told = f"Measuring what a step costs: {requests} x {1 + drafted} rows"
        progress(done, told + FIRST_STEP if index == 0 else told)
        chunks = measured_chunks(executor, pool, requests, drafted, context)
        points.append(
            CostPoint(requests, requests * (1 + drafted), context, _typical_ms(executor, chunks))
        )
    progress(1.0, "Measured what a step costs")
    return points


def _typical_ms(executor: Executor, chunks: list[Chunk]) -> float:
    """Median of a few runs; of more, and the faster half of them, when the machine was busy."""
    times: list[float] = []
    executor.verify(chunks).result()  # the first run of a shape warms the kernels up
    for repeats in (REPEATS, 2 * REPEATS):
        for _ in range(repeats):
            begin = time.perf_counter()
            executor.verify(chunks).result()
            times.append(1e3 * (time.perf_counter() - begin))
        times.sort()
        if times[-1] <= NOISY * times[0]:
            return statistics.median(times)
    return statistics.median(times[: len(times) // 2])


def _shapes(
    executor: Executor, pool: KvPool, max_batch: int, max_draft_length: int
) -> list[tuple[int, int, int]]:
    limit = executor.decoder.shape.context_length
    room = pool.pages * pool.page_size
    shapes: list[tuple[int, int, int]] = []
    for context in CONTEXTS:
        for requests in BATCHES:
            for drafted in DRAFTS if requests <= 2 else FEW_DRAFTS:
                if drafted > max_draft_length:
                    continue
                rows = requests * (1 + drafted)
                deep = context == CONTEXTS[0] or (requests in (1, 8) and drafted in (0, 3, 16))
                fits = requests * (context + pool.page_size) <= room and context <= limit
                if requests <= max_batch and deep and fits and (rows <= MOST_ROWS or not drafted):
                    shapes.append((requests, drafted, context))
    if not shapes:
        shapes.append((1, 0, min(limit, room) // 2))
    return shapes


def measured_chunks(
    executor: Executor, pool: KvPool, requests: int, drafted: int, context: int
) -> list[Chunk]:
    """Chunks of so many decoding requests, each with drafts of `drafted` tokens behind `context`
    tokens of text that is never computed: what a step takes does not depend on it."""
    pages = Pages(pool.pages, pool.page_size)
    chunks: list[Chunk] = []
    for request in range(requests):
        held = pages.allocate(request, pages.needed(context)) or []
        ids = [(7 * request + place) % 100 for place in range(1 + drafted)]
        start = context - len(ids)
        chunks.append(Chunk(request, ids, start, held, Draw(), drafted))
    return chunks


def cost_key(executor: Executor, model: str) -> str:
    """What a cost table is valid for."""
    device = executor.device
    where = torch.cuda.get_device_name() if device.is_cuda else _cpu_name()
    return "|".join(
        (
            model,
            where,
            str(device.dtype),
            f"threads {torch.get_num_threads()}",
            executor.attention.name,
            "packed weights" if packs(device.torch_device, device.dtype) else "plain weights",
            f"torch {torch.__version__}",
        )
    )


def _cpu_name() -> str:
    capabilities = torch.cpu.get_capabilities()
    return f"{capabilities.get('architecture')} {capabilities.get('cpu_name')}"


def _read(path: Path, key: str) -> list[CostPoint] | None:
    try:
        stored = json.loads(path.read_text())
        if stored["key"] != key:
            return None
        return [
            CostPoint(int(requests), int(rows), int(context), float(ms))
            for requests, rows, context, ms in stored["points"]
        ]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _write(path: Path, key: str, points: list[CostPoint]) -> None:
    """Best effort: a cache that cannot be written costs a measurement at the next start."""
    rows = [[point.requests, point.rows, point.context_len, point.ms] for point in points]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps({"key": key, "points": rows}))
        scratch.replace(path)
    except OSError:
        return
