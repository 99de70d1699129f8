"""What the bench found: one row per mode, concurrency and category, compared with mode none."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

from app.bench.client import Run, Sample

T = TypeVar("T")
ALL = "all"
BASE = "none"


class Row(msgspec.Struct, frozen=True):
    """tokens_per_s: output tokens over wall time. decode_tokens_per_s: median over requests of
    1000 / TPOT. Percentiles in milliseconds over requests. ratio: median over chunks and repeats
    of tokens_per_s against mode none on the same chunk in the same repeat, with its quartiles;
    None without mode none. acceptance_length: tokens committed per verify step; an answer's first
    token is the prefill's. same_text: share of answers equal to mode none's first repeat."""

    mode: str
    concurrency: int
    category: str
    requests: int
    failed: int
    tokens: int
    tokens_per_s: float
    decode_tokens_per_s: float | None
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    e2e_ms: dict[str, float]
    acceptance_length: float | None
    acceptance_rate: float | None
    ratio: float | None
    ratio_quartiles: tuple[float, float] | None
    same_text: float | None


def rows(runs: Sequence[Run]) -> list[Row]:
    """One row per (concurrency, category, mode), categories in order, then all together."""
    found = []
    modes = unique(run.mode for run in runs)
    for concurrency in unique(run.concurrency for run in runs):
        level = [run for run in runs if run.concurrency == concurrency]
        categories = unique(run.category for run in level)
        for category in [*categories, ALL] if len(categories) > 1 else [ALL]:
            part = [run for run in level if category in (ALL, run.category)]
            found += [row(part, mode, concurrency, category) for mode in modes]
    return found


def row(part: Sequence[Run], mode: str, concurrency: int, category: str) -> Row:
    mine = [run for run in part if run.mode == mode]
    base = {(run.chunk, run.repeat): run for run in part if run.mode == BASE}
    samples = [sample for run in mine for sample in run.samples]
    good = [sample for sample in samples if not sample.error]
    steps = sum(sample.steps for sample in good)
    committed = sum(sample.tokens - 1 for sample in good if sample.steps)
    drafted = sum(sample.drafted for sample in good)
    accepted = sum(sample.accepted for sample in good)
    wall_s = sum(run.wall_ms for run in mine) / 1000
    tokens = sum(run.tokens for run in mine)
    tpot = [sample.tpot_ms for sample in good if sample.tpot_ms]
    ratios = [
        run.tokens_per_s / base[key].tokens_per_s
        for run in mine
        if (key := (run.chunk, run.repeat)) in base and base[key].tokens_per_s
    ]
    return Row(
        mode=mode,
        concurrency=concurrency,
        category=category,
        requests=len(samples),
        failed=len(samples) - len(good),
        tokens=tokens,
        tokens_per_s=tokens / wall_s if wall_s else 0.0,
        decode_tokens_per_s=statistics.median(1000 / ms for ms in tpot) if tpot else None,
        ttft_ms=percentiles(good, lambda sample: sample.ttft_ms),
        tpot_ms=percentiles(good, lambda sample: sample.tpot_ms),
        e2e_ms=percentiles(good, lambda sample: sample.e2e_ms),
        acceptance_length=committed / steps if steps else None,
        acceptance_rate=accepted / drafted if drafted else None,
        ratio=statistics.median(ratios) if ratios else None,
        ratio_quartiles=quartiles(ratios),
        same_text=agreement(good, list(base.values())),
    )


def percentiles(
    samples: Sequence[Sample], value: Callable[[Sample], float | None]
) -> dict[str, float]:
    """p50, p90 and p99 by the nearest rank; empty without values."""
    values = sorted(v for sample in samples if (v := value(sample)) is not None)
    if not values:
        return {}
    return {
        f"p{p}": values[min(len(values) - 1, -(-len(values) * p // 100) - 1)] for p in (50, 90, 99)
    }


def quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def agreement(samples: Sequence[Sample], base: Sequence[Run]) -> float | None:
    texts = {s.question: s.text for run in reversed(base) for s in run.samples if not s.error}
    same = [sample.text == texts[sample.question] for sample in samples if sample.question in texts]
    return sum(same) / len(same) if same else None


def unique(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


def show(found: Sequence[Row], console: Console) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 1))
    heads = ("batch", "category", "mode", "tokens/s", "vs none", "quartiles", "AL", "accepted")
    for head in (*heads, "TTFT ms", "TPOT ms", "E2E ms", "same text", "failed"):
        table.add_column(head, justify="left" if head in ("category", "mode") else "right")
    for one in found:
        spread = one.ratio_quartiles
        table.add_row(
            str(one.concurrency),
            one.category,
            one.mode,
            f"{one.tokens_per_s:.1f}",
            number(one.ratio, "{:.2f}x"),
            f"{spread[0]:.2f}-{spread[1]:.2f}" if spread else "-",
            number(one.acceptance_length, "{:.2f}"),
            number(one.acceptance_rate, "{:.0%}"),
            number(one.ttft_ms.get("p50"), "{:.0f}"),
            number(one.tpot_ms.get("p50"), "{:.1f}"),
            number(one.e2e_ms.get("p50"), "{:.0f}"),
            number(one.same_text, "{:.0%}"),
            str(one.failed or "-"),
            end_section=one.category == ALL,
        )
    console.print(table)


def number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
