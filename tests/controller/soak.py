"""A long run of the controller: its memory and its time must stay flat. Run by hand.

    python -m tests.controller.soak [--steps 1000000] [--batch 4]

Requests come and go, drafters match and lapse, content changes, drafts are accepted by chance, and
the machine slows down now and then. Every tenth of the run prints what the controller holds, what
the process holds, and what plan and observe took. Ends with status 1 when the last tenth is more
than 10 % above the second in memory (and 100 kB) or 50 % in time.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import sys
import time

from controller.contract import (
    BatchView,
    CostPoint,
    Features,
    Offer,
    Proposal,
    RequestOutcome,
    RequestView,
    ShadowScore,
    StepOutcome,
)
from controller.controller import AdaptiveController
from controller.cost import CostModel
from tests.controller.test_controller import size_of

SOURCES = ("prompt", "output", "global")
DRAFTERS = ("ngram", "suffix")
MEMORY, TIME, SLACK = 1.1, 1.5, 100_000


class Traffic:
    """`batch` requests at a time, each of a random length, on one controller."""

    def __init__(self, batch: int) -> None:
        self._random = random.Random(11)
        self._values: dict[tuple[int, int, str], Features] = {}
        self._clock = 1e9
        table = [
            CostPoint(n, n + extra, 128, 10.0 + 0.1 * n + 0.2 * extra)
            for n in {1, batch}
            for extra in (0, 4, 16, 128)
        ]
        self.controller = AdaptiveController(DRAFTERS, CostModel(table), clock=lambda: self._clock)
        self._next = self._step = 0
        self._left: dict[int, int] = {}
        self._batch = batch

    def step(self) -> float:
        """One step; returns the milliseconds that plan and observe took."""
        draw = self._random
        while len(self._left) < self._batch:
            self._left[self._next] = draw.randint(8, 400)
            self._next += 1
        self._step += 1
        requests = [
            RequestView(i, "", 500 - left, max(left, 1), 0.0, False)
            for i, left in self._left.items()
        ]
        offers = [
            Offer(one.id, name, 16, self._features())
            for name in DRAFTERS
            for one in requests
            if draw.random() < 0.7
        ]
        begin = time.thread_time()
        attentive = self.controller.attentive
        plan = self.controller.plan(
            BatchView(self._step, requests, 0, 256), offers if attentive else []
        )
        planned = time.thread_time() - begin
        found = {(one.request, one.drafter): one.features for one in offers}
        results: list[RequestOutcome] = []
        for one in plan.allotments:
            kept = self._kept(one.length)
            mine = found.get((one.request, one.drafter), Features())
            shadows = tuple(
                ShadowScore(name, 8, self._kept(8), found[one.request, name])
                for name in DRAFTERS
                if name != one.drafter and (one.request, name) in found
            )
            results.append(
                RequestOutcome(
                    one.request, one.drafter, one.length, kept, kept + 1, False, mine, shadows
                )
            )
        drafts = [one.length for one in plan.allotments if one.length]
        rows = len(requests) + sum(drafts)
        slow = 1.5 if self._step // 5000 % 7 == 3 else 1.0
        ms = slow * (10.0 + 0.1 * len(requests) + 0.2 * sum(drafts)) * draw.gauss(1.0, 0.03)
        proposals = (Proposal("ngram", len(drafts), max(drafts), 0.05),) if drafts else ()
        context = sum(one.context_len for one in requests)
        outcome = StepOutcome(
            self._step, len(requests), rows, 0, context, ms, 0.05, 0.4, tuple(results), proposals
        )
        begin = time.thread_time()
        self.controller.observe(outcome)
        took = planned + time.thread_time() - begin
        self._clock += ms / 1000
        for one in results:
            self._left[one.request] -= one.committed
            if self._left[one.request] <= 0:
                del self._left[one.request]
                self.controller.forget(one.request)
        if self._step % 100 == 0:
            self.controller.take_decisions()
        return 1e3 * took

    def _features(self) -> Features:
        draw = self._random
        key = (draw.randint(1, 24), draw.randint(0, 5), draw.choice(SOURCES))
        return self._values.setdefault(key, Features(*key))

    def _kept(self, length: int) -> int:
        first = 0.75 if self._step // 3000 % 3 else 0.1
        for k in range(length):
            if self._random.random() >= (0.8 if k else first):
                return k
        return length


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=4)
    arguments = parser.parse_args()
    traffic, tenth = Traffic(arguments.batch), max(arguments.steps // 10, 1)
    sizes, times = [], []
    print("    steps  controller kB  process MB  plan + observe median ms     p99  decisions")
    for part in range(10):
        took = [traffic.step() for _ in range(tenth)]
        sizes.append(size_of(traffic.controller))
        times.append(statistics.median(took))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        p99 = statistics.quantiles(took, n=100)[98]
        decisions = traffic.controller.report()["decisions"]
        print(
            f"{(part + 1) * tenth:9}  {sizes[-1] / 1e3:13.0f}  {peak:10.0f}  {times[-1]:24.3f}"
            f"  {p99:6.3f}  {decisions:9}",
            flush=True,
        )
    grows = sizes[-1] > MEMORY * sizes[1] + SLACK
    slows = times[-1] > TIME * times[1]
    print(
        "memory grows" if grows else "memory is flat",
        "and",
        "time grows" if slows else "time is flat",
    )
    return int(grows or slows)


if __name__ == "__main__":
    sys.exit(main())
