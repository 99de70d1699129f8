"""Prefix cache: what is found, what is never found, and what it saves."""

from __future__ import annotations

import pytest

from engine.draw import Draw
from engine.prefix import Scope
from tests.engine.simulated import PAGE, Simulation, continuation

PROMPT = [1, 2, 3, 4, 0, 1, 1, 2, 4, 4, 3, 2, 0]  # three full pages and one token


def simulation(scope: Scope = "shared", pages: int = 32) -> Simulation:
    return Simulation(pages, max_batch=8, chunk_rows=64, scope=scope)


def test_a_repeated_prompt_computes_only_what_is_not_in_a_full_page() -> None:
    sim = simulation()
    sim.add(PROMPT, 3)
    sim.drain()
    again = sim.add(PROMPT, 3)
    work = sim.step()
    assert [prefill.rows for prefill in work.prefills] == [1]
    sim.drain()
    assert again.tokens == PROMPT + continuation(PROMPT, 3)
    assert sim.scheduler.prefix_queried_tokens == 2 * len(PROMPT)
    assert sim.scheduler.prefix_hit_tokens == again.cached_tokens == 12


def test_one_prompt_token_is_computed_even_when_every_page_is_known() -> None:
    sim = simulation()
    sim.add(PROMPT[:12], 5)
    sim.drain()
    sim.add(PROMPT[:12], 5)
    assert [prefill.rows for prefill in sim.step().prefills] == [4]


def test_the_next_turn_of_a_chat_finds_the_answer_and_continues_in_place() -> None:
    sim = simulation()
    first = sim.add(PROMPT, 12)
    sim.drain(lambda request: (3, request.produced % 4))
    second = sim.add([*first.tokens, 3, 3], 6)
    sim.step()
    full = (len(first.tokens) - 1) // PAGE
    assert sim.scheduler.prefix_hit_tokens == full * PAGE > len(PROMPT)
    start = second.pages[0]
    assert second.pages == list(range(start, start + len(second.pages)))


def test_a_running_request_shares_its_pages() -> None:
    sim = simulation()
    first = sim.add(PROMPT, 20)
    sim.step()
    second = sim.add(PROMPT, 20)
    sim.step()
    assert second.pages[:3] == first.pages[:3]
    sim.scheduler.remove(first)
    sim.drain()
    assert second.tokens == PROMPT + continuation(PROMPT, 20)


def test_a_page_is_found_only_behind_the_same_text() -> None:
    sim = simulation()
    sim.add(PROMPT, 1)
    sim.drain()
    sim.add([0, *PROMPT[1:]], 1)  # the second page is the same, what is before it is not
    sim.drain()
    assert sim.scheduler.prefix_hit_tokens == 0


def test_rejected_drafts_are_never_found() -> None:
    sim = simulation()
    first = sim.add(PROMPT, 16)
    sim.drain(lambda request: (4, 0))
    wrong = [(token + 1) % 5 for token in first.tokens[13:17]]
    sim.add([*first.tokens[:13], *wrong, 1, 2, 3], 4)
    sim.drain()
    assert sim.scheduler.prefix_hit_tokens == 12


@pytest.mark.parametrize(("scope", "hit"), [("shared", 12), ("tenant", 0), ("off", 0)])
def test_the_scope_says_whose_pages_are_found(scope: Scope, hit: int) -> None:
    sim = simulation(scope)
    sim.add(PROMPT, 1, tenant="a")
    sim.drain()
    sim.add(PROMPT, 1, tenant="b")
    sim.drain()
    assert sim.scheduler.prefix_hit_tokens == hit
    sim.add(PROMPT, 1, tenant="b")
    sim.drain()
    assert sim.scheduler.prefix_hit_tokens == (0 if scope == "off" else hit + 12)
    assert sim.scheduler.prefix_queried_tokens == (0 if scope == "off" else 3 * len(PROMPT))


def test_a_request_for_prompt_logprobs_computes_its_whole_prompt() -> None:
    sim = simulation()
    sim.add(PROMPT, 1)
    sim.drain()
    request = sim.add(PROMPT, 1)
    request.draw = Draw(prompt_logprobs=1)
    assert [prefill.rows for prefill in sim.step().prefills] == [len(PROMPT)]


@pytest.mark.parametrize("scope", ["shared", "tenant"])
@pytest.mark.parametrize(
    ("salts", "found"), [(("a", "a"), 12), (("a", "b"), 0), (("a", ""), 0), (("", "a"), 0)]
)
def test_only_requests_with_the_same_cache_salt_share_pages(
    scope: Scope, salts: tuple[str, str], found: int
) -> None:
    sim = simulation(scope)
    for salt in salts:
        sim.add(PROMPT, 3).cache_salt = salt
        sim.drain()
    assert sim.scheduler.prefix_hit_tokens == found


def test_what_a_failed_request_computed_is_not_found() -> None:
    sim = simulation()
    request = sim.add(PROMPT, 8)
    sim.step()
    sim.scheduler.remove(request, sound=False)
    assert sim.scheduler.pages.kept == 0
    sim.add(PROMPT, 1)
    sim.drain()
    assert sim.scheduler.prefix_hit_tokens == 0


@pytest.mark.parametrize("steps", [1, 4])
def test_a_failed_request_takes_nothing_along_that_it_only_found(steps: int) -> None:
    sim = simulation()
    sim.add(PROMPT, 3)
    sim.drain()
    failed = sim.add([*PROMPT, 4, 4, 4, 4, 4], 9)
    for _ in range(steps):
        sim.step()
    assert failed.cached_tokens == 12
    sim.scheduler.remove(failed, sound=False)
    sim.scheduler.pages.check()
    third = sim.add([*PROMPT, 4, 4, 4, 4, 4], 9)
    sim.drain()
    assert third.cached_tokens == 12, "found pages were lost, or what failed is found"
    assert third.tokens == third.tokens[:18] + continuation(third.tokens[:18], 9)


def test_a_preempted_request_computes_only_what_was_evicted() -> None:
    sim = simulation(pages=12)
    first, second = sim.add([1] * 8, 36), sim.add([2] * 8, 30)
    rows: list[int] = []
    while not second.preemptions:
        sim.step()
    computed = second.produced + second.prompt_length
    sim.scheduler.remove(first)
    rows = [prefill.rows for prefill in sim.step().prefills]
    assert 0 < sum(rows) < computed // 2
    sim.drain()
    assert second.tokens == [2] * 8 + continuation([2] * 8, 30)
    assert sim.scheduler.prefix_queried_tokens == 16, "a second look-up is not counted again"
