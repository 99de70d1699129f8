"""What suffix trees must answer, by brute force, and whether a forest's memory adds up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.drafters.suffix import children as children_of
from engine.drafters.suffix import memory, nodes
from engine.drafters.suffix.forest import SuffixForest
from engine.drafters.suffix.tree import tips_order

String = tuple[int, ...]


@dataclass
class Text:
    tree: int
    opened: int
    weight: int
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Proposal:
    """source: index among the trees given."""

    tokens: String
    probabilities: tuple[float, ...]
    score: float
    match: int
    source: int


class Oracle:
    """Counts every substring of every text in a dictionary."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.trees: dict[int, str] = {}
        self.sequences: dict[int, Text] = {}
        self.favourite: dict[tuple[int, String], int] = {}
        """(tree, string) -> token that follows it most often, the last to get there."""
        self._running: dict[int, Counter[String]] = {}

    def open(self, sequence: int, tree: int, opened: int = 0, weight: int = 1) -> None:
        self.sequences[sequence] = Text(tree, opened, weight)

    def append(self, sequence: int, tokens: Sequence[int]) -> None:
        text = self.sequences[sequence]
        counts = self._running.setdefault(text.tree, Counter())
        for token in tokens:
            text.tokens.append(token)
            for length in range(1, min(self.depth, len(text.tokens)) + 1):
                string = tuple(text.tokens[-length:])
                counts[string] += text.weight
                before = string[:-1]
                favourite = self.favourite.get((text.tree, before), token)
                if counts[string] >= counts[(*before, favourite)]:
                    self.favourite[text.tree, before] = token

    def drop(self, tree: int) -> list[int]:
        del self.trees[tree]
        return [each for each, text in self.sequences.items() if text.tree == tree]

    def older(self, than: int) -> list[int]:
        """Sequences of global trees that were opened before."""
        return [
            each
            for each, text in self.sequences.items()
            if text.opened < than and self.trees[text.tree] == "global"
        ]

    def counts(self, tree: int) -> Counter[String]:
        """Occurrences of every string in the texts that are there now."""
        found: Counter[String] = Counter()
        for text in self.sequences.values():
            if text.tree == tree:
                for begin in range(len(text.tokens)):
                    for end in range(begin + 1, min(begin + self.depth, len(text.tokens)) + 1):
                        found[tuple(text.tokens[begin:end])] += text.weight
        return found

    def best(
        self, context: Sequence[int], trees: Sequence[int], longest: int,
        factor: float, offset: float, least: float,
    ) -> Proposal | None:  # fmt: skip
        """The draft that the rules choose, where nothing was ever removed."""
        best: Proposal | None = None
        for source, tree in enumerate(trees):
            winner: Proposal | None = None
            for match in range(1, min(self.depth - 1, len(context)) + 1):
                string = tuple(context[-match:])
                if not self._running.get(tree, Counter())[string]:
                    break
                limit = min(longest, math.floor(match * factor + offset + 1e-6))
                tokens, chances = self._follow(tree, string, limit, least)
                score = sum(chances)
                if tokens and (winner is None or score >= winner.score - 1e-9):
                    winner = Proposal(tokens, chances, score, match, source)
            if winner and (best is None or winner.score > best.score + 1e-9):
                best = winner
        return best

    def _follow(
        self, tree: int, string: String, limit: int, least: float
    ) -> tuple[String, tuple[float, ...]]:
        counts, chance = self._running[tree], 1.0
        tokens, chances = [], []
        while len(tokens) < limit and len(string) < self.depth:
            token = self.favourite.get((tree, string))
            if token is None:
                break
            chance *= counts[(*string, token)] / counts[string]
            if chance < least:
                break
            string = (*string, token)
            tokens.append(token)
            chances.append(chance)
        return tuple(tokens), tuple(chances)


def check(forest: SuffixForest, trees: Iterable[int]) -> None:
    """Assert that every unit of memory has one owner, that counts, labels and links of every
    node fit together, and that the tips of every live sequence are where its suffixes end."""
    blocks, _, state = forest.memory
    owners: dict[int, str] = {0: "none"}

    def own(block: int, order: int, what: str) -> None:
        for unit in range(block, block + (1 << order)):
            assert unit not in owners, (what, owners[unit])
            owners[unit] = what

    free = 0
    for order in range(memory.ORDERS):
        block = int(state[memory.FREE + order])
        while block:
            assert blocks[block, memory.MARK] == -1 - order
            own(block, order, "free")
            free += 1 << order
            block = int(blocks[block, memory.NEXT_FREE])
    roots = {handle & 0xFFFFFFFF for handle in trees}
    dropped = int(state[memory.DROPS])
    while dropped:
        roots.add(dropped)
        dropped = int(blocks[dropped, nodes.NEXT_DROP])
    assert len(roots) == state[memory.TREES]
    sequences = [each for root in roots for each in _sequences(forest, root)]
    assert len(sequences) == state[memory.SEQUENCES]
    for sequence in sequences:
        own(sequence, 0, "sequence")
        own(int(blocks[sequence, nodes.TEXT]), int(blocks[sequence, nodes.TEXT_ORDER]), "text")
        if blocks[sequence, nodes.STATE_OF] == nodes.LIVE:
            own(int(blocks[sequence, nodes.TIPS]), tips_order(forest.depth), "tips")
    count = 0
    for root in roots:
        for node, path in _walk(forest, root, ()):
            count += 1
            own(node, 0, "node")
            if blocks[node, nodes.TABLE]:
                own(int(blocks[node, nodes.TABLE]), int(blocks[node, nodes.TABLE_ORDER]), "table")
            if blocks[root, nodes.KIND] != nodes.DEAD:
                _check_node(forest, node, path)
        for sequence in _sequences(forest, root):
            _check_tips(forest, sequence)
    assert count == state[memory.NODES]
    assert len(owners) == state[memory.FRONTIER]
    assert len(owners) - free == state[memory.USED]


def _sequences(forest: SuffixForest, root: int) -> Iterator[int]:
    sequence = int(forest.memory.blocks[root, nodes.FIRST_SEQUENCE])
    while sequence:
        yield sequence
        sequence = int(forest.memory.blocks[sequence, nodes.TREE_NEXT])


def _children(forest: SuffixForest, node: int) -> Iterator[int]:
    blocks = forest.memory.blocks
    child = int(blocks[node, nodes.CHILD])
    while child:
        yield child
        child = int(blocks[child, nodes.NEXT])


def _walk(forest: SuffixForest, node: int, path: String) -> Iterator[tuple[int, String]]:
    yield node, path
    for child in _children(forest, node):
        label = nodes.label_start(forest.memory, child)
        end = nodes.end_of(forest.memory, child)
        yield from _walk(forest, child, tuple(map(int, forest.memory.words[label : label + end])))


def _check_node(forest: SuffixForest, node: int, path: String) -> None:
    blocks = forest.memory.blocks
    children = list(_children(forest, node))
    tokens = [int(blocks[child, nodes.TOKEN]) for child in children]
    counts = [int(blocks[child, nodes.COUNT]) for child in children]
    count = int(blocks[node, nodes.COUNT])
    assert len(children) == len(set(tokens)) == blocks[node, nodes.WIDTH]
    assert count >= sum(counts)
    assert [int(blocks[child, nodes.PREVIOUS]) for child in children] == [0, *children][:-1]
    for child, token in zip(children, tokens, strict=True):
        assert children_of.child_by(forest.memory, node, token) == child
        assert blocks[child, nodes.PARENT] == node
        label = nodes.label_start(forest.memory, child)
        end = nodes.end_of(forest.memory, child)
        assert len(path) < end <= forest.depth
        whole = tuple(map(int, forest.memory.words[label : label + end]))
        assert whole[: len(path) + 1] == (*path, token)
    if blocks[node, nodes.KIND] == nodes.NODE:
        assert count > 0
        assert len(children) != 1 or count > counts[0], "nothing branches or ends here"
        assert children == [] or blocks[node, nodes.DEPTH] != nodes.OPEN
    best = int(blocks[node, nodes.BEST])
    if best != nodes.STALE:
        assert (best == 0) == (not children)
        if best:
            assert blocks[best, nodes.COUNT] == max(counts)
            others = [each for child, each in zip(children, counts, strict=True) if child != best]
            assert max(others, default=0) <= blocks[node, nodes.SECOND]
    best = children_of.best_child(forest.memory, node)
    assert not children or blocks[best, nodes.COUNT] == max(counts)


def _check_tips(forest: SuffixForest, sequence: int) -> None:
    blocks, words, _ = forest.memory
    dead = blocks[blocks[sequence, nodes.ROOT], nodes.KIND] == nodes.DEAD
    if blocks[sequence, nodes.STATE_OF] != nodes.LIVE or dead:
        return
    text = int(blocks[sequence, nodes.TEXT]) << 4
    end = text + int(blocks[sequence, nodes.LENGTH])
    for m in range(1, int(blocks[sequence, nodes.TIP_COUNT]) + 1):
        tip = int(words[(int(blocks[sequence, nodes.TIPS]) << 4) + m - 1])
        label = nodes.label_start(forest.memory, tip)
        assert blocks[tip, nodes.DEPTH] == m
        assert words[label : label + m].tolist() == words[end - m : end].tolist()
