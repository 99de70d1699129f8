"""Shadow scores are what really running the drafter would have given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.contract import Features, ShadowScore
from engine.config import EngineConfig
from engine.drafters import shadow
from engine.drafters.registry import DRAFTERS
from tests.engine.oracles import NgramIndex, ShadowCursor
from tests.engine.replay import follow, run_alone

TEXT = st.lists(st.integers(0, 2), max_size=60)
SIZES = st.lists(st.integers(0, 6), max_size=20)
LONGEST = 5
CONFIG = EngineConfig(max_draft_length=LONGEST, suffix_memory_mb=16)


class Shadow:
    """The compiled state machine, driven as a drafter's compiled loop does it."""

    def __init__(self, index: NgramIndex) -> None:
        self.index = index
        self.row = np.zeros(shadow.DRAFT + LONGEST, dtype=np.int64)
        self._scores = shadow.Scores("ngram", ("", "text"))

    def advance(self, tokens: Sequence[int]) -> list[ShadowScore]:
        packed: list[int] = []
        for token in tokens:
            if shadow.due(self.row):
                matched, start = self.index.match()
                if matched:
                    draft = self.index.draft(start, LONGEST)
                    self.row[shadow.DRAFT : shadow.DRAFT + len(draft)] = draft
                    shadow.begin(self.row, len(draft), matched, 1)
            packed.append(shadow.take(self.row, token))
            self.index.append(token)
        return [self._scores.score(one) for one in packed if one]

    def follow(self, tokens: Sequence[int], accepted: int) -> list[ShadowScore]:
        scores = self.finish()
        shadow.lived(self.row, accepted)
        for token in tokens:
            self.index.append(token)
        return scores

    def finish(self) -> list[ShadowScore]:
        score = shadow.interrupt(self.row)
        return [self._scores.score(score)] if score else []


class Plain:
    """The same in plain Python."""

    def __init__(self, index: NgramIndex) -> None:
        self.index = index
        self._cursor = ShadowCursor("ngram", len(index.tokens))

    def advance(self, tokens: Sequence[int]) -> list[ShadowScore]:
        return self._cursor.advance(tokens, self._propose, self.index.append)

    def follow(self, tokens: Sequence[int], accepted: int) -> list[ShadowScore]:
        return self._cursor.follow(tokens, len(tokens), accepted, self.index.append)

    def finish(self) -> list[ShadowScore]:
        return self._cursor.finish()

    def _propose(self, length: int) -> tuple[Features, Sequence[int]]:
        assert len(self.index.tokens) == length, "the index must hold exactly the scored history"
        matched, start = self.index.match()
        return Features(matched, 0, "text"), self.index.draft(start, LONGEST) if matched else ()


def index_of(tokens: Sequence[int]) -> NgramIndex:
    index = NgramIndex()
    for token in tokens:
        index.append(token)
    return index


def pieces(text: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    """The text as an engine would commit it: a few tokens per step."""
    found, start = [], 0
    for size in sizes:
        found.append(text[start : start + size])
        start += size
    return [*found, text[start:]]


@pytest.mark.parametrize("name", DRAFTERS)
@settings(max_examples=100, deadline=None)
@given(prompt=TEXT, text=TEXT, sizes=SIZES)
def test_a_drafter_s_shadow_scores_what_it_would_get_alone(
    name: str, prompt: list[int], text: list[int], sizes: list[int]
) -> None:
    config = EngineConfig(max_draft_length=LONGEST, suffix_memory_mb=16)
    alone, followed = (DRAFTERS[name](config, frozenset(), 100) for _ in range(2))
    assert follow(followed, prompt, text, sizes) == run_alone(alone, prompt, text, LONGEST)


@settings(deadline=None)
@given(TEXT, TEXT, st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=20))
def test_compiled_and_plain_shadows_agree_when_live_and_shadow_alternate(
    prompt: list[int], text: list[int], steps: list[tuple[int, bool]]
) -> None:
    compiled, plain = Shadow(index_of(prompt)), Plain(index_of(prompt))
    shadowed = scored = 0
    for tokens, (_, live) in zip(pieces(text, [s for s, _ in steps]), steps, strict=False):
        if live:
            scores = compiled.follow(tokens, len(tokens) - 1)
            assert scores == plain.follow(tokens, len(tokens) - 1)
            assert all(score.censored for score in scores)
        else:
            shadowed += len(tokens)
            scores = compiled.advance(tokens)
            assert scores == plain.advance(tokens)
        scored += sum(s.accepted + (s.accepted < s.drafted and not s.censored) for s in scores)
    assert compiled.finish() == plain.finish()
    assert scored <= shadowed  # no position is scored twice


def test_a_draft_cut_by_the_end_of_the_text_is_censored() -> None:
    one = Shadow(index_of([1, 2, 3, 4, 1]))
    assert one.advance([2, 3]) == []
    (score,) = one.finish()
    assert (score.drafted, score.accepted, score.censored) == (LONGEST, 2, True)
    assert one.finish() == []


def test_going_live_in_the_middle_of_a_draft_keeps_what_was_accepted() -> None:
    one = Shadow(index_of([1, 2, 3, 4, 1]))
    one.advance([2])
    (score,) = one.follow([3, 9], accepted=1)
    assert (score.accepted, score.censored) == (1, True)
    assert one.row[shadow.STREAK] == 2


def test_without_a_proposal_nothing_is_scored() -> None:
    one = Shadow(index_of([]))
    assert one.advance([1, 2, 3]) == []
    assert one.finish() == []


def test_the_token_after_a_full_accept_is_not_scored() -> None:
    one = Shadow(index_of([7] * 9))
    scores = one.advance([7] * LONGEST + [5, 7, 0])
    assert [(s.accepted, s.features.streak) for s in scores] == [(LONGEST, 0), (0, 1)]


def test_packed_scores_hold_the_largest_numbers() -> None:
    row = np.zeros(shadow.DRAFT + shadow.LONGEST, dtype=np.int64)
    row[shadow.STREAK] = 1 << 40
    row[shadow.DRAFT :] = 5
    shadow.begin(row, shadow.LONGEST, shadow.LONGEST, 15)
    for _ in range(shadow.LONGEST - 1):
        assert shadow.take(row, 5) == 0
    score = shadow.Scores("x", ("",) * 15 + ("last",)).score(shadow.take(row, 5))
    features = Features(shadow.LONGEST, (1 << 20) - 1, "last")
    assert score == ShadowScore("x", shadow.LONGEST, shadow.LONGEST, features)
