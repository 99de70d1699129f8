"""Random lives of suffix trees and their texts: what the state machines over a forest share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from engine.drafters.suffix.forest import SuffixForest
from tests.engine.suffix_oracle import Oracle, check


class ForestLives(RuleBasedStateMachine):
    """Opens, closes, removes and drops, in the forest and in the oracle. An `initialize` of those
    that derive calls `start`; live and closed are handles of texts that are there."""

    most_trees = 3

    def __init__(self) -> None:
        super().__init__()
        self.forest: SuffixForest | None = None
        self.trees: list[int] = []
        self.live: list[int] = []
        self.closed: list[int] = []
        self.clock = 0

    def start(self, limit: int, depth: int, vocabulary: int, kinds: Sequence[str]) -> None:
        self.forest = SuffixForest(limit, depth, vocabulary)
        self.oracle = Oracle(depth)
        for kind in kinds:
            self.open_tree(kind)

    def left(self, data: st.DataObject) -> None:
        """What comes right after something was removed or dropped."""

    @property
    def there(self) -> SuffixForest:
        assert self.forest
        return self.forest

    @rule(kind=st.sampled_from(["local", "global", "global", "corpus"]))
    @precondition(lambda self: len(self.trees) < self.most_trees)
    def open_tree(self, kind: Any) -> None:
        if tree := self.there.open_tree(kind):
            self.trees.append(tree)
            self.oracle.trees[tree] = kind

    def open_text(self, tree: int, expected: int, weight: int) -> int:
        """Handle of a new text, 0 when the forest is full."""
        self.clock += 1
        text = self.there.open_sequence(tree, self.clock, expected, weight)
        if text:
            self.oracle.open(text, tree, self.clock, weight)
            self.live.append(text)
        return text

    def append_to(self, text: int, tokens: Sequence[int]) -> None:
        taken = self.there.append(text, tokens)
        self.oracle.append(text, tokens[:taken])
        if taken < len(tokens):  # the forest is full
            self.live.remove(text)
            self.closed.append(text)

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def close(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(self.live))
        assert self.there.close(text)
        self.live.remove(text)
        self.closed.append(text)

    @rule(data=st.data())
    @precondition(lambda self: self.live or self.closed)
    def remove(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(self.live + self.closed))
        assert self.there.remove(text)
        self.gone(text)
        self.left(data)

    @rule(data=st.data())
    @precondition(lambda self: self.trees)
    def drop_tree(self, data: st.DataObject) -> None:
        tree = data.draw(st.sampled_from(self.trees))
        assert self.there.drop_tree(tree)
        self.trees.remove(tree)
        for text in self.oracle.drop(tree):
            self.gone(text)
        assert not self.there.drop_tree(tree)
        self.left(data)

    def faded(self, half_life: int, fresh: int) -> None:
        """The oracle's weights after a whole round of fading."""
        for one in self.closed:
            text = self.oracle.sequences[one]
            halvings = (self.clock - text.opened) // half_life
            if self.oracle.trees[text.tree] == "global" and halvings:
                text.weight = min(text.weight, max(fresh >> halvings, 1))

    def gone(self, text: int) -> None:
        """A text is out of use at once, however much of it is still to be freed."""
        self.oracle.sequences.pop(text, None)
        self.live = [one for one in self.live if one != text]
        self.closed = [one for one in self.closed if one != text]
        assert not self.there.close(text)
        assert not self.there.remove(text)
        assert self.there.append(text, [1]) == 0

    def whole(self) -> None:
        check(self.there, self.trees)

    def teardown(self) -> None:
        if self.forest is None:
            return
        for tree in self.trees:
            self.forest.drop_tree(tree)
        while not self.forest.sweep():
            pass
        stats = self.forest.stats()
        assert (stats.bytes, stats.nodes, stats.tokens, stats.sequences, stats.trees) == (0,) * 5
