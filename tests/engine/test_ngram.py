"""N-gram drafter: its index against a plain search, its shadow against really running."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.contract import ShadowScore, Wish
from engine.drafters.ngram import MATCH_CAP, MAX_N, NgramDrafter, NgramIndex
from engine.draw import Draw
from engine.request import Request

END = 9
tokens_lists = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def index_of(tokens: list[int]) -> NgramIndex:
    index = NgramIndex(frozenset({END}))
    for token in tokens:
        index.append(token)
    return index


def search(tokens: list[int]) -> tuple[int, int]:
    """Longest n-gram up to MAX_N, latest earlier occurrence, extended backwards."""
    end = len(tokens)
    for n in range(min(MAX_N, end - 1), 0, -1):
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


@given(tokens_lists)
def test_the_index_finds_what_a_plain_search_finds(tokens: list[int]) -> None:
    assert index_of(tokens).match() == search(tokens)


def test_the_latest_occurrence_of_the_longest_match_is_continued() -> None:
    index = index_of([1, 2, 3, 7, 1, 2, 3, 8, 5, 1, 2, 3])
    matched, start = index.match()
    assert (matched, start) == (3, 7)
    assert index.draft(start, 2) == [8, 5]


def test_a_draft_runs_on_into_itself_when_the_period_is_shorter() -> None:
    index = index_of([4, 5, 6, 4, 5, 6])
    _, start = index.match()
    assert index.draft(start, 8) == [4, 5, 6, 4, 5, 6, 4, 5]


def test_a_draft_ends_with_an_end_token() -> None:
    index = index_of([1, 2, END, 3, 1, 2])
    _, start = index.match()
    assert index.draft(start, 5) == [END]


def test_text_without_repetition_gives_no_offer() -> None:
    drafter = NgramDrafter(8, frozenset())
    request = make_request([1, 2, 3, 4])
    drafter.admit(request)
    assert drafter.offer(request) is None


def make_request(tokens: list[int]) -> Request:
    output: Any = None
    return Request(
        id=1,
        name="r",
        tokens=list(tokens),
        prompt_length=len(tokens),
        max_tokens=1000,
        draw=Draw(),
        wish=Wish(),
        tenant="",
        output=output,
        arrived=0.0,
    )


@settings(max_examples=150, deadline=None)
@given(prompt=tokens_lists, text=tokens_lists, steps=st.lists(st.integers(1, 4), min_size=60))
def test_the_shadow_scores_what_really_running_alone_would_get(
    prompt: list[int], text: list[int], steps: list[int]
) -> None:
    longest = 4
    # Really running: draft, compare, commit accepted + 1, again.
    wanted: list[ShadowScore] = []
    live = NgramDrafter(longest, frozenset())
    request = make_request(prompt)
    live.admit(request)
    at = 0
    while at < len(text):
        offer = live.offer(request)
        draft = live.propose([request], [longest])[0].tokens if offer else []
        accepted = 0
        while accepted < len(draft) and at + accepted < len(text):
            if draft[accepted] != text[at + accepted]:
                break
            accepted += 1
        cut = accepted < len(draft) and at + accepted == len(text)
        run = text[at : at + accepted + 1]
        if offer:
            wanted.append(ShadowScore("ngram", len(draft), accepted, offer.features, cut))
        request.tokens += run
        live.commit(request, run, len(draft), accepted, ended=False)
        at += len(run)
    # The shadow sees the same text in steps of another drafter's making.
    shadow = NgramDrafter(longest, frozenset())
    other = make_request(prompt)
    shadow.admit(other)
    scores: list[ShadowScore] = []
    at = 0
    for size in steps:
        run = text[at : at + size]
        at += size
        over = at >= len(text)
        other.tokens += run
        scores += shadow.commit(other, run, 0, 0, ended=over)
        if over:
            break
    assert scores == wanted


def test_memory_returns_when_a_request_is_forgotten() -> None:
    drafter = NgramDrafter(8, frozenset())
    request = make_request([1, 2, 1])
    drafter.admit(request)
    drafter.forget(1)
    drafter.forget(1)
    assert not drafter._states
