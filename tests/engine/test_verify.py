"""Exact verification: the output law is the target's, whatever drafts."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.draw import Draw
from engine.verify import accept
from tests.engine.scripted import Harness, ScriptedDrafter

VOCABULARY = 5
DEPTH = 3
SAMPLES = 20_000


@functools.cache
def logits(token: int, position: int) -> list[float]:
    """A law that differs by last token and position, with one impossible token in a row."""
    row = [math.sin(1.7 * token + 0.9 * position + 2.3 * k) * 1.5 for k in range(VOCABULARY)]
    if token == 2:
        row[4] = float("-inf")
    return row


def law(prompt: int) -> dict[tuple[int, ...], float]:
    """Probability of every output of DEPTH tokens after a one-token prompt."""
    probabilities: dict[tuple[int, ...], float] = {}
    for output in itertools.product(range(VOCABULARY), repeat=DEPTH):
        probability, last = 1.0, prompt
        for place, token in enumerate(output):
            weights = [math.exp(x) for x in logits(last, place)]
            probability *= weights[token] / sum(weights)
            last = token
        probabilities[output] = probability
    return probabilities


def likely(tokens: list[int]) -> int:
    row = logits(tokens[-1], len(tokens) - 1)
    return max(range(VOCABULARY), key=row.__getitem__)


def best(tokens: list[int], length: int) -> list[int]:
    drafted: list[int] = []
    for _ in range(length):
        drafted.append(likely([*tokens, *drafted]))
    return drafted


def worst(tokens: list[int], length: int) -> list[int]:
    drafted: list[int] = []
    for _ in range(length):
        row = logits([*tokens, *drafted][-1], len(tokens) + len(drafted) - 1)
        drafted.append(min(range(VOCABULARY), key=row.__getitem__))
    return drafted


def pseudo_random(tokens: list[int], length: int) -> list[int]:
    return [(sum(tokens) * 7 + len(tokens) * 3 + place) % VOCABULARY for place in range(length)]


def outside(tokens: list[int], length: int) -> list[int]:
    return ([*best(tokens, 1), -1, VOCABULARY, 2])[:length]


DRAFTERS: dict[str, Callable[[list[int], int], list[int]]] = {
    "always likely": best,
    "always unlikely": worst,
    "arbitrary": pseudo_random,
    "ids outside the vocabulary": outside,
}


def chi_square_bound(degrees: int) -> float:
    """99.999 % point, by the Wilson-Hilferty approximation."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 4.265 * math.sqrt(spread)) ** 3


@pytest.mark.parametrize("seeded", [False, True], ids=["unseeded", "seeded"])
@pytest.mark.parametrize("name", [*DRAFTERS, "switching"])
def test_the_sampled_law_is_the_targets_for_every_drafter(name: str, seeded: bool) -> None:
    if name == "switching":
        drafters = [ScriptedDrafter(best, "a"), ScriptedDrafter(worst, "b")]

        def choose(step: int, request: int, names: list[str]) -> tuple[str, int]:
            return [("a", 2), ("b", 1), ("none", 0)][(step + request) % 3]
    else:
        drafters = [ScriptedDrafter(DRAFTERS[name], "a")]

        def choose(step: int, request: int, names: list[str]) -> tuple[str, int]:
            return "a", request % 3

    harness = Harness(VOCABULARY, logits, drafters, choose, pages=2048)
    counts: Counter[tuple[int, ...]] = Counter()
    while counts.total() < SAMPLES:
        requests = [
            harness.add([1], DEPTH, Draw(1.0, seed=counts.total() + i if seeded else None))
            for i in range(2000)
        ]
        harness.drain()
        counts.update(tuple(request.tokens[1:]) for request in requests)
        harness.events.clear()
    expected = law(1)
    assert all(expected[output] > 0 for output in counts), "an impossible output came out"
    total = counts.total()
    kept = [output for output, p in expected.items() if p * total >= 5]
    statistic = sum(
        (counts[output] - expected[output] * total) ** 2 / (expected[output] * total)
        for output in kept
    )
    assert statistic < chi_square_bound(len(kept) - 1)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("length", [0, 1, 2, 7, 16])
def test_greedy_text_does_not_depend_on_the_drafter(name: str, length: int) -> None:
    plain = Harness(VOCABULARY, logits)
    wanted = plain.add([1, 3], 40)
    plain.drain()
    harness = Harness(
        VOCABULARY, logits, [ScriptedDrafter(DRAFTERS[name], "a")], lambda s, r, n: ("a", length)
    )
    request = harness.add([1, 3], 40)
    harness.drain()
    assert request.tokens == wanted.tokens


def test_a_likely_draft_saves_forwards_and_an_unlikely_one_does_not() -> None:
    used = {}
    for name, script in (("likely", best), ("unlikely", worst)):
        harness = Harness(
            VOCABULARY, logits, [ScriptedDrafter(script, "a")], lambda s, r, n: ("a", 4)
        )
        harness.add([1], 41)
        harness.drain()
        used[name] = harness.executor.forwards
    assert used == {"likely": 1 + 8, "unlikely": 1 + 40}


def test_a_seed_gives_the_same_text_whatever_drafts_and_whoever_is_in_the_batch() -> None:
    draw = Draw(0.9, top_k=4, top_p=0.95, seed=77)
    alone = Harness(VOCABULARY, logits)
    wanted = alone.add([2], 30, draw)
    alone.drain()
    harness = Harness(
        VOCABULARY, logits, [ScriptedDrafter(pseudo_random, "a")], lambda s, r, n: ("a", s % 5)
    )
    others = [harness.add([k], 30, Draw(1.0)) for k in range(3)]
    request = harness.add([2], 30, draw)
    harness.drain()
    assert request.tokens == wanted.tokens
    assert all(other.produced == 30 for other in others)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 10**6)),
        min_size=1,
        max_size=6,
    )
)
def test_accept_counts_the_leading_matches_of_each_chunk(
    chunks: list[tuple[list[int], int]],
) -> None:
    tokens: list[int] = []
    drafts: list[int] = []
    expected: list[int] = []
    groups: list[list[int]] = []
    for targets, salt in chunks:
        drafted = [(token + (salt >> place)) % 3 for place, token in enumerate(targets[:-1])]
        groups.append(list(range(len(tokens), len(tokens) + len(targets))))
        tokens += targets
        drafts += [*drafted, -1]
        run = 0
        while run < len(drafted) and drafted[run] == targets[run]:
            run += 1
        expected.append(run)
    width = max(map(len, groups))
    leading = torch.tensor([group + [len(tokens)] * (width - len(group)) for group in groups])
    assert accept(torch.tensor(tokens), torch.tensor(drafts), leading).tolist() == expected
