"""Suffix trees count like a dictionary of all substrings, whatever is added, removed or evicted."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.engine.suffix_machine import ForestLives

DEPTH, FRESH = 5, 8
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


class ForestMachine(ForestLives):
    """Every rule waits for its upkeep, and all counts are compared after each."""

    @initialize(kind=st.sampled_from(["local", "global"]))
    def open_first_tree(self, kind: str) -> None:
        self.start(1 << 20, DEPTH, 3, [kind])

    @rule(data=st.data(), weight=st.sampled_from([1, 1, 3, FRESH]))
    @precondition(lambda self: self.trees and len(self.live) < 4)
    def open_sequence(self, data: st.DataObject, weight: int) -> None:
        assert self.open_text(data.draw(st.sampled_from(self.trees)), 0, weight)

    @rule(data=st.data(), tokens=TOKENS)
    @precondition(lambda self: self.live)
    def append(self, data: st.DataObject, tokens: list[int]) -> None:
        text = data.draw(st.sampled_from(self.live))
        self.append_to(text, tokens)
        assert text in self.live, "there is room for all"

    @rule(tokens=st.lists(TOKENS, min_size=4, max_size=4))
    @precondition(lambda self: len(self.live) > 1)
    def append_to_all_in_turns(self, tokens: list[list[int]]) -> None:
        for position in range(12):
            batch = [
                (text, part[position])
                for text, part in zip(self.live, tokens, strict=False)
                if position < len(part)
            ]
            if batch:
                texts, ids = zip(*batch, strict=True)
                self.there.extend(texts, ids, range(len(batch) + 1))
                for text, token in batch:
                    self.oracle.append(text, [token])

    def left(self, data: st.DataObject) -> None:
        budget = data.draw(st.sampled_from([1, 7, 1000]))
        while not self.there.sweep(budget):
            self.whole()

    @rule(age=st.integers(0, 5), budget=st.sampled_from([1, 1000]))
    def evict_by_age(self, age: int, budget: int) -> None:
        while not self.there.evict(older_than=self.clock - age, budget=budget):
            pass
        for text in self.oracle.older(self.clock - age):
            if text in self.closed:
                self.gone(text)

    @rule(half_life=st.integers(1, 3), budget=st.sampled_from([1, 1000]))
    def fade(self, half_life: int, budget: int) -> None:
        while not self.there.fade(self.clock, half_life, FRESH, budget):
            self.whole()
        self.faded(half_life, FRESH)

    @rule(data=st.data(), how=st.sampled_from(["remove", "drop"]))
    @precondition(lambda self: self.closed)
    def fade_is_overtaken(self, data: st.DataObject, how: str) -> None:
        self.clock += 9
        self.there.fade(self.clock, 3, FRESH, data.draw(st.integers(1, 20)))
        text = data.draw(st.sampled_from(self.closed))
        if how == "remove":
            self.there.remove(text)
            gone = [text]
        else:
            tree = self.oracle.sequences[text].tree
            self.there.drop_tree(tree)
            self.trees.remove(tree)
            gone = self.oracle.drop(tree)
        self.there.sweep(3)
        for each in gone:
            self.gone(each)
        self.fade(3, 1000)
        while not self.there.sweep():
            pass

    @invariant()
    def counts_are_the_oracles(self) -> None:
        self.whole()
        for tree in self.trees:
            counts = self.oracle.counts(tree)
            for string in [(), *counts]:
                for longer in [(*string, token) for token in range(3)]:
                    if len(longer) <= DEPTH:
                        assert self.there.count(tree, longer) == counts[longer]


TestForest = ForestMachine.TestCase
TestForest.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
