"""Suffix trees count like a dictionary of all substrings, whatever is added, removed or evicted."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.drafters.suffix_forest import SuffixForest
from tests.engine.suffix_oracle import Oracle, check

DEPTH = 5
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


class ForestMachine(RuleBasedStateMachine):
    """Random lives of trees and sequences, against the oracle after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.forest = SuffixForest(1 << 20, depth=DEPTH, vocabulary=3)
        self.oracle = Oracle(DEPTH)
        self.trees: list[int] = []
        self.live: list[int] = []
        self.closed: list[int] = []
        self.clock = 0

    @initialize(kind=st.sampled_from(["local", "global"]))
    def open_first_tree(self, kind: Any) -> None:
        self.open_tree(kind)

    @rule(kind=st.sampled_from(["local", "global", "corpus"]))
    @precondition(lambda self: len(self.trees) < 3)
    def open_tree(self, kind: Any) -> None:
        tree = self.forest.open_tree(kind)
        self.trees.append(tree)
        self.oracle.trees[tree] = kind

    @rule(data=st.data(), weight=st.sampled_from([1, 1, 3, 8]))
    @precondition(lambda self: self.trees and len(self.live) < 4)
    def open_sequence(self, data: st.DataObject, weight: int) -> None:
        self.clock += 1
        tree = data.draw(st.sampled_from(self.trees))
        sequence = self.forest.open_sequence(tree, now=self.clock, weight=weight)
        self.oracle.open(sequence, tree, self.clock, weight)
        self.live.append(sequence)

    @rule(data=st.data(), tokens=TOKENS)
    @precondition(lambda self: self.live)
    def append(self, data: st.DataObject, tokens: list[int]) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        assert self.forest.append(sequence, tokens) == len(tokens)
        self.oracle.append(sequence, tokens)

    @rule(data=st.data(), tokens=st.lists(TOKENS, min_size=4, max_size=4))
    @precondition(lambda self: len(self.live) > 1)
    def append_to_all_in_turns(self, data: st.DataObject, tokens: list[list[int]]) -> None:
        for position in range(12):
            batch = [
                (sequence, part[position])
                for sequence, part in zip(self.live, tokens, strict=False)
                if position < len(part)
            ]
            if batch:
                sequences, ids = zip(*batch, strict=True)
                self.forest.extend(sequences, ids, range(len(batch) + 1))
                for sequence, token in batch:
                    self.oracle.append(sequence, [token])

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def close(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        assert self.forest.close(sequence)
        self.live.remove(sequence)
        self.closed.append(sequence)

    @rule(data=st.data(), budget=st.sampled_from([1, 7, 1000]))
    @precondition(lambda self: self.live or self.closed)
    def remove(self, data: st.DataObject, budget: int) -> None:
        sequence = data.draw(st.sampled_from(self.live + self.closed))
        assert self.forest.remove(sequence)
        while not self.forest.sweep(budget):
            check(self.forest, self.trees)
        self._gone(sequence)

    @rule(data=st.data(), budget=st.sampled_from([1, 1000]))
    @precondition(lambda self: self.trees)
    def drop_tree(self, data: st.DataObject, budget: int) -> None:
        tree = data.draw(st.sampled_from(self.trees))
        assert self.forest.drop_tree(tree)
        while not self.forest.sweep(budget):
            pass
        self.trees.remove(tree)
        for sequence in self.oracle.drop(tree):
            self._gone(sequence)
        assert not self.forest.drop_tree(tree)

    @rule(age=st.integers(0, 5), budget=st.sampled_from([1, 1000]))
    def evict_by_age(self, age: int, budget: int) -> None:
        while not self.forest.evict(older_than=self.clock - age, budget=budget):
            pass
        for sequence in self.oracle.older(self.clock - age):
            if sequence in self.closed:
                self._gone(sequence)

    @rule(half_life=st.integers(1, 3), budget=st.sampled_from([1, 1000]))
    def fade(self, half_life: int, budget: int) -> None:
        while not self.forest.fade(self.clock, half_life, fresh=8, budget=budget):
            check(self.forest, self.trees)
        for sequence, text in self.oracle.sequences.items():
            halvings = (self.clock - text.opened) // half_life
            if sequence in self.closed and self.oracle.trees[text.tree] == "global" and halvings:
                text.weight = min(text.weight, max(8 >> halvings, 1))

    @rule(data=st.data(), how=st.sampled_from(["remove", "drop"]))
    @precondition(lambda self: self.closed)
    def fade_is_overtaken(self, data: st.DataObject, how: str) -> None:
        self.clock += 9
        self.forest.fade(self.clock, 3, fresh=8, budget=data.draw(st.integers(1, 20)))
        sequence = data.draw(st.sampled_from(self.closed))
        tree = self.oracle.sequences[sequence].tree
        if how == "remove":
            self.forest.remove(sequence)
            gone = [sequence]
        else:
            self.forest.drop_tree(tree)
            self.trees.remove(tree)
            gone = self.oracle.drop(tree)
        self.forest.sweep(3)
        for each in gone:
            self._gone(each)
        self.fade(3, 1000)
        while not self.forest.sweep():
            pass

    def _gone(self, sequence: int) -> None:
        self.oracle.sequences.pop(sequence, None)
        self.live = [each for each in self.live if each != sequence]
        self.closed = [each for each in self.closed if each != sequence]
        assert not self.forest.close(sequence)
        assert self.forest.append(sequence, [1]) == 0

    @invariant()
    def counts_are_the_oracles(self) -> None:
        check(self.forest, self.trees)
        for tree in self.trees:
            counts = self.oracle.counts(tree)
            for string in [(), *counts]:
                for longer in [(*string, token) for token in range(3)]:
                    if len(longer) <= DEPTH:
                        assert self.forest.count(tree, longer) == counts[longer]

    def teardown(self) -> None:
        for tree in self.trees:
            self.forest.drop_tree(tree)
        while not self.forest.sweep():
            pass
        stats = self.forest.stats()
        assert (stats.bytes, stats.nodes, stats.tokens, stats.sequences, stats.trees) == (0,) * 5


TestForest = ForestMachine.TestCase
TestForest.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
