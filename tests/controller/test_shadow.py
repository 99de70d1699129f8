"""The shadow cursor scores what really running the drafter would have given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.contract import Features, ShadowScore
from controller.shadow import ShadowCursor

TEXT = st.lists(st.integers(0, 2), max_size=60)
LONGEST = 5


class NgramIndex:
    """A plain n-gram drafter: the continuation of the last earlier place where the last two
    tokens (or the last one) occurred."""

    def __init__(self, history: Sequence[int]) -> None:
        self.history = list(history)

    def append(self, token: int) -> None:
        self.history.append(token)

    def propose(self, length: int) -> tuple[Features, Sequence[int]]:
        history = self.history
        assert len(history) == length, "the index must hold exactly the scored history"
        for size in (2, 1):
            for start in range(length - size - 1, -1, -1):
                if history[start : start + size] == history[length - size :]:
                    follow = history[start + size : start + size + LONGEST]
                    return Features(size, 0, "output"), follow
        return Features(), ()


def really_running(prompt: Sequence[int], text: Sequence[int]) -> list[ShadowScore]:
    """Decode the text with the drafter live at every step, as an engine would."""
    scores: list[ShadowScore] = []
    done, streak = 0, 0
    while done < len(text):
        index = NgramIndex([*prompt, *text[:done]])
        features, draft = index.propose(len(index.history))
        accepted = 0
        while (
            accepted < len(draft)
            and done + accepted < len(text)
            and draft[accepted] == text[done + accepted]
        ):
            accepted += 1
        censored = accepted < len(draft) and done + accepted == len(text)
        if draft:
            features = replace(features, streak=streak)
            scores.append(ShadowScore("ngram", len(draft), accepted, features, censored))
            streak = streak + 1 if accepted else 0
        done += accepted + 1
    return scores


def pieces(text: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    """The text as an engine would commit it: a few tokens per step."""
    found, start = [], 0
    for size in sizes:
        found.append(text[start : start + size])
        start += size
    return [*found, text[start:]]


@given(TEXT, TEXT, st.lists(st.integers(0, 6), max_size=20))
def test_scores_equal_really_running_whatever_the_steps_were(
    prompt: list[int], text: list[int], sizes: list[int]
) -> None:
    index = NgramIndex(prompt)
    cursor = ShadowCursor("ngram", len(prompt))
    scores: list[ShadowScore] = []
    for tokens in pieces(text, sizes):
        scores += cursor.advance(tokens, index.propose, index.append)
    scores += cursor.finish()
    assert scores == really_running(prompt, text)
    assert index.history == [*prompt, *text]
    assert cursor.length == len(prompt) + len(text)


@given(TEXT, TEXT, st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=20))
def test_no_position_is_scored_twice_when_live_and_shadow_alternate(
    prompt: list[int], text: list[int], steps: list[tuple[int, bool]]
) -> None:
    index = NgramIndex(prompt)
    cursor = ShadowCursor("ngram", len(prompt))
    shadow_tokens = scored = 0
    for tokens, (_, live) in zip(pieces(text, [s for s, _ in steps]), steps, strict=False):
        if live:
            scores = cursor.follow(tokens, len(tokens), len(tokens) - 1, index.append)
            assert all(s.censored for s in scores)
        else:
            shadow_tokens += len(tokens)
            scores = cursor.advance(tokens, index.propose, index.append)
        scored += sum(s.accepted + (s.accepted < s.drafted and not s.censored) for s in scores)
    assert scored <= shadow_tokens


def test_a_draft_cut_by_the_end_of_the_text_is_censored() -> None:
    index = NgramIndex([1, 2, 3, 4, 1])
    cursor = ShadowCursor("ngram", 5)
    assert cursor.advance([2, 3], index.propose, index.append) == []
    (score,) = cursor.finish()
    assert (score.drafted, score.accepted, score.censored) == (4, 2, True)
    assert cursor.finish() == []


def test_going_live_in_the_middle_of_a_draft_keeps_what_was_accepted() -> None:
    index = NgramIndex([1, 2, 3, 4, 1])
    cursor = ShadowCursor("ngram", 5)
    cursor.advance([2], index.propose, index.append)
    (score,) = cursor.follow([3, 9], 4, 1, index.append)
    assert (score.accepted, score.censored) == (1, True)
    assert cursor.streak == 2
    assert index.history[-3:] == [2, 3, 9]


def test_without_a_proposal_the_cursor_moves_one_token_and_emits_nothing() -> None:
    index = NgramIndex([])
    cursor = ShadowCursor("ngram", 0)
    assert cursor.advance([1, 2, 3], index.propose, index.append) == []
    assert (cursor.length, cursor.streak) == (3, 0)


def test_the_token_after_a_full_accept_is_not_scored() -> None:
    calls: list[int] = []

    def propose(length: int) -> tuple[Features, Sequence[int]]:
        calls.append(length)
        return Features(1), (7, 7)

    cursor = ShadowCursor("ngram", 10)
    scores = cursor.advance([7, 7, 5, 7, 0, 7], propose, lambda token: None)
    assert [(s.accepted, s.features.streak) for s in scores] == [(2, 0), (1, 1)]
    assert calls == [10, 13, 15]
