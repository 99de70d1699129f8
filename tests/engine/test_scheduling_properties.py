"""Properties of scheduling and memory over random traffic, on a target without tensors."""

from __future__ import annotations

import subprocess
import sys
from random import Random

from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from engine.prefix import Scope
from engine.request import Request
from tests.engine.simulated import Simulation, continuation

PAGES = 16
LONGEST = PAGES * 4
CONVERSATION = [1, 2, 3, 4, 0, 1, 1, 2, 4, 4, 3, 2, 0, 0, 1, 3, 2, 4, 1, 0, 2, 2, 3, 1]


class Traffic(RuleBasedStateMachine):
    """Any arrivals, priorities, cancellations, drafts and accepted lengths, with a pool so small
    that requests preempt each other. The simulation checks every row and every page."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.cancelled: set[int] = set()

    @initialize(
        batch=st.integers(1, 6),
        chunk=st.integers(1, 12),
        scope=st.sampled_from(["shared", "tenant", "off"]),
        in_place=st.booleans(),
    )
    def start(self, batch: int, chunk: int, scope: Scope, in_place: bool) -> None:
        self.sim = Simulation(PAGES, batch, chunk, scope, in_place)

    @rule(
        shared=st.integers(0, len(CONVERSATION)),
        own=st.lists(st.integers(0, 4), min_size=1, max_size=12),
        output=st.integers(1, LONGEST),
        priority=st.integers(0, 2),
        tenant=st.sampled_from(["a", "b"]),
    )
    def arrive(self, shared: int, own: list[int], output: int, priority: int, tenant: str) -> None:
        prompt = CONVERSATION[:shared] + own
        output = min(output, LONGEST - len(prompt))
        self.requests.append(self.sim.add(prompt, output, priority, tenant))

    @rule(pick=st.integers(0, 10**6), words=st.lists(st.integers(0, 4), min_size=1, max_size=4))
    def follow_up(self, pick: int, words: list[int]) -> None:
        """The next turn of a chat that has ended."""
        if not self.sim.ended:
            return
        before = self.sim.ended[pick % len(self.sim.ended)]
        prompt = before.tokens + words
        if len(prompt) < LONGEST:
            output = min(20, LONGEST - len(prompt))
            self.requests.append(self.sim.add(prompt, output, before.priority, before.tenant))

    @rule(pick=st.integers(0, 10**6))
    def cancel(self, pick: int) -> None:
        live = [one for one in self.requests if self.sim.scheduler.find(one.name) is one]
        if live:
            request = live[pick % len(live)]
            self.sim.scheduler.remove(request)
            self.sim.scheduler.pages.check()
            self.cancelled.add(request.id)

    @rule(pick=st.integers(0, 10**6))
    def fail(self, pick: int) -> None:
        """A fault of one request: what it computed is not used again."""
        running = self.sim.scheduler.running
        if running:
            request = running[pick % len(running)]
            for page in request.pages[request.reused : request.computed // 4]:
                if self.sim.scheduler.pages._holders[page] == 1:
                    self.sim.slots[page * 4 : page * 4 + 4] = [None] * 4
            self.sim.scheduler.remove(request, sound=False)
            self.cancelled.add(request.id)

    @rule(chance=st.randoms(use_true_random=False), steps=st.integers(1, 12))
    def run(self, chance: Random, steps: int) -> None:
        for _ in range(steps):
            scheduler = self.sim.scheduler
            before = [
                (one, one.produced, one.preemptions) for one in scheduler.running if one.decoding
            ]
            work = self.sim.step(lambda one: (chance.randrange(7), chance.randrange(7)))
            assert bool(work) or not self._live()
            assert len(scheduler.running) <= scheduler.max_batch
            assert sum(prefill.rows for prefill in work.prefills) <= scheduler._chunk_rows
            ran = {one.id for one in work.requests}
            assert len(ran) == len(work.requests), "a request runs twice in a step"
            for one, produced, preemptions in before:
                assert one.produced > produced or one.preemptions > preemptions, "it stood still"
            if work:
                first = min([*work.requests, *scheduler.running], key=lambda one: one.turn)
                assert first.id in ran, "the first in the order stood still"

    def _live(self) -> bool:
        return any(self.sim.scheduler.find(one.name) is one for one in self.requests)

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        live = [one for one in self.requests if self.sim.scheduler.find(one.name) is one]
        # In every step the first in the order computes a row or emits a token; nothing is lost
        # but what a preemption throws away, and the first is never preempted.
        bound = sum(2 * (one.prompt_length + 2 * one.max_tokens) for one in live)
        assert self.sim.drain(lambda one: (one.id % 4, one.produced % 3)) <= bound, "starved"
        assert self.sim.scheduler.pages.free == PAGES, "pages are not back"
        for request in self.requests:
            if request.id not in self.cancelled:
                expected = continuation(request.tokens[: request.prompt_length], request.max_tokens)
                output = request.tokens[request.prompt_length :]
                assert output == expected, "a token is lost, doubled or wrong"


Traffic.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestTraffic = Traffic.TestCase


@settings(max_examples=80, deadline=None)
@given(
    load=st.lists(
        st.tuples(st.integers(1, 20), st.integers(24, 40), st.integers(0, 1)),
        min_size=3,
        max_size=8,
    ),
    chunk=st.integers(1, 16),
    chance=st.randoms(use_true_random=False),
)
def test_more_requests_than_the_pool_holds_all_end_with_exactly_their_tokens(
    load: list[tuple[int, int, int]], chunk: int, chance: Random
) -> None:
    sim = Simulation(PAGES, len(load), chunk)
    for length, longest, priority in load:
        sim.add((CONVERSATION * 2)[:length], longest, priority)
    bound = sum(2 * (length + 2 * longest) for length, longest, _ in load)
    assert sim.drain(lambda one: (chance.randrange(6), chance.randrange(6))) <= bound
    assert [one.produced for one in sim.ended] == [one.max_tokens for one in sim.ended]
    assert len(sim.ended) == len(load)
    for one in sim.ended:
        prompt = one.tokens[: one.prompt_length]
        assert one.tokens[one.prompt_length :] == continuation(prompt, one.max_tokens)
    event(f"preemptions: {min(sim.scheduler.preemptions, 5)}")


def test_scheduling_needs_no_torch() -> None:
    code = "import sys, engine.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
