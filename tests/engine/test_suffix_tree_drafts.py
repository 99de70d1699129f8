"""Drafts of suffix trees: the rules of choice, limits and ties, against brute force."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.suffix.forest import ORIGINS, SuffixForest
from tests.engine.suffix_oracle import Oracle

TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def grown(forest: SuffixForest, tree: int, tokens: list[int], **more: Any) -> int:
    sequence = forest.open_sequence(tree, **more)
    assert forest.append(sequence, tokens) == len(tokens)
    return sequence


def drafted(forest: SuffixForest, text: int, *sources: int, **parameters: Any) -> list[int]:
    drafts = forest.speculate([text], [list(sources)], [8], **parameters)
    return drafts.tokens[0, : drafts.lengths[0]].tolist()


@settings(max_examples=80, deadline=None)
@given(
    TEXT, TEXT, st.lists(st.tuples(TEXT, st.integers(1, 3)), max_size=4), st.integers(2, 7),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.sampled_from([0.0, 1.0, 2.5]),
    st.sampled_from([0.0, 0.1, 0.5]), st.integers(0, 6),
)  # fmt: skip
def test_drafts_are_those_of_the_rules_whether_matches_are_searched_or_followed(
    prompt: list[int],
    output: list[int],
    others: list[tuple[list[int], int]],
    depth: int,
    factor: float,
    offset: float,
    least: float,
    longest: int,
) -> None:
    forest, oracle = SuffixForest(1 << 20, depth, vocabulary=3), Oracle(depth)
    local, answers = forest.open_tree("local", len(prompt)), forest.open_tree("global")
    text, response = forest.open_sequence(local), forest.open_sequence(answers)
    oracle.open(text, local)
    oracle.open(response, answers)
    for tokens, weight in others:
        oracle.open(sequence := forest.open_sequence(answers, weight=weight), answers, 0, weight)
        forest.append(sequence, tokens)
        oracle.append(sequence, tokens)
    forest.append(text, prompt)
    oracle.append(text, prompt)
    for step, token in enumerate([-1, *output]):
        if step:
            forest.extend([text, response], [token, token], [0, 1, 2])
            oracle.append(text, [token])
            oracle.append(response, [token])
        context = prompt + output[:step]
        best = oracle.best(context, [local, answers], longest, factor, offset, least)
        for source in (answers, response):
            drafts = forest.speculate([text], [[source]], [longest], factor, offset, least)
            length = int(drafts.lengths[0])
            assert tuple(drafts.tokens[0, :length].tolist()) == (best.tokens if best else ())
            if best:
                assert math.isclose(drafts.scores[0], best.score, rel_tol=1e-6)
                assert drafts.probabilities[0, :length].tolist() == pytest.approx(
                    best.probabilities
                )
                assert (drafts.matches[0], drafts.sources[0] + 1) == (best.match, best.source)
            else:
                assert drafts.scores[0] == 0


def test_a_context_of_one_token_is_matched() -> None:
    forest = SuffixForest(1 << 20)
    local, answers = forest.open_tree("local", 1), forest.open_tree("global")
    forest.close(grown(forest, answers, [1, 2, 3]))
    text = grown(forest, local, [1])
    drafts = forest.speculate([text], [[answers]], [8], offset=4.0)
    assert drafts.tokens[0, : drafts.lengths[0]].tolist() == [2, 3]
    assert drafts.matches[0] == 1
    assert ORIGINS[drafts.origins[0]] == "global"


def test_the_origin_tells_prompt_from_output_and_corpus() -> None:
    forest = SuffixForest(1 << 20)
    local = forest.open_tree("local", prompt_length=3)
    text = grown(forest, local, [1, 2, 3, 1])
    drafts = forest.speculate([text], [[0]], [8])
    assert (ORIGINS[drafts.origins[0]], drafts.tokens[0, 0]) == ("prompt", 2)
    forest.append(text, [2, 3, 4, 1])  # the occurrence in the output is the newer one
    assert ORIGINS[forest.speculate([text], [[0]], [8]).origins[0]] == "output"
    corpus = forest.open_tree("corpus")
    forest.close(grown(forest, corpus, [9, 8, 7]))
    forest.append(text, [9])
    drafts = forest.speculate([text], [[0, corpus]], [8], offset=1.0)
    assert ORIGINS[drafts.origins[0]] == "corpus"
    assert drafts.sources[0] == 1
    assert drafts.tokens[0, :2].tolist() == [8, 7]


def test_among_equal_counts_the_latest_to_get_there_is_followed() -> None:
    forest = SuffixForest(1 << 20)
    local = forest.open_tree("local")
    text = grown(forest, local, [5, 1, 8, 5, 2, 9, 5])
    assert drafted(forest, text) == [2]
    forest.append(text, [1, 7, 5])
    assert drafted(forest, text) == [1]
    forest.append(text, [2, 6, 5])
    assert drafted(forest, text) == [2]


def test_the_own_tree_wins_ties() -> None:
    forest = SuffixForest(1 << 20)
    local, answers = forest.open_tree("local"), forest.open_tree("global")
    text = grown(forest, local, [1, 2, 1])
    forest.close(grown(forest, answers, [1, 3]))
    live = grown(forest, answers, [1])
    assert forest.count(answers, [1]) == forest.count(local, [1])
    assert drafted(forest, text, live) == [2]


def test_limits_hold_for_each_match_length_and_change_between_calls() -> None:
    forest = SuffixForest(1 << 20)
    local, answers = forest.open_tree("local"), forest.open_tree("global")
    forest.close(grown(forest, answers, [1, 2, *range(10, 40)]))
    text = grown(forest, local, [7, 1, 2])
    assert len(drafted(forest, text, answers, factor=1.0)) == 2
    assert len(drafted(forest, text, answers, factor=2.0, offset=1.0)) == 5
    assert len(drafted(forest, text, answers, factor=64.0)) == 8
    drafts = forest.speculate([text] * 3, [[answers]] * 3, [0, 1, 255], factor=64.0)
    assert drafts.lengths.tolist() == [0, 1, 30]


def test_a_batch_answers_each_request_and_leaves_out_what_is_gone() -> None:
    forest = SuffixForest(1 << 20)
    trees = [forest.open_tree("local") for _ in range(12)]
    texts = [grown(forest, tree, [i, 50 + i, i]) for i, tree in enumerate(trees)]
    forest.drop_tree(trees[3])
    forest.remove(texts[4])
    drafts = forest.speculate(texts, [[trees[3]]] * 12, [4] * 12)
    assert drafts.lengths.tolist() == [1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert drafts.tokens[5, 0] == 55


@pytest.mark.parametrize(
    "parameters",
    [{"factor": -0.1}, {"factor": 65.0}, {"factor": math.nan}, {"offset": 256.0},
     {"least": 1.01}, {"least": math.nan}],
)  # fmt: skip
def test_parameters_outside_their_range_are_refused(parameters: dict[str, float]) -> None:
    forest = SuffixForest(1 << 20)
    text = grown(forest, forest.open_tree("local"), [1, 1])
    with pytest.raises(ValueError, match=next(iter(parameters))):
        forest.speculate([text], [[0]], [4], **parameters)
    for longest in (-1, 256):
        with pytest.raises(ValueError, match="longest"):
            forest.speculate([text], [[0]], [longest])
