"""Suffix trees within their limit: a full forest, odd ids, eviction and a long life."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.suffix.calls import begin
from engine.drafters.suffix.forest import SuffixForest
from engine.drafters.suffix.nodes import GLOBAL, LIVE, TEXT
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
    stats = forest.stats()
    assert (stats.truncated_id, stats.truncated_full, stats.truncated_count) == (1, 0, 0)
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
    stats = forest.stats()
    assert stats.bytes <= stats.limit_bytes
    assert stats.truncated_full == stats.truncations == refused
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


def test_no_token_of_a_text_passes_for_a_handle_that_is_gone() -> None:
    forest = SuffixForest(1 << 20, depth=16)
    tree = forest.open_tree("local")
    trees = [forest.open_tree("global") for _ in range(100)]
    gone = [forest.open_sequence(tree) for _ in range(100)]
    for handle in gone:
        assert forest.remove(handle)
    for handle in trees:
        assert forest.drop_tree(handle)
    swept(forest)
    places = {handle & 0xFFFFFFFF: handle for handle in [*gone, *trees]}
    overlaid = 0
    for kind in [LIVE, GLOBAL] * 20:
        text = forest.open_sequence(tree, expected=100)
        first = int(forest.memory.blocks[text & 0xFFFFFFFF, TEXT])
        tokens = np.zeros(112, np.int64)
        for unit in range(7):
            if handle := places.get(first + unit):
                generation = [handle >> 32] if overlaid % 2 else []  # or what is left there
                words = [kind, *generation]
                tokens[16 * unit : 16 * unit + len(words)] = words
                overlaid += 1
        assert forest.append(text, tokens) == 112
        assert not any(forest.close(handle) for handle in gone)
        assert not any(forest.drop_tree(handle) for handle in trees)
    for _ in range(40):  # texts of one token leave the other words of their unit as they were
        for kind in (LIVE, GLOBAL):
            assert forest.append(forest.open_sequence(tree, expected=1), [kind]) == 1
    assert not any(forest.close(handle) for handle in gone)
    assert not any(forest.drop_tree(handle) for handle in trees)
    assert overlaid > 20


def test_a_tree_whose_counts_near_their_limit_is_crowded_and_loses_its_oldest() -> None:
    forest = SuffixForest(1 << 20, depth=8)
    tree, weight = forest.open_tree("global"), 1 << 24  # 128 tokens of this weight are too many
    for second in range(10):
        text = begin(forest.memory, tree, second, 0, weight)
        assert not forest.stats().crowded
        assert forest.append(text, range(10 * second, 10 * second + 10)) == 10
        forest.close(text)
    assert forest.stats().crowded
    while not forest.evict(budget=3):
        pass
    assert not forest.stats().crowded
    present = [second for second in range(10) if forest.count(tree, [10 * second])]
    assert present == list(range(2, 10))
    last = begin(forest.memory, tree, 11, 0, weight)
    assert forest.append(last, range(200)) == 127 - 80
    stats = forest.stats()
    assert (stats.truncated_count, stats.truncated_full, stats.truncated_id) == (1, 0, 0)
    assert forest.drop_tree(tree)
    assert swept(forest).stats().bytes == 0
    assert not forest.stats().crowded


@pytest.mark.parametrize("budget", [1, 1000])
def test_a_text_that_faded_to_the_end_fades_again_and_is_removed_whole(budget: int) -> None:
    forest = SuffixForest(1 << 20, depth=4)
    tree = forest.open_tree("global")
    fading, other = forest.open_sequence(tree, weight=64), forest.open_sequence(tree)
    for text, tokens in ((fading, [7, 1, 2, 3]), (other, [1, 2, 3])):
        forest.append(text, tokens)
        forest.close(text)
    for now, weight in ((10, 32), (20, 16), (100, 1)):
        while not forest.fade(now, 10, 64, budget):
            check(forest, [tree])
        assert [forest.count(tree, [token]) for token in (7, 1, 2, 3)] == [
            weight,
            *3 * [weight + 1],
        ]
        assert forest.count(tree, [7, 1, 2, 3]) == weight
    assert forest.remove(fading)
    while not forest.sweep(budget):
        check(forest, [tree])
    assert [forest.count(tree, [token]) for token in (7, 1, 2, 3)] == [0, 1, 1, 1]
    assert forest.count(tree, [7, 1, 2, 3]) == 0
    check(forest, [tree])
    assert (forest.stats().tokens, forest.stats().sequences) == (3, 1)


def test_removing_a_text_that_fades_costs_no_more_than_its_budget() -> None:
    forest = SuffixForest(1 << 24)
    tree = forest.open_tree("global")
    text = forest.open_sequence(tree, weight=64)
    forest.append(text, np.random.default_rng(0).integers(0, 50, 4000))
    forest.close(text)
    assert forest.fade(100, 10, 64, budget=1000) == 0
    before = forest.count(tree, [])
    assert forest.evict(older_than=1, budget=1) == 0
    assert before - forest.count(tree, []) <= 63
    while not forest.evict(older_than=1, budget=1000):
        check(forest, [tree])
    assert forest.stats().tokens == 0


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
