"""The suffix drafter: whose text it drafts from, what it keeps, and what it gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.config import EngineConfig
from engine.drafters.base import Bounded, Committed, Tail
from engine.drafters.corpus import CorpusHolder
from engine.drafters.parameters import Tunable
from engine.drafters.registry import DRAFTERS
from engine.drafters.suffix.drafter import (
    COMMIT_BUDGET,
    IDLE_UPKEEP,
    UPKEEP,
    SuffixDrafter,
)
from engine.drafters.suffix.memory import VISITS
from engine.drafters.suffix.slices import PRICE
from engine.drafters.suffix.texts import PROMPT_BUDGET
from engine.errors import StartError
from engine.request import Request
from tests.engine.replay import commit, make_request

VOCABULARY = 1000
FAR = list(range(500, 540))
"""Tokens that occur nowhere else."""


def drafter(end_ids: frozenset[int] = frozenset(), **settings: Any) -> SuffixDrafter:
    config = msgspec.convert(
        {"max_draft_length": 8, "suffix_memory_mb": 16} | settings, EngineConfig
    )
    one = SuffixDrafter(config, end_ids, VOCABULARY)
    one.set_parameters({"factor": 2.0})
    return one


def started(
    one: SuffixDrafter, prompt: Sequence[int], number: int, tenant: str = "", first: int = 0
) -> Request:
    """A request whose prompt is taken in, with its first output token committed."""
    request = make_request(prompt, number)
    request.tenant = tenant
    one.admit(request)
    request.tokens.append(first)
    one.commit([Committed(request, len(prompt), [first], prefilled=True)])
    return request


def answered(one: SuffixDrafter, number: int, answer: Sequence[int], tenant: str = "") -> None:
    """A whole request with this answer."""
    request = started(one, [900 + number], number, tenant, answer[0])
    commit(one, request, answer[1:], ended=True)
    one.forget(request.id)


def drafted(one: SuffixDrafter, request: Request, length: int = 8) -> list[int]:
    (offer,) = one.offer([request])
    (draft,) = one.propose([request], [length])
    assert (offer is None) == (not draft)
    if offer is not None:
        assert offer.max_length >= len(draft)
    return list(draft.tokens)


def source(one: SuffixDrafter, request: Request) -> str:
    (offer,) = one.offer([request])
    return offer.features.source if offer is not None else ""


def test_a_repeated_prompt_is_continued() -> None:
    one = drafter()
    request = started(one, [1, 2, 3, 4, 5, 6, 1, 2], 1, first=3)
    assert drafted(one, request) == [4, 5, 6, 1, 2, 3]
    assert source(one, request) == "prompt"


def test_the_draft_length_follows_the_match() -> None:
    one = drafter()
    request = started(one, [1, 2, 3, 4, 5, 6, 9], 1, first=1)
    assert drafted(one, request) == [2, 3]
    one.set_parameters({"factor": 1.0})
    commit(one, request, [2])
    assert drafted(one, request) == [3, 4]
    one.set_parameters({"offset": 1.0})
    commit(one, request, [3])
    assert drafted(one, request) == [4, 5, 6, 9]
    assert drafted(one, request, length=2) == [4, 5]


def test_nothing_known_gives_no_offer() -> None:
    one = drafter()
    assert drafted(one, started(one, [1, 2, 3], 1, first=4)) == []


def test_a_prompt_of_one_token_repeated_is_a_match() -> None:
    one = drafter()
    request = started(one, [7], 1, first=7)
    commit(one, request, [7])
    assert drafted(one, request)[:1] == [7]


def test_a_draft_ends_with_an_end_of_text() -> None:
    one = drafter(end_ids=frozenset({3}), suffix_tree="off")
    request = started(one, [1, 2, 3, 4, 5, 1], 1, first=2)
    assert drafted(one, request) == [3]


def test_past_answers_are_drafted_from_but_not_past_prompts() -> None:
    one = drafter()
    answered(one, 1, [10, 11, 12, 13, 14])
    other = started(one, [20, 21, 22, 23], 2, first=30)
    commit(one, other, [31], ended=True)
    one.forget(other.id)
    request = started(one, [1], 3, first=10)
    assert drafted(one, request) == [11, 12]
    assert source(one, request) == "global"
    assert drafted(one, started(one, [1], 4, first=20)) == []


def test_answers_are_drafted_from_while_they_grow() -> None:
    one = drafter()
    growing = started(one, [1], 1, first=10)
    commit(one, growing, [11, 12, 13])
    assert drafted(one, started(one, [2], 2, first=10)) == [11, 12]


@pytest.mark.parametrize(
    ("scope", "other", "expected"),
    [
        ("tenant", "a", [11, 12]),
        ("tenant", "b", []),
        ("shared", "b", [11, 12]),
        ("off", "a", []),
    ],
)
def test_whose_answers_are_drafted_from(scope: str, other: str, expected: list[int]) -> None:
    one = drafter(suffix_tree=scope)
    answered(one, 1, [10, 11, 12, 13, 14], tenant="a")
    assert drafted(one, started(one, [1], 2, tenant=other, first=10)) == expected


@pytest.mark.parametrize("scope", ["tenant", "shared"])
def test_only_requests_with_the_same_cache_salt_share_answers(scope: str) -> None:
    one = drafter(suffix_tree=scope)
    for number, salt in enumerate(["", "a"]):
        request = make_request([900], number)
        request.cache_salt = salt
        one.admit(request)
        commit(one, request, [10, 11 + number, 20], ended=True)
        one.forget(request.id)
    for number, (salt, expected) in enumerate([("", [11, 20]), ("a", [12, 20]), ("b", [])], 10):
        request = make_request([1], number)
        request.cache_salt = salt
        one.admit(request)
        commit(one, request, [10])
        assert drafted(one, request) == expected


def test_a_reused_id_starts_afresh() -> None:
    one = drafter()
    started(one, [1, 2, 3, 4], 1, first=1)
    again = started(one, [5, 6, 7, 8], 1, first=1)
    assert drafted(one, again) == []


def test_unknown_and_forgotten_requests_have_no_drafts() -> None:
    one = drafter()
    request = make_request([1, 2, 1], 7)
    assert one.offer([request]) == [None]
    assert one.propose([request], [3])[0].tokens == []
    one.forget(7)
    started(one, [1, 2, 1], 7, first=2)
    one.forget(7)
    assert one.offer([request]) == [None]


def test_a_missed_commit_is_caught_up_with() -> None:
    one = drafter()
    request = started(one, [1, 2, 3, 4, 5], 1, first=9)
    request.tokens += [1, 2]  # committed, but it was not told
    assert commit(one, request, [3]) == ()
    assert drafted(one, request) == [4, 5, 9, 1, 2, 3]


def test_a_long_prompt_is_taken_in_over_several_steps() -> None:
    one = drafter()
    prompt = np.random.default_rng(1).permutation(900)[: PROMPT_BUDGET + 100].tolist()
    request = make_request(prompt)
    one.admit(request)
    request.tokens.append(prompt[0])
    assert one.offer([request]) == [None]
    one.commit([Committed(request, len(prompt), prompt[:1], prefilled=True)])
    assert drafted(one, request) == prompt[1:3]


def test_two_requests_wait_their_turn_and_both_get_there() -> None:
    one = drafter()
    prompts = [np.random.default_rng(n).permutation(900).tolist() for n in range(2)]
    requests = [make_request(prompt, n) for n, prompt in enumerate(prompts)]
    for request in requests:
        one.admit(request)
    for _ in range(4):
        one.commit([])
    for request, prompt in zip(requests, prompts, strict=True):
        commit(one, request, [prompt[0]])
        assert drafted(one, request) == prompt[1:3]


def test_ids_outside_the_vocabulary_end_the_indexing_of_that_text_only() -> None:
    one = drafter()
    broken = started(one, [1, 2, VOCABULARY, 1], 1, first=2)
    sound = started(one, [1, 2, 3, 1], 2, first=2)
    assert drafted(one, broken) == []
    assert drafted(one, sound) == [3, 1, 2]


def test_a_draft_of_another_is_continued_from_what_is_known() -> None:
    one = drafter(end_ids=frozenset({14}))
    assert isinstance(one, Tail)
    answered(one, 1, [10, 11, 12, 13, 14, 15])
    own = started(one, [1, 2, 3, 4, 5], 2, first=1)
    other = started(one, [1], 3, first=9)
    new = make_request([1, 2, 3], 4)
    tails = one.extend([own, other, new], [[2, 3], [10, 11, 12], [1]], [4, 8, 4])
    assert [list(tail) for tail in tails] == [[4, 5, 1], [13, 14], []]
    assert one.extend([own, other], [[2, 3], [77]], [1, 8])[0] == [4]
    before = drafted(one, own)
    one.extend([own], [[4]], [4])
    assert drafted(one, own) == before
    assert one.extend([], [], []) == []


def test_parameters_are_described_and_take_effect_at_once() -> None:
    one = drafter()
    assert isinstance(one, Tunable)
    assert set(one.values) == set(one.parameters)
    for name, parameter in one.parameters.items():
        assert parameter.check(one.values[name]) == one.values[name]
    request = started(one, [1, 2, 1, 3, 1, 4, 1, 5], 1, first=1)
    assert drafted(one, request) != []
    one.set_parameters({"min_token_prob": 0.9})
    commit(one, request, [1])
    assert drafted(one, request) == []


def idle(one: SuffixDrafter) -> None:
    for _ in range(10_000):
        if not one.work():
            return
    raise AssertionError("it never comes to rest")


def corpus(*texts: Any) -> tuple[Any, Any]:
    """Tokens and lengths."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    return np.concatenate([np.array(text, dtype=np.int32) for text in texts]), lengths


def test_a_corpus_is_drafted_from_by_everybody_until_it_is_dropped() -> None:
    one = drafter()
    assert isinstance(one, CorpusHolder)
    one.put_corpus("code", *corpus([40, 41, 42, 43], [50, 51, 52]), first=True)
    assert one.corpora()["code"].indexed == 0
    idle(one)
    state = one.corpora()["code"]
    assert (state.sequences, state.tokens, state.indexed, state.failed) == (2, 7, 7, None)
    assert state.bytes > 0
    for tenant in ("a", "b"):
        request = started(one, [1], ord(tenant), tenant, first=40)
        assert drafted(one, request) == [41, 42]
        assert source(one, request) == "corpus"
    one.drop_corpus("code")
    one.drop_corpus("nothing of this name")
    idle(one)
    assert one.corpora() == {}
    assert drafted(one, started(one, [1], 3, first=40)) == []


def test_a_corpus_is_replaced_or_added_to() -> None:
    one = drafter()
    one.put_corpus("code", *corpus([40, 41, 42, 43]), first=True)
    one.put_corpus("code", *corpus([50, 51, 52]), first=False)
    idle(one)
    assert one.corpora()["code"].tokens == 7
    one.put_corpus("code", *corpus([60, 61, 62]), first=True)
    idle(one)
    assert one.corpora()["code"].tokens == 3
    assert drafted(one, started(one, [1], 1, first=40)) == []
    assert drafted(one, started(one, [1], 2, first=60)) == [61, 62]


def test_a_corpus_is_indexed_while_requests_run() -> None:
    one = drafter()
    request = started(one, [1], 1, first=2)
    one.put_corpus("code", *corpus(np.random.default_rng(1).integers(0, 900, 1000)), first=True)
    for _ in range(20):
        commit(one, request, [3])
    assert one.corpora()["code"].indexed == 1000


def test_a_corpus_that_does_not_fit_says_so_and_leaves_room_for_requests() -> None:
    one = drafter(suffix_memory_mb=1)
    one.put_corpus("big", *corpus(np.random.default_rng(1).integers(0, 900, 20_000)), first=True)
    idle(one)
    state = one.corpora()["big"]
    assert (state.indexed, state.bytes) == (0, 0)
    assert "--suffix-memory-mb" in (state.failed or "")
    assert drafted(one, started(one, [1, 2, 3, 4, 1], 1, first=2)) == [3, 4, 1, 2]
    one.put_corpus("small", *corpus([40, 41, 42]), first=True)
    idle(one)
    assert one.corpora()["small"].failed is None, "the one that failed keeps its room"
    assert drafted(one, started(one, [1], 2, first=40)) == [41, 42]


def test_memory_stays_within_the_limit_and_old_answers_go_first() -> None:
    one = drafter(suffix_memory_mb=1)
    chance = np.random.default_rng(1)
    answers = [chance.integers(0, 900, 200).tolist() for _ in range(100)]
    for number, answer in enumerate(answers):
        answered(one, number, answer)
        assert one.memory.bytes <= one.memory.limit_bytes
    idle(one)
    newest = started(one, [901], 1000, first=answers[-1][5])
    commit(one, newest, answers[-1][6:9])
    assert drafted(one, newest)[:4] == answers[-1][9:13]
    oldest = started(one, [901], 1001, first=answers[0][5])
    commit(one, oldest, answers[0][6:9])
    assert drafted(one, oldest)[:4] != answers[0][9:13]


def test_answers_older_than_the_limit_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("engine.drafters.suffix.answers.time.monotonic", lambda: now[0])
    one = drafter()
    one.set_parameters({"max_age_s": 60})
    answered(one, 1, [10, 11, 12, 13])
    idle(one)
    assert drafted(one, started(one, [1], 2, first=10)) == [11, 12]
    now[0] += 3600.0
    idle(one)
    assert drafted(one, started(one, [1], 3, first=12)) == []


def test_new_answers_outweigh_old_ones_with_a_half_life(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("engine.drafters.suffix.answers.time.monotonic", lambda: now[0])
    one = drafter()
    one.set_parameters({"half_life_s": 60})
    for number in range(3):
        answered(one, number, [10, 11, 12])
    now[0] += 300.0
    idle(one)
    answered(one, 4, [10, 21, 22])
    assert drafted(one, started(one, [1], 5, first=10)) == [21, 22]
    one.forget(5)
    one.set_parameters({"half_life_s": 0})
    for _ in range(3):
        now[0] += 30.0
        idle(one)
    assert drafted(one, started(one, [1], 6, first=10)) == [11, 12]


def test_everything_is_given_back_when_all_is_over() -> None:
    one = drafter(suffix_tree="off")
    before = one.memory
    for number in range(20):
        answered(one, number, np.random.default_rng(number).integers(0, 900, 300).tolist())
    one.put_corpus("code", *corpus(FAR), first=True)
    idle(one)
    one.drop_corpus("code")
    idle(one)
    assert one.memory.bytes == before.bytes
    assert one.memory.sequences == one.memory.trees == 0


# --- what a call may cost -------------------------------------------------------------------------


def spent(one: SuffixDrafter, call: Callable[[], object]) -> Counter[str]:
    """What a call of the drafter did: suffixes moved, sequences opened and removed, nodes freed."""
    visits, before = int(one._forest.memory.state[VISITS]), one.memory
    call()
    after = one.memory
    return Counter(
        visits=int(one._forest.memory.state[VISITS]) - visits,
        opened=max(after.sequences - before.sequences, 0),
        freed=max(before.nodes - after.nodes, 0),
    )


def assert_bounded(cost: Counter[str], budget: int, depth: int = 64) -> None:
    """No more than the budget and what the last token or suffix overdraws."""
    whole = cost["visits"] + cost["freed"] + PRICE * cost["opened"]
    assert whole <= budget + 4 * depth, cost


STEP = 2 * PROMPT_BUDGET + UPKEEP
"""Cost of a step that commits nothing: texts taken in, and as much freed."""


@pytest.mark.parametrize("depth", [64, 256])
@pytest.mark.parametrize("unit", [[5], list(range(40))])
def test_prompts_that_repeat_themselves_are_taken_in_by_cost(depth: int, unit: list[int]) -> None:
    one = drafter(suffix_depth=depth)
    request = make_request(unit * (3000 // len(unit)))
    assert_bounded(spent(one, lambda: one.admit(request)), PROMPT_BUDGET, depth)
    steps = 0
    while one.offer([request]) == [None]:
        assert_bounded(spent(one, lambda: one.commit([])), STEP, depth)
        steps += 1
    assert steps >= 3000 * depth / STEP / 2


@pytest.mark.parametrize(
    "texts",
    [[[number % 900] for number in range(8000)], [[5] * 8000], [[1, 2, 3]] * 3000],
    ids=["tiny", "constant", "same"],
)
def test_corpora_are_put_indexed_and_dropped_by_cost(texts: list[list[int]]) -> None:
    one = drafter()
    one.put_corpus("stays", *corpus([900, 901]), first=True)
    given_texts = corpus(*texts)
    assert not spent(one, lambda: one.put_corpus("code", *given_texts, first=True)).total()
    for _ in range(3):
        assert_bounded(spent(one, lambda: one.commit([])), UPKEEP)
    while one._corpora.waiting:
        assert_bounded(spent(one, one.work), IDLE_UPKEEP)
    assert one.corpora()["code"].indexed == sum(map(len, texts))
    again = corpus([7, 8])
    assert not spent(one, lambda: one.put_corpus("code", *again, first=True)).total()
    while one._corpora.waiting:
        assert_bounded(spent(one, one.work), IDLE_UPKEEP)
    idle(one)
    assert one.memory.sequences == 2
    assert not spent(one, lambda: one.drop_corpus("code")).total()


def test_old_answers_go_by_cost_whatever_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("engine.drafters.suffix.answers.time.monotonic", lambda: now[0])
    one = drafter()
    one.set_parameters({"half_life_s": 60})
    chance = np.random.default_rng(1)
    for number in range(20):
        answered(one, number, chance.integers(0, 900, 1000).tolist())
    one.set_parameters({"max_age_s": 60})
    one.put_corpus("code", *corpus(chance.integers(0, 900, 9000)), first=True)
    now[0] += 3600.0
    busy: list[bool] = [True]
    while busy[-1]:
        assert_bounded(spent(one, lambda: busy.append(one.work())), IDLE_UPKEEP)
    assert one.memory.tokens == 9000


def test_what_a_step_commits_is_taken_in_by_cost_and_the_rest_later() -> None:
    one, other = drafter(suffix_tree="off"), drafter(suffix_tree="off")
    requests = [make_request([900, number], number) for number in range(40)]
    for request in requests:
        one.admit(request)
    one.commit([])
    for _ in range(3):
        commits: list[Committed] = []
        for request in requests:
            request.tokens += [7] * 16
            commits.append(Committed(request, len(request.tokens) - 16, [7] * 16))
        cost = spent(one, lambda commits=commits: one.commit(commits))
        assert_bounded(cost, COMMIT_BUDGET + PROMPT_BUDGET)
    assert one.offer(requests).count(None) > 1
    while one._texts.pending:
        one.commit([])
    for request in requests:
        other.admit(request)
        while other._texts.pending:
            other.commit([])
        assert one._texts.known[request.id].length == len(request.tokens)
        assert drafted(one, request) == drafted(other, request) == [7] * 8


def test_a_long_prompt_gets_there_although_short_ones_keep_coming() -> None:
    one = drafter(suffix_memory_mb=64)
    chance = np.random.default_rng(1)
    long = make_request(chance.integers(0, 900, 20_000).tolist(), 0)
    one.admit(long)
    for number in range(1, 400):
        one.admit(make_request(chance.integers(0, 900, 2000).tolist(), number))
        one.commit([])
        if one._texts.known[0].length == 20_000:
            return
    raise AssertionError("the long prompt starves")


def test_a_corpus_that_leaves_takes_nothing_of_another_with_it() -> None:
    one = drafter()
    for name, first in (("a", 40), ("b", 50)):
        one.put_corpus(name, *corpus([first, 1, 2, first + 1], [3]), first=True)
    idle(one)
    one.drop_corpus("a")
    idle(one)
    assert one.memory.tokens == 5
    assert drafted(one, started(one, [9], 1, first=40)) == []
    assert drafted(one, started(one, [9], 2, first=50)) == [1, 2]


def test_memory_that_the_system_does_not_give_is_a_clear_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("engine.drafters.suffix.memory.mmap.mmap", refuse)
    with pytest.raises(StartError, match="--suffix-memory-mb"):
        DRAFTERS["suffix"](EngineConfig(suffix_memory_mb=65_536), frozenset(), VOCABULARY)


def test_the_largest_memory_that_can_be_set_needs_no_memory_yet() -> None:
    assert drafted(drafter(suffix_memory_mb=65_536), make_request([1])) == []


def test_what_waits_for_indexing_is_bounded_too() -> None:
    one = drafter(suffix_memory_mb=1)
    ids, lengths = corpus([1] * 50_000)
    for _ in range(4):
        one.put_corpus("big", ids, lengths, first=False)
    assert one._corpora._queued <= one.memory.limit_bytes // 2
    assert "does not fit" in (one.corpora()["big"].failed or "")
    idle(one)
    assert one.corpora()["big"].indexed == 0
    assert one._corpora._queued == 0


def test_a_corpus_may_replace_itself_where_there_is_no_room_for_both() -> None:
    one = drafter(suffix_memory_mb=1)
    one.put_corpus("other", *corpus([1, 2, 3]), first=True)
    chance = np.random.default_rng(1)
    for _ in range(3):
        one.put_corpus("code", *corpus(chance.integers(0, 900, 3000)), first=True)
        idle(one)
        state = one.corpora()["code"]
        assert (state.indexed, state.failed) == (3000, None)


def test_memory_and_texts_cut_short_are_told_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = drafter(suffix_memory_mb=1)
    assert isinstance(one, Bounded)
    assert one.text_memory() == (one.memory.bytes, 1 << 20, 0)
    started(one, [1, 2, VOCABULARY], 1, first=2)
    assert one.text_memory().truncated == 1
    assert "vocabulary" in caplog.text
    assert "memory" not in caplog.text
    started(one, np.random.default_rng(1).integers(0, 900, 20_000).tolist(), 2)
    for _ in range(100):
        one.commit([])
    used, limit, truncated = one.text_memory()
    assert used <= limit
    assert truncated >= 2
    assert "--suffix-memory-mb" in caplog.text
