"""N-gram drafter: its compiled index against a plain one, its text through everything."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.contract import Features, Offer
from engine.drafters.base import Committed, Tail
from engine.drafters.ngram.drafter import NgramDrafter
from engine.drafters.ngram.index import MATCH_CAP, MAX_N
from engine.drafters.ngram.texts import BUDGET
from engine.drafters.parameters import Tunable
from engine.request import Request
from tests.engine.oracles import NgramIndex
from tests.engine.replay import commit, make_request, run_alone

END = 9
token_lists = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def drafter_of(longest: int = 8) -> NgramDrafter:
    return NgramDrafter(longest, frozenset({END}))


def admitted(drafter: NgramDrafter, tokens: list[int], number: int = 1) -> Request:
    request = make_request(tokens, number)
    drafter.admit(request)
    return request


def drafted(drafter: NgramDrafter, request: Request, length: int = 8) -> tuple[int, list[int]]:
    """(match length, draft) after the request's text; (0, []) for no offer."""
    (offer,) = drafter.offer([request])
    (draft,) = drafter.propose([request], [length])
    return (offer.features.match_length if offer else 0), list(draft.tokens)


def search(tokens: list[int], min_n: int = 1, max_n: int = MAX_N) -> tuple[int, int]:
    """Longest n-gram up to max_n, latest earlier occurrence, extended backwards."""
    end = len(tokens)
    for n in range(min(max_n, end - 1), min_n - 1, -1):
        for start in range(end - 1, n - 1, -1):
            if tokens[start - n : start] == tokens[end - n :]:
                length = n
                while (
                    length < min(MATCH_CAP, start)
                    and tokens[start - length - 1] == tokens[end - length - 1]
                ):
                    length += 1
                return length, start
    return 0, 0


def expected(tokens: list[int], min_n: int = 1, max_n: int = MAX_N) -> tuple[int, list[int]]:
    """The plain index's match length and draft of 8 tokens."""
    index = NgramIndex(frozenset({END}))
    for token in tokens:
        index.append(token)
    matched, start = index.match(min_n, max_n)
    assert (matched, start) == search(tokens, min_n, max_n)
    return matched, index.draft(start, 8) if matched else []


# --- what is drafted ------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2, END]), max_size=60), st.data())
def test_it_finds_what_a_plain_search_finds(tokens: list[int], data: st.DataObject) -> None:
    drafter = drafter_of()
    request = admitted(drafter, tokens)
    for _ in range(3):
        low = data.draw(st.integers(1, MAX_N))
        high = data.draw(st.integers(low, MAX_N))
        drafter.set_parameters({"min_n": low, "max_n": high})
        assert drafted(drafter, request) == expected(request.tokens, low, high)
        commit(drafter, request, data.draw(token_lists))


def test_the_latest_occurrence_of_the_longest_match_is_continued() -> None:
    drafter = drafter_of()
    request = admitted(drafter, [1, 2, 3, 7, 1, 2, 3, 8, 5, 1, 2, 3])
    assert drafted(drafter, request, 2) == (3, [8, 5])


def test_a_draft_runs_on_into_itself_when_the_period_is_shorter() -> None:
    drafter = drafter_of()
    request = admitted(drafter, [4, 5, 6, 4, 5, 6])
    assert drafted(drafter, request)[1] == [4, 5, 6, 4, 5, 6, 4, 5]


def test_a_draft_ends_with_an_end_token() -> None:
    drafter = drafter_of()
    request = admitted(drafter, [1, 2, END, 3, 1, 2])
    assert drafted(drafter, request)[1] == [END]


@pytest.mark.parametrize("tokens", [[], [5], [1, 2, 3, 4]])
def test_text_without_repetition_gives_no_offer(tokens: list[int]) -> None:
    drafter = drafter_of()
    request = admitted(drafter, tokens)
    assert drafted(drafter, request) == (0, [])


def test_the_source_says_where_the_match_lies() -> None:
    drafter = drafter_of()
    request = admitted(drafter, [1, 2, 3])
    commit(drafter, request, [5, 6, 1])
    assert drafter.offer([request]) == [Offer(1, "ngram", 8, Features(1, 0, "prompt"))]
    commit(drafter, request, [5])
    (offer,) = drafter.offer([request])
    assert offer is not None
    assert offer.features.source == "output"


def test_the_largest_ids_are_told_apart() -> None:
    drafter = drafter_of()
    largest = (1 << 31) - 1
    request = admitted(drafter, [largest, 0, largest - 1, largest])
    assert drafted(drafter, request, 2) == (1, [0, largest - 1])


def test_parameters_that_do_not_go_together_are_refused_and_change_nothing() -> None:
    drafter = drafter_of()
    drafter.set_parameters({"max_n": 3})
    with pytest.raises(ValueError, match="min_n 4 is above max_n 3"):
        drafter.set_parameters({"min_n": 4})
    assert (drafter.values["min_n"], drafter.values["max_n"]) == (1, 3)
    drafter.set_parameters({"min_n": 4, "max_n": 5})
    assert (drafter.values["min_n"], drafter.values["max_n"]) == (4, 5)
    assert isinstance(drafter, Tunable)


# --- behind another drafter's draft ---------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2, END]), max_size=40), st.data())
def test_a_tail_continues_text_and_draft_and_leaves_no_trace(
    tokens: list[int], data: st.DataObject
) -> None:
    drafter = drafter_of()
    request = admitted(drafter, tokens)
    draft = data.draw(st.lists(st.sampled_from([0, 1, 2, END]), min_size=1, max_size=8))
    index = NgramIndex(frozenset({END}))
    for token in tokens:
        index.append(token)
    index.tokens += draft
    matched, start = index.match()
    wanted = index.draft(start, 5) if matched and draft[-1] != END else []
    assert isinstance(drafter, Tail)
    assert [list(tail) for tail in drafter.extend([request], [draft], [5])] == [wanted]
    assert drafted(drafter, request) == expected(tokens)
    commit(drafter, request, [1, 0])
    assert drafted(drafter, request) == expected(request.tokens)


def test_a_draft_longer_than_any_or_of_an_unknown_request_gets_no_tail() -> None:
    drafter = drafter_of(4)
    known, unknown = admitted(drafter, [1, 2, 1], 1), make_request([1, 2, 1], 2)
    assert drafter.extend([known], [[2, 1, 2, 1]], [2]) == [[2, 1]]
    assert drafter.extend([known, unknown], [[2, 1, 2, 1, 2], [2]], [2, 2]) == [[], ()]


# --- many requests, long texts --------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(token_lists, min_size=1, max_size=12), data=st.data())
def test_a_batch_gives_what_each_request_gives_alone(
    texts: list[list[int]], data: st.DataObject
) -> None:
    drafter = drafter_of()
    requests = [admitted(drafter, text, number) for number, text in enumerate(texts)]
    for _ in range(3):
        some = data.draw(st.lists(st.sampled_from(requests), unique_by=id, min_size=1))
        commits = []
        for request in some:
            run = data.draw(token_lists)
            commits.append(Committed(request, len(request.tokens), run))
            request.tokens += run
        drafter.commit(commits)
        lengths = data.draw(st.lists(st.integers(1, 8), min_size=len(some), max_size=len(some)))
        offers = drafter.offer(some)
        drafts = drafter.propose(some, lengths)
        for request, offer, draft, length in zip(some, offers, drafts, lengths, strict=True):
            matched, wanted = expected(request.tokens)
            assert (offer.features.match_length if offer else 0) == matched
            assert draft.tokens == wanted[:length]


def test_an_index_that_grows_many_times_forgets_nothing() -> None:
    chance = random.Random(5)
    drafter = NgramDrafter(8, frozenset())
    request = admitted(drafter, [1, 2])
    index = NgramIndex()
    for token in (1, 2):
        index.append(token)
    for step in range(4000):
        run = [chance.randrange(200) for _ in range(chance.randint(1, 9))]
        commit(drafter, request, run)
        for token in run:
            index.append(token)
        if step % 7 == 0:
            matched, start = index.match()
            wanted = (matched, index.draft(start, 8) if matched else [])
            assert drafted(drafter, request) == wanted


def test_a_long_prompt_is_taken_in_over_several_steps_and_then_all_there() -> None:
    chance = random.Random(6)
    prompt = [chance.randrange(3000) for _ in range(3 * BUDGET)]
    drafter = drafter_of()
    slow = admitted(drafter, prompt, 1)
    quick = admitted(drafter, [1, 2, 1], 2)
    assert drafter.offer([slow, quick]) == [None, None]  # the first has used up this step's budget
    runs = 0
    while drafter.offer([slow]) == [None]:
        assert commit(drafter, slow, prompt[runs : runs + 1]) == ()  # behind the prompt, unscored
        assert drafter.offer([quick]) != [None]
        runs += 1
    assert runs == 3
    index = NgramIndex()
    for token in slow.tokens:
        index.append(token)
    matched, start = index.match()
    assert drafted(drafter, slow) == (matched, index.draft(start, 8))


# --- whatever happens to a request ----------------------------------------------------------------


def test_requests_it_does_not_know_get_nothing_and_forgetting_them_does_nothing() -> None:
    drafter = drafter_of()
    known, unknown = admitted(drafter, [1, 2, 1], 1), make_request([1, 2, 1], 2)
    drafter.forget(2)
    assert [offer is None for offer in drafter.offer([unknown, known])] == [True, False]
    assert [len(d) for d in drafter.propose([unknown, known], [4, 4])] == [0, 4]
    assert commit(drafter, unknown, [2]) == ()
    drafter.forget(1)
    drafter.forget(1)
    assert drafter.offer([known]) == [None]


def test_an_id_used_again_has_nothing_of_the_request_before() -> None:
    drafter = drafter_of()
    admitted(drafter, [1, 2, 3, 1])
    again = admitted(drafter, [5, 1])
    assert drafted(drafter, again) == (0, [])


def test_admitting_a_request_again_changes_nothing() -> None:
    drafter = drafter_of()
    request = admitted(drafter, [1, 2, 1])
    commit(drafter, request, [2, 1])
    drafter.admit(request)
    assert drafted(drafter, request, 3) == (expected(request.tokens)[0], [2, 1, 2])


def test_a_missed_commit_is_made_up_for() -> None:
    drafter = drafter_of()
    request = admitted(drafter, [1, 2, 1])
    request.tokens += [7, 8, 7]
    commit(drafter, request, [8])
    assert drafted(drafter, request) == expected(request.tokens)


def test_a_token_that_is_no_number_costs_only_its_request() -> None:
    drafter = drafter_of()
    good, bad = admitted(drafter, [1, 2, 1], 1), admitted(drafter, [1, 2, 1], 2)
    good.tokens += [2]
    bad.tokens += [1 << 70]
    with pytest.raises(OverflowError):
        drafter.commit([Committed(good, 3, [2]), Committed(bad, 3, [1 << 70])])
    drafter.commit([])
    assert drafted(drafter, good) == expected(good.tokens)
    assert drafter.offer([bad]) == [None]


def test_the_first_token_after_a_prefill_is_not_scored() -> None:
    drafter = drafter_of(2)
    request = admitted(drafter, [1, 2, 3, 1])
    request.tokens += [2]
    assert drafter.commit([Committed(request, 4, [2], prefilled=True)]) == [()]
    (score,) = commit(drafter, request, [3, 1])
    assert (score.drafted, score.accepted) == (2, 2)


def test_unscored_tokens_censor_the_open_draft_and_are_taken_in() -> None:
    drafter = drafter_of(4)
    request = admitted(drafter, [1, 2, 3, 4, 1])
    assert commit(drafter, request, [2]) == ()
    request.tokens += [3]
    ((score,),) = drafter.commit([Committed(request, 6, [3], scored=False)])
    assert (score.accepted, score.censored) == (1, True)
    assert drafted(drafter, request, 2) == (3, [4, 1])


def test_memory_returns_when_a_request_is_forgotten() -> None:
    drafter = drafter_of()
    for number in range(1000):
        admitted(drafter, [1, 2, 1], number)
        drafter.forget(number - 3)
    for number in range(1000):
        drafter.forget(number)
    assert not drafter._texts.known
    assert not drafter._texts.pending
    assert len(drafter._texts.rows) == 8


def test_alone_it_decodes_a_repeating_text_in_few_steps() -> None:
    text = [1, 2, 3, 4, 5, 6] * 20
    scores = run_alone(drafter_of(), [0], text, 8)
    assert sum(score.accepted for score in scores) > 0.8 * len(text)
