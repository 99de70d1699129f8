"""What the rows of a suite or a run look like: throughput, regret, D and drafters against load."""

from __future__ import annotations

from collections.abc import Sequence

from controller.simulate import svg
from controller.simulate.rows import BEST_STATIC, CLAIRVOYANT, Row


def suite_plots(rows: Sequence[Row], policy: str) -> dict[str, str]:
    """By file name: throughput of every policy against the batch, per text; regret; and what D and
    drafter the policy had."""
    steady = [one for one in rows if one["figure"] == "steady"]
    names = list(dict.fromkeys(str(one["cell"]).rpartition(", ")[0] for one in steady))
    speed: list[str] = []
    choice: list[str] = []
    for name in names:
        mine = [one for one in steady if str(one["cell"]).rpartition(", ")[0] == name]
        who = list(dict.fromkeys(one["policy"] for one in mine))
        speed.append(
            svg.lines(
                name, "requests decoding together", "throughput / none",
                {w: _points(mine, w, "vs_none") for w in who}, log_x=True,
            )
        )  # fmt: skip
        drafters = dict.fromkeys(
            d for one in mine if one["policy"] == policy for d in one["drafters"]
        )
        series = {"mean D": _points(mine, policy, "mean_d")}
        for drafter in drafters:
            series[drafter] = [
                (one["batch"], one["drafters"].get(drafter, 0.0))
                for one in mine
                if one["policy"] == policy
            ]
        choice.append(
            svg.lines(
                f"{name}, policy {policy}", "requests decoding together",
                "mean D; share of request-steps", series, log_x=True,
            )
        )  # fmt: skip
    return {
        "throughput.svg": svg.stack(speed),
        "choice.svg": svg.stack(choice),
        "regret.svg": svg.stack(_regrets(rows)),
    }


def _points(rows: Sequence[Row], who: str, key: str) -> list[tuple[float, float]]:
    return [(one["batch"], one[key]) for one in rows if one["policy"] == who]


def _regrets(rows: Sequence[Row]) -> list[str]:
    """Per figure that is not steady, and the worst of the steady cells: what each policy lost
    against the clairvoyant."""
    plots: list[str] = []
    titles = {
        "steady": "Steady load, worst cell", "useless": "Useless drafters, worst cell",
        "content": "Content shift, worst cell", "load": "Load and content shift",
    }  # fmt: skip
    for kind, title in titles.items():
        worst: dict[str, float] = {}
        for one in rows:
            if one["figure"] == kind and one["policy"] != CLAIRVOYANT:
                worst[one["policy"]] = max(worst.get(one["policy"], 0.0), one["regret"])
        if worst:
            plots.append(svg.bars(title, "regret: 1 - throughput / clairvoyant", worst))
    return plots


def course_plots(rows: Sequence[Row]) -> str:
    """A run over time: throughput of each policy; and per policy the load, D and drafters."""
    courses = {one["policy"]: one["course"] for one in rows if one.get("course")}
    plots = [
        svg.lines(
            "Throughput over time", "seconds", "tokens/s",
            {who: [(p["s"], p["tokens_per_s"]) for p in course] for who, course in courses.items()},
        ),
        svg.bars("Throughput", "tokens/s", {one["policy"]: one["tokens_per_s"] for one in rows}),
    ]  # fmt: skip
    regrets = {
        one["policy"]: one["regret"] for one in rows
        if one.get("regret") is not None and one["policy"] not in (CLAIRVOYANT, BEST_STATIC)
    }  # fmt: skip
    if regrets:
        plots.append(svg.bars("Regret", "1 - throughput / best", regrets))
    for who, course in courses.items():
        drafters = dict.fromkeys(name for point in course for name in point["drafters"])
        load = max((point["requests"] for point in course), default=1.0) or 1.0
        series = {
            f"load (1 = {load:g} requests)": [(p["s"], p["requests"] / load) for p in course],
            "D / 10": [(p["s"], p["d"] / 10.0) for p in course],
        }
        for name in drafters:
            series[name] = [(p["s"], p["drafters"].get(name, 0.0)) for p in course]
        plots.append(
            svg.lines(f"{who}: load, D and drafters", "seconds", "share of request-steps", series)
        )
    return svg.stack(plots)
