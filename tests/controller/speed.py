"""How long deciding takes: the controller's plan and observe, by batch size. Run by hand.

    python -m tests.controller.speed [--against FOLDER] [--model] [--steps N]

FOLDER holds another version of the package `controller`: both then take turns in one process, in
blocks of a few steps, so that what else the machine does falls on both alike, and CPU time of the
thread is taken, which leaves out what other processes got in between. Every request has an offer
of two drafters, whose matches come and go, and shadow scores; the target's and the drafters' own
work is not run, only its outcome drawn. --model adds a serial model drafter with tails.
"""

from __future__ import annotations

import argparse
import importlib
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIZES = (1, 8, 32, 128)
BLOCK = 25
WARM_UP = 200
SOURCES = ("prompt", "output", "corpus")


class Version:
    """One version of the package, imported apart from the others."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        _drop()
        sys.path.insert(0, str(folder))
        try:
            # Any: the modules' types are those of another version.
            self.contract: Any = importlib.import_module("controller.contract")
            self.controller: Any = importlib.import_module("controller.controller")
            self.cost: Any = importlib.import_module("controller.cost")
        finally:
            sys.path.remove(str(folder))
            _drop()


def _drop() -> None:
    """Forget the package as imported so far; who holds its modules keeps them."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "controller"]:
        del sys.modules[name]


class Load:
    """A steady load of `size` requests on one controller; `step` returns the microseconds that
    plan and observe took."""

    def __init__(self, version: Version, size: int, model: bool, row_ms: float) -> None:
        self._c = c = version.contract
        self._size, self._model = size, model
        self._random = random.Random(7)
        self._row_ms = row_ms
        table = [
            c.CostPoint(n, n + extra, context, 8.0 + 0.02 * n + row_ms * extra + n * context * 4e-5)
            for n in (1, 8, 32, 128)
            for extra in (0, 1, 3, 7, 15, 63, 255, 511)
            for context in (128, 2048)
        ]
        self._controller = version.controller.AdaptiveController(
            ("ngram", "suffix"), version.cost.CostModel(table), tails=("ngram", "suffix")
        )
        if model:
            self._controller.add_drafter(c.DrafterInfo("mtp", model=True, rho=0.05))
        self._number = 0
        self._values: dict[tuple[int, int, str], Any] = {}
        self._features = {
            (i, name): c.Features(4, 1, "output")
            for i in range(size)
            for name in ("ngram", "suffix")
        }
        self._context = [200 + 7 * i for i in range(size)]

    def step(self) -> tuple[float, float]:
        c, draw = self._c, self._random
        self._number += 1
        requests = [
            c.RequestView(i, "", self._context[i], 400, 0.0, False) for i in range(self._size)
        ]
        offers: list[Any] = []
        for (i, name), features in self._features.items():
            if draw.random() < 0.15:
                match, streak = draw.choice((1, 2, 3, 5, 8, 12, 30)), draw.randrange(6)
                key = (match, streak, draw.choice(SOURCES))
                features = self._values.setdefault(key, c.Features(*key))  # as drafters keep them
                self._features[i, name] = features
            offers.append(c.Offer(i, name, draw.randint(6, 16), features))
        if self._model:
            offers += [c.Offer(i, "mtp", 16) for i in range(self._size)]
        batch = c.BatchView(self._number, requests, 0, 512 - self._size)
        begin = time.thread_time()
        plan = self._controller.plan(batch, offers)
        planned = time.thread_time()
        outcome = self._outcome(plan, offers)
        learn = time.thread_time()
        self._controller.observe(outcome)
        return 1e6 * (planned - begin), 1e6 * (time.thread_time() - learn)

    def _outcome(self, plan: Any, offers: list[Any]) -> Any:
        c, draw = self._c, self._random
        shadows: dict[int, list[Any]] = {}
        ran = {one.request: one for one in plan.allotments}
        for offer in offers:
            if offer.drafter != ran[offer.request].drafter and offer.drafter != "mtp":
                got = self._accepted(offer.features, offer.max_length)
                score = c.ShadowScore(offer.drafter, offer.max_length, got, offer.features)
                shadows.setdefault(offer.request, []).append(score)
        results: list[Any] = []
        passes: dict[str, list[int]] = {}
        for one in plan.allotments:
            features = self._features.get((one.request, one.drafter), c.Features())
            kept = self._accepted(features, one.length)
            if one.length:
                passes.setdefault(one.drafter, []).append(one.length)
            self._context[one.request] += kept + 1
            mine = tuple(shadows.get(one.request, ()))
            results.append(
                c.RequestOutcome(
                    one.request, one.drafter, one.length, kept, kept + 1, False, features, mine
                )
            )
        rows = self._size + sum(one.length for one in plan.allotments)
        ms = 8.0 + 0.02 * self._size + self._row_ms * (rows - self._size)
        ms = (ms + sum(self._context) * 4e-5) * draw.gauss(1.0, 0.02)
        proposals = tuple(
            c.Proposal(
                name, len(found), max(found), 0.02 * len(found) + (name == "mtp") * max(found)
            )
            for name, found in passes.items()
        )
        draft_ms = sum(one.ms for one in proposals)
        context = sum(self._context)
        return c.StepOutcome(
            self._number, self._size, rows, 0, context, ms, draft_ms, 0.5, tuple(results), proposals
        )

    def _accepted(self, features: Any, length: int) -> int:
        first = min(0.2 + 0.04 * features.match_length, 0.8)
        for k in range(length):
            if self._random.random() >= (0.8 if k else first):
                return k
        return length


def measure(
    versions: list[Version], size: int, steps: int, model: bool, row_ms: float
) -> Iterator[tuple[str, list[float], list[float]]]:
    """(version, microseconds of each plan, of each observe), in turns of BLOCK steps."""
    loads = [Load(version, size, model, row_ms) for version in versions]
    plans: list[list[float]] = [[] for _ in versions]
    observes: list[list[float]] = [[] for _ in versions]
    for load in loads:
        for _ in range(WARM_UP):
            load.step()
    for _ in range(steps // BLOCK):
        for place, load in enumerate(loads):
            for _ in range(BLOCK):
                planned, observed = load.step()
                plans[place].append(planned)
                observes[place].append(observed)
    for version, planned, observed in zip(versions, plans, observes, strict=True):
        yield version.name, planned, observed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="folder with another controller/")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--row-ms", type=float, default=0.05, help="cost of a drafted row")
    arguments = parser.parse_args()
    versions = [Version("this", Path(__file__).parents[2])]
    if arguments.against is not None:
        versions.insert(0, Version("other", arguments.against))
    print("batch  version  plan median     p99   observe median     p99   (microseconds)")
    for size in arguments.sizes:
        for name, planned, observed in measure(
            versions, size, arguments.steps, arguments.model, arguments.row_ms
        ):
            print(
                f"{size:5}  {name:7} {statistics.median(planned):12.1f} {_p99(planned):7.1f}"
                f"  {statistics.median(observed):15.1f} {_p99(observed):7.1f}"
            )


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


if __name__ == "__main__":
    main()
