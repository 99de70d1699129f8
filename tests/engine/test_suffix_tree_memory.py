"""Suffix trees within their limit: a full forest, odd ids, eviction and a long life."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.suffix_forest import SuffixForest
from tests.engine.suffix_oracle import Oracle, check


def swept(forest: SuffixForest) -> SuffixForest:
    while not forest.sweep():
        pass
    return forest


@pytest.mark.parametrize("bad", [-1, 100, 2**31 - 1, 2**31, 2**40, -(2**31)])
def test_an_id_outside_the_vocabulary_never_enters_and_ends_that_sequence_only(bad: int) -> None:
    forest = SuffixForest(1 << 20, vocabulary=100)
    tree = forest.open_tree("global")
    odd, even = forest.open_sequence(tree), forest.open_sequence(tree)
    taken = forest.extend([odd, even], [0, 99, bad, 5, 0, 99], [0, 4, 6])
    assert taken.tolist() == [2, 2]
    assert forest.count(tree, [0, 99]) == 2
    assert forest.append(odd, [1]) == 0
    assert forest.append(even, [1]) == 1
    assert forest.stats().truncations == 1
    check(forest, [tree])


def test_the_largest_ids_are_stored() -> None:
    forest = SuffixForest(1 << 20)
    tree = forest.open_tree("local")
    edge = [2**31 - 2, 0, 2**31 - 2]
    assert forest.append(forest.open_sequence(tree), edge) == 3
    assert forest.count(tree, edge) == 1
    assert forest.count(tree, edge[:1]) == 2


def test_wide_nodes_keep_their_children_through_growth_and_removal() -> None:
    forest, oracle = SuffixForest(1 << 24, depth=3), Oracle(3)
    tree = forest.open_tree("global")
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(12):
        tokens = rng.integers(0, 2**31 - 1, 400)
        tokens[::2] = 7  # one node with thousands of children besides the root
        sequence = forest.open_sequence(tree)
        forest.append(sequence, tokens)
        oracle.open(sequence, tree)
        oracle.append(sequence, tokens.tolist())
        texts.append(sequence)
    for sequence in [*texts[::2], *texts[1:8:2]]:
        forest.remove(sequence)
        del oracle.sequences[sequence]
        swept(forest)
    check(forest, [tree])
    counts = oracle.counts(tree)
    assert all(forest.count(tree, string) == count for string, count in counts.items())
    assert forest.count(tree, [7]) == 2 * 200


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 50, 2**31 - 1]))
def test_a_full_forest_takes_no_more_and_stays_exact(seed: int, vocabulary: int) -> None:
    rng = np.random.default_rng(seed)
    forest, oracle = SuffixForest(1 << 16, depth=6), Oracle(6)
    trees = [forest.open_tree("global"), forest.open_tree("local")]
    refused = False
    while not refused:
        tree = trees[int(rng.integers(2))]
        sequence = forest.open_sequence(tree, expected=int(rng.integers(1, 60)))
        if sequence == 0:
            break
        oracle.open(sequence, tree)
        tokens = rng.integers(0, vocabulary, int(rng.integers(1, 400)))
        taken = forest.append(sequence, tokens)
        oracle.append(sequence, tokens[:taken].tolist())
        refused = taken < len(tokens)
    check(forest, trees)
    for tree in trees:
        assert all(forest.count(tree, s) == n for s, n in oracle.counts(tree).items())
    assert forest.stats().bytes <= forest.stats().limit_bytes
    while not forest.evict(to_bytes=0):
        check(forest, trees)
    for tree in trees:
        forest.drop_tree(tree)
    stats = swept(forest).stats()
    assert (stats.bytes, stats.nodes, stats.tokens) == (0, 0, 0)
    tree = forest.open_tree("global")
    assert forest.append(forest.open_sequence(tree), [1, 2, 3]) == 3


def test_the_oldest_leave_first_by_bytes_and_by_age_and_live_ones_stay() -> None:
    forest = SuffixForest(1 << 22)
    tree, corpus = forest.open_tree("global"), forest.open_tree("corpus")
    kept = forest.open_sequence(corpus, now=0)
    forest.append(kept, range(5000, 5100))
    live = forest.open_sequence(tree, now=0)
    forest.append(live, range(9000, 9100))
    for second in range(1, 21):
        sequence = forest.open_sequence(tree, now=second)
        forest.append(sequence, range(100 * second, 100 * second + 100))
        forest.close(sequence)
    while not forest.evict(older_than=6, budget=50):
        pass
    present = [second for second in range(1, 21) if forest.count(tree, [100 * second])]
    assert present == list(range(6, 21))
    half = forest.stats().bytes // 2
    while not forest.evict(to_bytes=half, budget=50):
        pass
    present = [second for second in range(1, 21) if forest.count(tree, [100 * second])]
    assert present == list(range(present[0], 21))
    assert 0 < len(present) < 15
    assert half * 0.8 < forest.stats().bytes <= half
    assert forest.count(tree, [9000]) == forest.count(corpus, [5000]) == 1


def test_a_handle_that_is_gone_is_never_taken_for_a_new_one() -> None:
    forest = SuffixForest(1 << 20)
    tree = forest.open_tree("local")
    first = forest.open_sequence(tree)
    forest.append(first, [1, 2])
    assert forest.remove(first)
    swept(forest)
    second = forest.open_sequence(tree)
    assert second != first
    assert not forest.remove(first)
    assert not forest.close(first)
    assert forest.append(first, [3]) == 0
    assert forest.append(second, [3]) == 1
    assert forest.drop_tree(tree)
    assert forest.append(second, [3]) == 0
    assert not forest.drop_tree(tree)
    with pytest.raises(KeyError, match="no tree"):
        forest.open_sequence(tree)
    assert forest.speculate([second], [[tree]], [4]).lengths.tolist() == [0]


def test_a_budget_bounds_each_call_of_sweep() -> None:
    forest = SuffixForest(1 << 24)
    tree = forest.open_tree("local")
    forest.append(forest.open_sequence(tree), np.random.default_rng(0).integers(0, 500, 4000))
    nodes = forest.stats().nodes
    forest.drop_tree(tree)
    while not forest.sweep(100):
        assert nodes - forest.stats().nodes <= 100
        nodes = forest.stats().nodes
    assert forest.stats().bytes == 0


def test_memory_stays_bounded_over_a_million_tokens() -> None:
    limit = 8 << 20
    forest = SuffixForest(limit, depth=32, vocabulary=5000)
    rng = np.random.default_rng(1)
    tree = forest.open_tree("global")
    phrases = [rng.integers(0, 5000, 12) for _ in range(300)]
    used = []
    for second in range(5000):
        tokens = np.concatenate([phrases[i] for i in rng.zipf(1.3, 17) % 300])[:200]
        tokens[rng.integers(0, 200, 40)] = rng.integers(0, 5000, 40)
        local = forest.open_tree("local")
        text, response = forest.open_sequence(local), forest.open_sequence(tree, now=second)
        taken = forest.extend([text, response], np.concatenate([tokens, tokens]), [0, 200, 400])
        assert taken.tolist() == [200, 200]
        forest.close(response)
        forest.drop_tree(local)
        while not forest.evict(to_bytes=limit * 3 // 4):
            pass
        used.append(forest.stats().bytes)
    assert max(used) <= limit * 3 // 4
    assert min(used[1000:]) > limit // 2, "no more is evicted than has to be"
    assert forest.stats().truncations == 0
    assert forest.stats().touched_bytes <= limit
    forest.drop_tree(tree)
    assert swept(forest).stats().bytes == 0


@pytest.mark.parametrize(
    ("limit", "depth", "vocabulary"),
    [(1, 64, 9), (1 << 37, 64, 9), (1 << 20, 1, 9), (1 << 20, 257, 9), (1 << 20, 64, 0)],
)
def test_a_forest_of_impossible_size_is_refused(limit: int, depth: int, vocabulary: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        SuffixForest(limit, depth, vocabulary)
