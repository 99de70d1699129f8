"""The guidelines with this server's live numbers: what each says here, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from controller import guidelines as rules
from controller.acceptance import Acceptance
from controller.cost import MANY_ROWS, CostModel
from controller.unmeasured import longest

LENGTHS = 16
"""The curve of the speed-up is drawn up to this D."""
EXAMPLES = (4, 8, 16)
"""Query heads per KV head that are shown while the target's are not known."""
SOURCE = 'NVIDIA, "Co-Designing AI Models Using Speculative Decoding" (2026), guideline'
ROOFLINE = "roofline model, read off the measured cost table"
RATIO = "ratio optimality as in TurboSpec (arXiv 2406.14066), linear costs"


def advice(
    drafters: Sequence[str],
    batch: int,
    context_len: int,
    group: int | None,
    cost: CostModel,
    acceptance: Acceptance,
) -> dict[str, object]:
    """JSON-able. group: the target's query heads per KV head, None where nobody said. Without
    drafters the two that depend on them are left out."""
    found: list[dict[str, object]] = [
        _knee(batch, context_len, cost),
        *(_attention(group) if group is not None else _attention_examples()),
    ]
    n = max(batch, 1)
    bound = longest(cost, n)
    if bound is not None:
        found.append(_unmeasured(n, bound, cost.known_rows))
    plain_ms, one_ms = cost.verify_ms(n, n, n * context_len), cost.verify_ms(1, 1, context_len)
    alpha = n * _row_ms(n, context_len, cost) / plain_ms
    curves: dict[str, object] = {}
    latency: dict[str, float] = {}
    for name in drafters:
        price, survival = cost.draft_price(name), acceptance.typical(name, LENGTHS)
        latency[name] = price.per_depth / one_ms
        rho, fixed = price.per_depth / plain_ms, price.ms(n, 0) / plain_ms
        curves[name] = {
            "rho": round(rho, 5),
            "fixed": round(fixed, 5),
            "ceiling": _finite(rules.ceiling(alpha, rho)),
            "peak": asdict(rules.peak(survival, alpha, rho, fixed)),
            "speedup": [round(x, 4) for x in rules.speedups(survival, alpha, rho, fixed)],
        }
    if drafters:
        found += [
            _latency(drafters, latency, acceptance),
            _speed_up(batch, alpha, curves, drafters),
        ]
    return {"guidelines": found, "alpha": round(alpha, 5), "batch": n, "speedup": curves}


def _row_ms(batch: int, context_len: int, cost: CostModel) -> float:
    """Milliseconds of one further row, over the next MANY_ROWS."""
    tokens = batch * context_len
    more = cost.verify_ms(batch, batch + MANY_ROWS, tokens) - cost.verify_ms(batch, batch, tokens)
    return max(more, 0.0) / MANY_ROWS


def _knee(batch: int, context_len: int, cost: CostModel) -> dict[str, object]:
    row_ms = _row_ms(1, context_len, cost)
    knee = rules.measured_knee_rows(cost.verify_ms(1, 1, context_len), row_ms)
    length = rules.knee_length(knee, max(batch, 1))
    text = (
        f"Rows of a step cost as much as reading the weights from about {knee:.0f} rows on"
        if math.isfinite(knee)
        else "Rows cost nothing as far as was measured"
    )
    return _one(
        "knee",
        "Compute-bound knee",
        f"{text}; {_requests(batch)} stay below it up to D = {length}.",
        f"{SOURCE} 1; {ROOFLINE}",
        {"knee_rows": _finite(knee), "row_ms": round(row_ms, 5), "draft_length": length},
    )


def _attention(group: int) -> list[dict[str, object]]:
    free = rules.free_attention_length(group)
    edges = [rules.tile_end(rules.tile_end(0, group) + 1, group), rules.tile_end(0, group)]
    return [
        _one(
            "attention",
            "Free attention",
            f"{group} query heads share a KV head: attention alone costs nothing more up to "
            f"D = {rules.TILE} / {group} − 1 = {free:.4g}. A bound, not the best D.",
            f"{SOURCE} 2",
            {"group": group, "draft_length": round(free, 3)},
        ),
        _one(
            "tiles",
            "Tile edges",
            f"{group} · (1 + D) rows fill tiles of {rules.TILE} at D = {edges[1]}, "
            f"{edges[0]} and so on; a D just past an edge pays a whole tile.",
            f"{SOURCE} 3",
            {"group": group, "edges": edges[::-1]},
        ),
    ]


def _attention_examples() -> list[dict[str, object]]:
    shown = ", ".join(f"{rules.free_attention_length(g):.0f} for G = {g}" for g in EXAMPLES)
    return [
        _one(
            "attention",
            "Free attention",
            f"D = {rules.TILE} / G − 1 with G query heads per KV head: {shown}. A bound, not the "
            "best D. G of this target is not known here.",
            f"{SOURCE} 2",
            {},
        )
    ]


def _unmeasured(batch: int, bound: int, known_rows: int) -> dict[str, object]:
    seen = f"steps of up to {known_rows} rows" if known_rows else "nothing"
    return _one(
        "unmeasured",
        "Bound until measured",
        f"Without a calibration, and with {seen} measured so far, {_requests(batch)} may draft up "
        f"to D = {bound} each: the knee and the first tile, or twice the rows that were measured.",
        f"{SOURCE}s 1 to 3",
        {"draft_length": bound, "known_rows": known_rows},
    )


def _latency(
    drafters: Sequence[str], latency: dict[str, float], acceptance: Acceptance
) -> dict[str, object]:
    best: dict[str, int] = {}
    for name in drafters:
        survival = acceptance.typical(name, LENGTHS)
        best[name] = rules.peak(survival, 0.0, latency[name]).length
    parts = [f"{name}: rho = {latency[name]:.3f}, D = {best[name]}" for name in drafters]
    return _one(
        "latency",
        "Low latency",
        "At one request, with rows for nothing, AL / (1 + rho · D) is largest at: "
        + "; ".join(parts)
        + ".",
        f"{SOURCE} 4",
        {
            "rho": {name: round(value, 5) for name, value in latency.items()},
            "draft_length": best,
        },
    )


def _speed_up(
    batch: int, alpha: float, curves: dict[str, object], drafters: Sequence[str]
) -> dict[str, object]:
    limit = rules.ceiling(alpha)
    bound = (
        f"no drafter exceeds 1 / alpha = {limit:.3g} ×"
        if math.isfinite(limit)
        else "nothing bounds the speed-up"
    )
    return _one(
        "speedup",
        "Speed-up and its ceiling",
        f"At {_requests(batch)} a drafted position costs alpha = {alpha:.3f} of a step, "
        f"so {bound}.",
        RATIO,
        {"alpha": round(alpha, 5), "ceiling": _finite(limit), "drafters": list(drafters)},
    )


def _one(
    code: str, title: str, sentence: str, source: str, numbers: dict[str, object]
) -> dict[str, object]:
    return {
        "code": code,
        "title": title,
        "sentence": sentence,
        "source": source,
        "numbers": numbers,
    }


def _finite(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _requests(count: int) -> str:
    return "1 request" if count <= 1 else f"{count} requests"
