"""Suffix trees stay whole while removals, drops, eviction and fading are under way."""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from engine.drafters.suffix.handles import sequence_of
from tests.engine.suffix_machine import ForestLives

HALF_LIFE, FRESH = 4, 8
BUDGET = st.sampled_from([1, 3, 10, 60, 500])


class UnfinishedMachine(ForestLives):
    """No rule but `settle` waits for upkeep to be done; counts are compared when it is."""

    most_trees = 4

    @initialize(
        depth=st.integers(5, 12),
        limit=st.sampled_from([1 << 16, 1 << 18]),
        vocabulary=st.sampled_from([2, 3, 30]),
        kinds=st.lists(st.sampled_from(["local", "global", "corpus"]), min_size=1, max_size=3),
    )
    def open_forest(self, depth: int, limit: int, vocabulary: int, kinds: list[str]) -> None:
        self.vocabulary = vocabulary
        self.start(limit, depth, vocabulary, kinds)

    @rule(
        data=st.data(),
        expected=st.sampled_from([0, 17, 40, 300]) | st.integers(0, 300),
        weight=st.sampled_from([1, FRESH]),
        count=st.integers(0, 60),
        seed=st.randoms(use_true_random=False),
    )
    @precondition(lambda self: self.trees)
    def open_sequence(
        self, data: st.DataObject, expected: int, weight: int, count: int, seed: Random
    ) -> None:
        if text := self.open_text(data.draw(st.sampled_from(self.trees)), expected, weight):
            self.append_to(text, [seed.randrange(self.vocabulary) for _ in range(count)])

    @rule(data=st.data(), count=st.integers(1, 60), seed=st.randoms(use_true_random=False))
    @precondition(lambda self: self.live)
    def append(self, data: st.DataObject, count: int, seed: Random) -> None:
        text = data.draw(st.sampled_from(self.live))
        self.append_to(text, [seed.randrange(self.vocabulary) for _ in range(count)])

    @rule(budget=BUDGET)
    def sweep(self, budget: int) -> None:
        assert 0 <= self.there.sweep(budget) <= budget

    @rule(age=st.integers(0, 20), to_bytes=st.none() | st.integers(0, 1 << 17), budget=BUDGET)
    def evict(self, age: int, to_bytes: int | None, budget: int) -> None:
        assert 0 <= self.there.evict(self.clock - age, to_bytes, budget) <= budget
        candidates = [
            one
            for one in sorted(self.closed, key=lambda one: self.oracle.sequences[one].opened)
            if self.oracle.trees[self.oracle.sequences[one].tree] == "global"
        ]
        evicted = [one for one in candidates if not sequence_of(self.there.memory, one)]
        assert evicted == candidates[: len(evicted)], "the oldest leave first"
        for text in evicted:
            self.gone(text)

    @rule(passed=st.integers(0, 9), budget=BUDGET)
    def fade(self, passed: int, budget: int) -> None:
        self.clock += passed
        assert 0 <= self.there.fade(self.clock, HALF_LIFE, FRESH, budget) <= budget

    @rule()
    def settle(self) -> None:
        while not self.there.sweep():
            pass
        for _ in range(2):  # a round may be under way
            while not self.there.fade(self.clock, HALF_LIFE, FRESH):
                pass
        self.faded(HALF_LIFE, FRESH)
        self.whole()
        for tree in self.trees:
            counts = self.oracle.counts(tree)
            assert all(self.there.count(tree, string) == n for string, n in counts.items())

    @invariant()
    def memory_and_trees_fit_together(self) -> None:
        self.whole()

    def teardown(self) -> None:
        if self.forest is not None:
            self.settle()
        super().teardown()


TestUnfinished = UnfinishedMachine.TestCase
TestUnfinished.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
