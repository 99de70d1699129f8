"""Scheduler: one order, pages on demand, prefill in chunks, preemption that loses nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import Request
from engine.wire import Finished
from tests.engine.scripted import Harness, ScriptedDrafter

Script = Callable[[list[int], int], list[int]]


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


def test_a_request_waits_until_there_are_pages_for_its_prompt() -> None:
    harness = Harness(5, logits, pages=8)  # 4 tokens a page
    first = harness.add([1] * 12, 12)
    second = harness.add([1] * 13, 12)
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


def right(tokens: list[int], length: int) -> list[int]:
    """What greedy decoding goes on with."""
    text = list(tokens)
    for _ in range(length):
        row = logits(text[-1], len(text) - 1)
        text.append(row.index(max(row)))
    return text[len(tokens) :]


def half_right(tokens: list[int], length: int) -> list[int]:
    good = right(tokens, length)
    return [*good[: length // 2], *((token + 1) % 5 for token in good[length // 2 :])]


def drafting(length: int, script: Script = half_right, pages: int = 4096) -> Harness:
    """Every request drafts `length` tokens in every step."""
    return Harness(
        5, logits, [ScriptedDrafter(script)], lambda s, r, n: ("ngram", length), pages=pages
    )


def output(harness: Harness, request: Request) -> list[int]:
    return [piece.token for piece in harness.pieces(request)]


@pytest.mark.parametrize("length", [0, 1, 5])
def test_preemption_during_speculation_loses_and_doubles_no_token(length: int) -> None:
    harness = drafting(length, pages=14)
    requests = [harness.add([k] * (3 + k), 30) for k in range(1, 5)]
    harness.drain()
    assert harness.engine.scheduler.preemptions > 0, "the pool was not small enough"
    for request in requests:
        plain = right(request.tokens[: request.prompt_length], 30)
        assert output(harness, request) == plain == request.tokens[request.prompt_length :]
        end = harness.end(request)
        assert isinstance(end, Finished)
        assert (end.finish_reason, end.completion_tokens) == ("length", 30)
        assert 0 <= request.accepted <= request.drafted
        assert request.steps + request.accepted + 1 == 30, "steps do not add up to the tokens"
    assert harness.engine.scheduler.pages.free == 14


def test_drafts_never_cost_another_request_its_pages() -> None:
    def wrong(tokens: list[int], length: int) -> list[int]:
        return [(token + 1) % 5 for token in right(tokens, length)]

    for length in (0, 15):
        harness = drafting(length, wrong, pages=8)
        long, short = harness.add([1] * 4, 28), harness.add([2] * 4, 12)
        harness.drain()
        assert (long.produced, short.produced) == (28, 12)
        assert harness.engine.scheduler.preemptions == 0


def test_two_requests_do_not_preempt_each_other_for_ever() -> None:
    harness = Harness(5, logits, pages=10)
    first, second = harness.add([1] * 4, 36), harness.add([2] * 4, 36)
    harness.drain()
    assert first.preemptions == 0, "the earlier request gave way"
    assert 0 < second.preemptions < 36
    assert harness.engine.steps < 200


def test_a_prefix_hit_changes_neither_the_text_nor_the_acceptance() -> None:
    harness = drafting(4)
    prompt = [1, 2, 3, 4, 0, 1, 2, 2, 3, 1]
    first = harness.add(prompt, 20)
    harness.drain()
    assert harness.engine.scheduler.prefix_hit_tokens == 0
    second = harness.add(prompt, 20)
    harness.drain()
    assert harness.engine.scheduler.prefix_hit_tokens == 8
    assert output(harness, second) == output(harness, first) == right(prompt, 20)
    assert (second.drafted, second.accepted) == (first.drafted, first.accepted)
    assert second.histogram == first.histogram


def test_cancelling_a_neighbour_changes_no_text() -> None:
    harness = drafting(3, pages=24)
    prompt = [1, 2, 3, 4, 0, 1, 2, 2, 3, 1]
    kept, gone = harness.add(prompt, 30), harness.add(prompt, 30)
    for _ in range(4):
        harness.engine.step()
    harness.engine.cancel(gone.name)
    harness.engine.scheduler.pages.check()
    third = harness.add(prompt, 30)
    harness.drain()
    assert output(harness, kept) == output(harness, third) == right(prompt, 30)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 16])
@pytest.mark.parametrize("left", [1, 2, 3, 4, 5])
def test_the_last_tokens_of_the_context_come_out_exactly(length: int, left: int) -> None:
    harness = drafting(length, right, pages=4)
    request = harness.add([1] * (16 - left), left)  # prompt and output fill the pool
    harness.drain()
    assert output(harness, request) == right([1] * (16 - left), left)
    end = harness.end(request)
    assert isinstance(end, Finished)
    assert (end.finish_reason, end.completion_tokens) == ("length", left)


def test_better_priority_runs_first_and_equal_ones_in_order_of_arrival() -> None:
    harness = Harness(5, logits, max_batch=1)
    requests = [harness.add([1] * 4, 3, priority=priority) for priority in (1, 1, 0, 2, 0)]
    harness.drain()
    ends = [event.id for event in harness.events if isinstance(event, Finished)]
    assert ends == [requests[place].name for place in (2, 4, 0, 1, 3)]


@pytest.mark.parametrize(("slots", "pages"), [(1, 4096), (8, 8)])
def test_a_better_priority_takes_the_place_of_a_worse_one_when_room_is_short(
    slots: int, pages: int
) -> None:
    harness = Harness(5, logits, max_batch=slots, pages=pages)
    worse = harness.add([1] * 8, 20, priority=1)
    for _ in range(5):
        harness.engine.step()
    better = harness.add([2] * 20, 6, priority=0)
    harness.engine.step()
    assert better.admitted is not None
    assert worse.preemptions == 1
    assert harness.engine.scheduler.waiting == [worse]
    harness.drain()
    assert output(harness, worse) == right([1] * 8, 20)
    assert output(harness, better) == right([2] * 20, 6)


def test_a_request_never_takes_the_place_of_one_with_equal_priority() -> None:
    harness = Harness(5, logits, max_batch=1)
    first = harness.add([1] * 4, 10)
    harness.engine.step()
    harness.add([1] * 4, 10)
    harness.drain()
    assert first.preemptions == 0


def test_a_better_priority_leaves_the_others_alone_when_there_is_room() -> None:
    harness = Harness(5, logits)
    worse = harness.add([1] * 4, 10, priority=5)
    harness.engine.step()
    harness.add([1] * 4, 10)
    harness.drain()
    assert worse.preemptions == 0


def test_a_long_prompt_does_not_hold_up_a_short_one_behind_it() -> None:
    harness = Harness(5, logits, chunk_rows=8)
    long, short = harness.add([1] * 100, 2), harness.add([2] * 8, 2)
    for _ in range(2):
        harness.engine.step()
    assert short.produced == 1
    assert long.computed == 8, "the long prompt kept less than half of the budget"


def test_short_prompts_cannot_starve_a_long_one_before_them() -> None:
    harness = Harness(5, logits, chunk_rows=8, max_batch=64)
    long = harness.add([1] * 40, 2)
    for step in range(1, 11):
        for _ in range(4):
            harness.add([2] * 4, 1)
        harness.engine.step()
        assert long.computed == 4 * step
    assert long.produced == 1


def test_a_prompt_that_needs_the_whole_pool_is_not_passed_by_small_ones() -> None:
    harness = Harness(5, logits, pages=8)
    small = [harness.add([1] * 4, 8) for _ in range(2)]
    harness.engine.step()
    large = harness.add([2] * 30, 2)
    small += [harness.add([3] * 4, 8) for _ in range(4)]
    harness.drain()
    ends = [event.id for event in harness.events if isinstance(event, Finished)]
    assert ends.index(large.name) == 2
    assert output(harness, large) == right([2] * 30, 2)
    assert all(output(harness, one) == right(one.tokens[:4], 8) for one in small)


def test_nobody_gives_way_to_a_request_that_would_not_fit_even_then() -> None:
    harness = Harness(5, logits, pages=12)
    equal = harness.add([1] * 20, 8)
    worse = harness.add([1] * 4, 8, priority=1)
    harness.engine.step()
    better = harness.add([2] * 36, 4)
    harness.engine.step()
    assert better.admitted is None
    harness.drain()
    assert equal.preemptions == worse.preemptions == 0
    assert output(harness, better) == right([2] * 36, 4)


def test_nobody_gives_way_for_pages_that_would_not_be_free_then() -> None:
    """Two worse requests and an equal one share a prefix that the better one shares too: taking
    the worse ones' places frees their own pages only."""
    prefix = [1, 2, 3, 4] * 5
    harness = Harness(5, logits, pages=16)
    equal = harness.add([*prefix, 1], 8)
    harness.engine.step()
    worse = [harness.add([*prefix, token], 3, priority=1) for token in (2, 3)]
    harness.engine.step()
    assert all(one.pages[:5] == equal.pages[:5] for one in worse), "nothing is shared"
    better = harness.add([*prefix, *[4] * 34], 2)
    harness.engine.step()
    assert better.admitted is None
    harness.drain()
    assert [one.preemptions for one in (equal, *worse)] == [0, 0, 0]
    assert output(harness, better) == right([*prefix, *[4] * 34], 2)


def test_kept_pages_that_a_request_would_use_again_do_not_count_as_room_for_it() -> None:
    prefix = [1, 2, 3, 4] * 4
    harness = Harness(5, logits, pages=12)
    harness.add([*prefix, 1], 1)
    harness.drain()
    assert harness.engine.scheduler.pages.kept == 4
    equal = harness.add([2] * 4, 12)
    worse = harness.add([3] * 4, 8, priority=1)
    harness.engine.step()
    better = harness.add([*prefix, *[4] * 24], 2)
    harness.engine.step()
    assert better.admitted is None
    harness.drain()
    assert equal.preemptions == worse.preemptions == 0
    assert output(harness, better) == right([*prefix, *[4] * 24], 2)
