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
from engine.drafters.base import Committed, Drafter
from engine.drafters.registry import DRAFTERS
from tests.engine.oracles import NgramIndex, ShadowCursor
from tests.engine.replay import follow, make_request, run_alone

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


def steps_of(texts: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]) -> list[list[int]]:
    """How many tokens of each text every step commits; the last one all that are left."""
    done, steps = [0] * len(texts), []
    for wanted in (*sizes, [1000] * len(texts)):
        steps.append([min(w, len(t) - d) for w, t, d in zip(wanted, texts, done, strict=True)])
        done = [d + s for d, s in zip(done, steps[-1], strict=True)]
    return steps


def followed_together(
    drafter: Drafter, texts: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]
) -> list[list[ShadowScore]]:
    """Shadow scores of several requests, each with its text as its output."""
    requests = [make_request([50 + n], n) for n in range(len(texts))]
    scores: list[list[ShadowScore]] = [[] for _ in texts]
    for request in requests:
        drafter.admit(request)
    for step in steps:
        commits: list[Committed] = []
        for request, text, size in zip(requests, texts, step, strict=True):
            start = len(request.tokens)
            run = list(text[start - 1 : start - 1 + size])
            request.tokens.extend(run)
            ended = start - 1 + size == len(text)
            commits.append(Committed(request, start, run, ended=ended))
        for own, settled in zip(scores, drafter.commit(commits), strict=True):
            own.extend(settled)
    return scores


def really_run(
    drafter: Drafter, which: int, texts: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]
) -> list[ShadowScore]:
    """What drafts of one request get when the drafter really runs for it, beside others that go on
    in the same steps, token by token."""
    requests = [make_request([50 + n], n) for n in range(len(texts))]
    own, text = requests[which], texts[which]
    scores: list[ShadowScore] = []
    for request in requests:
        drafter.admit(request)
    free_from = 0
    for step in steps:
        for round in range(max(step)):
            drafted = accepted = 0
            at = len(own.tokens) - 1
            if round < step[which] and at == free_from:
                (offer,) = drafter.offer([own])
                draft = drafter.propose([own], [LONGEST])[0].tokens if offer else []
                drafted = len(draft)
                while accepted < min(drafted, len(text) - at):
                    if draft[accepted] != text[at + accepted]:
                        break
                    accepted += 1
                free_from = at + accepted + 1
                if offer:
                    cut = accepted < drafted and at + accepted == len(text)
                    scores.append(ShadowScore("suffix", drafted, accepted, offer.features, cut))
            commits: list[Committed] = []
            for number, (request, size) in enumerate(zip(requests, step, strict=True)):
                if round < size:
                    start = len(request.tokens)
                    request.tokens.append(texts[number][start - 1])
                    run = request.tokens[start:]
                    live = (drafted, accepted) if request is own else (0, 0)
                    commits.append(Committed(request, start, run, *live, scored=False))
            assert not any(drafter.commit(commits))
    return scores


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), max_size=30), min_size=3, max_size=3),
    st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), max_size=10),
)
def test_shadows_of_several_requests_score_what_each_would_get_beside_the_others(
    texts: list[list[int]], sizes: list[list[int]]
) -> None:
    def drafter() -> Drafter:
        return DRAFTERS["suffix"](CONFIG, frozenset(), 100)

    steps = steps_of(texts, sizes)
    scores = followed_together(drafter(), texts, steps)
    for which, found in enumerate(scores):
        assert found == really_run(drafter(), which, texts, steps)


def test_a_request_is_not_scored_on_what_another_commits_in_the_same_step() -> None:
    text = list(range(40))
    drafter = DRAFTERS["suffix"](CONFIG, frozenset(), 100)
    scores = followed_together(drafter, [text, text], [[4, 4]] * 10)
    assert scores == [[], []]


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
