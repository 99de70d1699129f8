"""Scheduler: first come first served, prefill in chunks, decoding never starved."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.wire import Finished
from tests.engine.scripted import Harness, ScriptedDrafter


def logits(token: int, position: int) -> list[float]:
    return [float((token + k + position) % 5) for k in range(5)]


def test_a_long_prompt_is_prefilled_in_chunks_while_others_decode() -> None:
    harness = Harness(5, logits, chunk_rows=8)
    first = harness.add([1], 20)
    harness.engine.step()
    long = harness.add([2] * 40, 5)
    for step in range(1, 6):
        harness.engine.step()
        assert first.produced == 1 + step, "decoding stood still during a prefill"
        assert long.computed == min(40, 8 * step)
    assert long.produced == 1


def test_every_step_is_one_target_forward() -> None:
    harness = Harness(
        5,
        logits,
        [ScriptedDrafter(lambda tokens, n: [1] * n, "a")],
        lambda step, request, names: ("a", step % 4),
        chunk_rows=8,
    )
    for length in (1, 30, 3, 17):
        harness.add([1] * length, 25)
    harness.drain()
    assert harness.executor.forwards == harness.engine.steps


def test_a_request_waits_until_its_pages_are_free() -> None:
    harness = Harness(5, logits, pages=5)  # 4 tokens a page
    first = harness.add([1] * 4, 12)
    second = harness.add([1] * 4, 12)
    harness.engine.step()
    assert first.admitted is not None
    assert second.admitted is None
    harness.drain()
    assert (first.produced, second.produced) == (12, 12)


def test_cancel_frees_the_pages_before_the_next_step() -> None:
    harness = Harness(5, logits, pages=8)
    running = harness.add([1] * 4, 12)
    waiting = harness.add([1] * 20, 12)
    harness.engine.step()
    harness.engine.cancel(running.name)
    harness.engine.cancel(waiting.name)
    harness.engine.scheduler.pages.check()
    assert harness.engine.scheduler.pages.free == 8
    assert not harness.engine.step()
    for request in (running, waiting):
        end = harness.end(request)
        assert isinstance(end, Finished)
        assert end.finish_reason == "cancelled"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_nothing_is_lost_under_random_arrivals_cancellations_and_drafts(seed: int) -> None:
    chance = random.Random(seed)
    drafters = [
        ScriptedDrafter(lambda tokens, n: [chance.randrange(5) for _ in range(n)], name)
        for name in ("a", "b")
    ]
    harness = Harness(
        5,
        logits,
        drafters,
        lambda step, request, names: (chance.choice(["a", "b", "none"]), chance.randrange(6)),
        pages=24,
        max_batch=chance.randint(1, 6),
        chunk_rows=chance.randint(1, 12),
    )
    live = []
    total = 0
    for _ in range(80):
        if chance.random() < 0.3:
            live.append(harness.add([1] * chance.randint(1, 30), chance.randint(1, 30)))
            total += 1
        if live and chance.random() < 0.1:
            harness.engine.cancel(chance.choice(live).name)
        harness.engine.step()
        harness.engine.scheduler.pages.check()
    harness.drain()
    assert harness.engine.scheduler.pages.free == 24
    ends = [event for event in harness.events if isinstance(event, Finished)]
    assert len(ends) == total
    for request, end in zip(live, map(harness.end, live), strict=True):
        assert isinstance(end, Finished)
        if end.finish_reason == "length":
            assert len(harness.pieces(request)) == request.max_tokens == end.completion_tokens
