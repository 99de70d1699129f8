"""Rows of results: what one policy gave, as it is written to JSON, and how it compares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from controller.contract import Decision
from controller.simulate.direct import Result
from controller.simulate.predicted import WARM_STEPS
from controller.simulate.run import Run

NONE_AT_ALL, BEST_STATIC, CLAIRVOYANT = "none", "best static", "clairvoyant"
BEST_BY_PHASE = "best static by phase"
LONG_DECISION = 100
"""Steps that a decision must have been in force to compare its prediction with the outcome."""

Row = dict[str, Any]
"""What one policy got, as it is written to JSON."""


def row(policy: str, run: Run) -> Row:
    """Of a run under a controller."""
    steps = max(run.steps, 1)
    asked = max(run.request_steps, 1)
    settled = max(run.steps - WARM_STEPS, 0)
    return {
        "policy": policy,
        "tokens_per_s": round(run.throughput, 3),
        "acceptance_length": round(run.acceptance_length, 4),
        "mean_d": round(run.mean_length, 4),
        "drafters": {name: round(count / asked, 4) for name, count in run.drafting.items()},
        "steps": run.steps,
        "switches_per_1000_steps": round(1e3 * max(len(run.decisions) - 1, 0) / steps, 2),
        "settled_steps": settled,
        "settled_switches": sum(one.step > WARM_STEPS for one in run.decisions) if settled else 0,
        "controller_us_per_step": round(1e6 * run.plan_seconds / steps, 1),
        "goodput_error": calibration(run.decisions),
        "calibration": run.calibration,
        "phases": [{"tokens": tokens, "ms": round(ms, 3)} for tokens, ms in run.phases],
        "course": [
            {
                "s": round(point.second, 3),
                "requests": round(point.requests, 2),
                "tokens_per_s": round(point.tokens_per_s, 2),
                "d": round(point.length, 3),
                "drafters": {name: round(share, 3) for name, share in point.shares.items()},
            }
            for point in run.course
        ],
    }


def bound(policy: str, result: Result) -> Row:
    """Of a static choice or the clairvoyant."""
    return {
        "policy": policy,
        "tokens_per_s": round(result.throughput, 3),
        "acceptance_length": round(result.tokens / result.request_steps, 4),
        "mean_d": round(result.drafted / result.request_steps, 4),
        "steps": result.steps,
        "phases": [{"tokens": tokens, "ms": round(ms, 3)} for tokens, ms in result.phases],
    }


def calibration(decisions: Iterable[Decision]) -> float | None:
    """Mean relative error of the goodput that decisions predicted against what was measured while
    they were in force, weighted by steps; None without a decision that lasted."""
    pairs = [
        (one.realised.steps, abs(one.predicted_goodput / one.realised.goodput - 1.0))
        for one in decisions
        if one.realised.steps >= LONG_DECISION and one.realised.goodput > 0
    ]
    whole = sum(steps for steps, _ in pairs)
    return round(sum(steps * error for steps, error in pairs) / whole, 4) if whole else None


def compare(rows: Sequence[Row]) -> list[Row]:
    """The rows of one load with what each policy got relative to plain decoding, the best static
    choice and the clairvoyant, and its regret against the best of these that there is."""
    speeds = {one["policy"]: one["tokens_per_s"] for one in rows}
    best = speeds.get(CLAIRVOYANT) or max(speeds.values(), default=0.0)
    found: list[Row] = []
    for one in rows:
        speed = one["tokens_per_s"]
        relative = {
            key: round(speed / speeds[who], 4)
            for key, who in (
                ("vs_none", NONE_AT_ALL),
                ("vs_best_static", BEST_STATIC),
                ("vs_clairvoyant", CLAIRVOYANT),
            )
            if speeds.get(who)
        }
        if best:
            relative["regret"] = round(1.0 - speed / best, 4)
        found.append({**one, **relative})
    return found
