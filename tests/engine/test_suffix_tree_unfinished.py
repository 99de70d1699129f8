"""Suffix trees stay whole while removals, drops, eviction and fading are under way."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.drafters.suffix_forest import SuffixForest
from engine.drafters.suffix_handles import sequence_of
from tests.engine.suffix_oracle import Oracle, check

HALF_LIFE, FRESH = 4, 8
BUDGET = st.sampled_from([1, 3, 10, 60, 500])


class UnfinishedMachine(RuleBasedStateMachine):
    """No rule but `settle` waits for upkeep to be done; counts are compared when it is."""

    def __init__(self) -> None:
        super().__init__()
        self.trees: list[int] = []
        self.live: list[int] = []
        self.closed: list[int] = []
        self.clock = 0

    @initialize(
        depth=st.integers(5, 12),
        limit=st.sampled_from([1 << 16, 1 << 18]),
        vocabulary=st.sampled_from([2, 3, 30]),
        kinds=st.lists(st.sampled_from(["local", "global", "corpus"]), min_size=1, max_size=3),
    )
    def open_forest(self, depth: int, limit: int, vocabulary: int, kinds: list[str]) -> None:
        self.vocabulary = vocabulary
        self.forest = SuffixForest(limit, depth, vocabulary)
        self.oracle = Oracle(depth)
        for kind in kinds:
            self.open_tree(kind)

    @rule(kind=st.sampled_from(["local", "global", "global", "corpus"]))
    @precondition(lambda self: len(self.trees) < 4)
    def open_tree(self, kind: Any) -> None:
        if tree := self.forest.open_tree(kind):
            self.trees.append(tree)
            self.oracle.trees[tree] = kind

    @rule(
        data=st.data(),
        expected=st.sampled_from([0, 17, 40, 300]) | st.integers(0, 300),
        weight=st.sampled_from([1, FRESH]),
        count=st.integers(0, 60),
        seed=st.randoms(use_true_random=False),
    )
    @precondition(lambda self: self.trees)
    def open_sequence(
        self, data: st.DataObject, expected: int, weight: int, count: int, seed: Any
    ) -> None:
        self.clock += 1
        tree = data.draw(st.sampled_from(self.trees))
        sequence = self.forest.open_sequence(tree, self.clock, expected, weight)
        if sequence:
            self.oracle.open(sequence, tree, self.clock, weight)
            self.live.append(sequence)
            self._append(sequence, [seed.randrange(self.vocabulary) for _ in range(count)])

    @rule(data=st.data(), count=st.integers(1, 60), seed=st.randoms(use_true_random=False))
    @precondition(lambda self: self.live)
    def append(self, data: st.DataObject, count: int, seed: Any) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        self._append(sequence, [seed.randrange(self.vocabulary) for _ in range(count)])

    def _append(self, sequence: int, tokens: list[int]) -> None:
        taken = self.forest.append(sequence, tokens)
        self.oracle.append(sequence, tokens[:taken])
        if taken < len(tokens):  # the forest is full
            self.live.remove(sequence)
            self.closed.append(sequence)

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def close(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        assert self.forest.close(sequence)
        self.live.remove(sequence)
        self.closed.append(sequence)

    @rule(data=st.data())
    @precondition(lambda self: self.live or self.closed)
    def remove(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.live + self.closed))
        assert self.forest.remove(sequence)
        self._gone(sequence)

    @rule(data=st.data())
    @precondition(lambda self: self.trees)
    def drop_tree(self, data: st.DataObject) -> None:
        tree = data.draw(st.sampled_from(self.trees))
        assert self.forest.drop_tree(tree)
        self.trees.remove(tree)
        for sequence in self.oracle.drop(tree):
            self._gone(sequence)

    @rule(budget=BUDGET)
    def sweep(self, budget: int) -> None:
        assert 0 <= self.forest.sweep(budget) <= budget

    @rule(age=st.integers(0, 20), to_bytes=st.none() | st.integers(0, 1 << 17), budget=BUDGET)
    def evict(self, age: int, to_bytes: int | None, budget: int) -> None:
        assert 0 <= self.forest.evict(self.clock - age, to_bytes, budget) <= budget
        candidates = [
            one
            for one in sorted(self.closed, key=lambda one: self.oracle.sequences[one].opened)
            if self.oracle.trees[self.oracle.sequences[one].tree] == "global"
        ]
        evicted = [one for one in candidates if not sequence_of(self.forest.memory, one)]
        assert evicted == candidates[: len(evicted)], "the oldest leave first"
        for sequence in evicted:
            self._gone(sequence)

    @rule(passed=st.integers(0, 9), budget=BUDGET)
    def fade(self, passed: int, budget: int) -> None:
        self.clock += passed
        assert 0 <= self.forest.fade(self.clock, HALF_LIFE, FRESH, budget) <= budget

    @rule()
    def settle(self) -> None:
        while not self.forest.sweep():
            pass
        for _ in range(2):  # a round may be under way
            while not self.forest.fade(self.clock, HALF_LIFE, FRESH):
                pass
        for sequence in self.closed:
            text = self.oracle.sequences[sequence]
            if self.oracle.trees[text.tree] == "global":
                halvings = (self.clock - text.opened) // HALF_LIFE
                if halvings:
                    text.weight = min(text.weight, max(FRESH >> halvings, 1))
        check(self.forest, self.trees)
        for tree in self.trees:
            counts = self.oracle.counts(tree)
            assert all(self.forest.count(tree, string) == n for string, n in counts.items())

    @invariant()
    def memory_and_trees_fit_together(self) -> None:
        check(self.forest, self.trees)

    def _gone(self, sequence: int) -> None:
        self.oracle.sequences.pop(sequence)
        self.live = [one for one in self.live if one != sequence]
        self.closed = [one for one in self.closed if one != sequence]
        assert not self.forest.remove(sequence)

    def teardown(self) -> None:
        if not hasattr(self, "forest"):
            return
        self.settle()
        for tree in self.trees:
            self.forest.drop_tree(tree)
        while not self.forest.sweep():
            pass
        stats = self.forest.stats()
        assert (stats.bytes, stats.nodes, stats.tokens, stats.sequences, stats.trees) == (0,) * 5


TestUnfinished = UnfinishedMachine.TestCase
TestUnfinished.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
