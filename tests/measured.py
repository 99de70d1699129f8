"""A small recorded benchmark, its rows made by the bench's own report from made-up requests."""

from __future__ import annotations

from typing import Any

import msgspec

from app.bench import report
from app.bench.client import Run, Sample

SPEEDS = {"none": 1.0, "ngram:4": 1.4, "auto": 1.6}
"""How much faster than plain decoding each arm answers."""
CATEGORIES = ("writing", "coding")
PROMPTS = 6
"""In each category: enough for intervals."""


def sample(arm: str, concurrency: int, category: str, order: int) -> Sample:
    """One answer of 20 tokens; prompts differ in how long they take."""
    drafting = arm != "none"
    own = 1.0 + 0.1 * order if category == "writing" else 1.2
    return Sample(
        arm, concurrency, 0, CATEGORIES.index(category), category, order,
        order=order, tokens=20, ttft_ms=40.0, e2e_ms=40.0 + 380.0 * own / SPEEDS[arm],
        gaps_ms=[20.0] * 19, steps=10 if drafting else 19, drafted=40 if drafting else 0,
        accepted=9 if drafting else 0, histogram=[4, 3, 3] if drafting else [19],
        drafters={"ngram": 8, "none": 2} if drafting else {"none": 19},
        positions={"ngram": [(8, 6), (6, 3)]} if drafting else {}, text="same",
    )  # fmt: skip


def rows(concurrencies: tuple[int, ...] = (1,)) -> list[dict[str, Any]]:
    """As JSON has them: categories and all together, per load and arm."""
    runs: list[Run] = []
    for concurrency in concurrencies:
        for arm in SPEEDS:
            for chunk, category in enumerate(CATEGORIES):
                many = [sample(arm, concurrency, category, order) for order in range(PROMPTS)]
                wall_ms = sum(one.e2e_ms for one in many) / concurrency
                runs.append(Run(arm, concurrency, 0, chunk, category, wall_ms, many))
    return msgspec.json.decode(msgspec.json.encode(report.rows(runs, "none", 30.0)))


def body(**changes: Any) -> dict[str, Any]:
    """What `paceline bench --record` posts."""
    return {
        "kind": "bench",
        "time": 1_790_000_000.0,
        "base": "none",
        "command": ["paceline", "bench", "--prompts", "my prompts.jsonl"],
        "machine": {
            "processor": "AMD EPYC",
            "cores": 2,
            "memory_gb": 24.6,
            "gpu": None,
            "packages": {"paceline": "0.1.0", "torch": None},
            "git": "abc123",
        },
        "settings": {
            "prompts": "my prompts.jsonl",
            "prompts_used": 12,
            "modes": list(SPEEDS),
            "concurrency": [1],
            "max_tokens": 20,
            "temperature": 0.0,
            "tpot_ms": 30.0,
        },
        "rows": rows(),
        **changes,
    }


def record(name: str = "bench-0001", **changes: Any) -> dict[str, Any]:
    """As `GET /api/benchmarks/{id}` answers."""
    made = body(**changes)
    began = made.pop("time")
    more = {"id": name, "ts": began + 60, "began": began, "created_by": "ci", "model": "smol"}
    return {**made, **more}
