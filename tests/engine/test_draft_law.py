"""The output law is the target's when a drafter draws from a part of the vocabulary, or with other
ids."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from engine.draft_models.law import Drawing
from engine.draw import Draw
from engine.sampling import choose, coupled
from engine.vocabulary import VocabularyMap, identity, reduced, restricted
from tests.engine.toy import (
    CPU,
    VOCABULARY,
    Drafts,
    Propose,
    chi_square_bound,
    executor,
    law,
    misfit,
    sample,
    target_logits,
)

SAMPLES = 10_000
TABLE = target_logits()
WIDTH = 7
"""Ids of the drafter, more than the target has."""
DRAFTER = torch.randn(WIDTH, 8, WIDTH, generator=torch.Generator().manual_seed(23)) * 2
MAPS = {
    "all ids, padded": VocabularyMap(torch.arange(5), None, torch.arange(5), 1.0),
    "three of the target's ids": restricted(identity(VOCABULARY), 3, {1}, torch.tensor([4, 3])),
    "other ids in another order": VocabularyMap(
        torch.tensor([3, 5, 5, 0, 6]), torch.tensor([6, 0, 3]), torch.tensor([4, 3, 0]), 0.6
    ),
    "one id": VocabularyMap(torch.arange(5), torch.tensor([2]), torch.tensor([3]), 0.2),
    "the impossible id": VocabularyMap(
        torch.arange(5), torch.tensor([1, 4]), torch.tensor([1, 4]), 0.4
    ),
}


def drafter(vocabulary: VocabularyMap, table: Tensor, draw: Draw, seed: int = 31) -> Propose:
    """A drafter with logits table [W, position, W] over its own ids, as the product draws them."""
    drawing = Drawing(vocabulary, CPU)
    drawing._generator.manual_seed(seed)

    def propose(step: int, last: Tensor, places: Tensor, most: int) -> Drafts:
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        for ahead in range(most):
            logits = table[vocabulary.feed(last), places + ahead]
            positions = (places + ahead + 1).tolist()
            last, q, _ = drawing.draw(logits, [draw] * len(last), positions)
            tokens.append(last)
            if q is not None:
                laws.append(q)
        stacked = torch.stack(laws, 1) if laws else None
        return Drafts(torch.stack(tokens, 1), stacked, [most] * len(last))

    return propose


def own_columns(vocabulary: VocabularyMap, table: Tensor) -> Tensor:
    """The target's table [V, position, V] as logits over a drafter's ids, [W, position, W]: the
    same for every id that it keeps, whatever it is fed; wrong for the others."""
    fed = torch.full((WIDTH, 8, VOCABULARY), 9.0)
    for token in reversed(range(VOCABULARY)):
        fed[vocabulary.to_draft[token]] = table[token]
    wide = torch.full((WIDTH, 8, WIDTH), 9.0)
    columns = torch.arange(vocabulary.size) if vocabulary.kept is None else vocabulary.kept
    wide[..., columns] = fed[..., vocabulary.to_target]
    return wide


# --- the p/q rule --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAPS)
def test_the_law_is_the_targets(name: str) -> None:
    propose = drafter(MAPS[name], DRAFTER, Draw(1.0))
    found = sample(executor(TABLE), SAMPLES, propose, lambda i: Draw(1.0))
    assert found.drafted > 0
    assert misfit(found.outputs, law(TABLE, Draw(1.0))) < 1


def test_the_law_is_the_targets_when_the_drafter_likes_what_the_target_does_not() -> None:
    vocabulary = MAPS["other ids in another order"]
    liked = own_columns(vocabulary, -TABLE.nan_to_num(neginf=-9.0) * 4)
    propose = drafter(vocabulary, liked, Draw(1.0))
    found = sample(executor(TABLE), SAMPLES, propose, lambda i: Draw(1.0))
    assert found.accepted < 0.3 * found.drafted
    assert misfit(found.outputs, law(TABLE, Draw(1.0))) < 1


def test_the_law_is_the_targets_under_filters() -> None:
    draw = Draw(0.8, top_k=4, top_p=0.93, min_p=0.06)
    propose = drafter(MAPS["three of the target's ids"], DRAFTER, draw)
    found = sample(executor(TABLE), SAMPLES, propose, lambda i: draw)
    assert misfit(found.outputs, law(TABLE, draw)) < 1


@pytest.mark.parametrize("name", MAPS)
def test_a_draft_is_drawn_from_the_law_that_is_handed_over(name: str) -> None:
    vocabulary = MAPS[name]
    rows = 20_000
    propose = drafter(vocabulary, DRAFTER, Draw(0.7))
    made = propose(0, torch.ones(rows).long(), torch.zeros(rows).long(), 1)
    assert made is not None
    assert made.q is not None
    q = made.q[0, 0]
    assert bool((made.q == q).all())
    assert float(q.sum()) == pytest.approx(1.0)
    columns = torch.arange(vocabulary.size) if vocabulary.kept is None else vocabulary.kept
    expected = torch.zeros(VOCABULARY)
    expected[vocabulary.to_target] = (DRAFTER[vocabulary.to_draft[1], 0][columns] / 0.7).softmax(0)
    torch.testing.assert_close(q, expected)
    counts = Counter(made.tokens[:, 0].tolist())
    assert counts.keys() == set(vocabulary.to_target.tolist())
    if len(counts) > 1:
        chances = {token: float(q[token]) * rows for token in counts}
        statistic = sum((counts[token] - want) ** 2 / want for token, want in chances.items())
        assert statistic < chi_square_bound(len(counts) - 1)


def test_the_targets_own_law_over_some_ids_is_accepted_with_their_mass() -> None:
    """1 - TV(p, p restricted to S) = p(S)."""
    vocabulary = MAPS["three of the target's ids"]
    propose = drafter(vocabulary, own_columns(vocabulary, TABLE), Draw(1.0))
    found = sample(executor(TABLE), 15_000, propose, lambda i: Draw(1.0), depth=2)
    mass = float(TABLE[1, 0].softmax(0)[vocabulary.to_target].sum())
    assert 0.2 < mass < 0.9
    assert found.accepted / found.drafted == pytest.approx(mass, abs=0.015)


def test_the_targets_own_law_over_all_ids_is_always_accepted() -> None:
    vocabulary = MAPS["all ids, padded"]
    propose = drafter(vocabulary, own_columns(vocabulary, TABLE), Draw(1.0))
    found = sample(executor(TABLE), 5_000, propose, lambda i: Draw(1.0))
    assert found.accepted == found.drafted


# --- seeded requests -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAPS)
def test_a_seed_gives_the_same_text_whatever_part_is_drafted(name: str) -> None:
    target = executor(TABLE)
    for seed in range(30):
        draw = Draw(0.9, seed=seed)
        propose = drafter(MAPS[name], DRAFTER, draw)
        plain, drafted = (
            sample(target, 1, one, lambda i, draw=draw: draw, depth=6) for one in (None, propose)
        )
        assert plain.outputs == drafted.outputs


def test_the_law_over_seeds_is_the_targets() -> None:
    outputs: Counter[tuple[int, ...]] = Counter()
    target, vocabulary = executor(TABLE), MAPS["other ids in another order"]
    with torch.no_grad():
        for seed in range(1_000):
            draw = Draw(1.0, seed=seed)
            propose = drafter(vocabulary, DRAFTER, draw)
            outputs += sample(target, 1, propose, lambda i, draw=draw: draw, depth=2).outputs
    assert misfit(outputs, law(TABLE, Draw(1.0), depth=2)) < 1


@pytest.mark.parametrize("name", MAPS)
def test_noise_belongs_to_the_targets_ids_not_to_the_columns(name: str) -> None:
    """The largest of some is the largest of all whenever that is one of them."""
    vocabulary, rows = MAPS[name], 3_000
    draws = [Draw(0.9, seed=seed) for seed in range(rows)]
    places = [place % 7 for place in range(rows)]
    logits = TABLE[1, 0].expand(rows, -1)
    tokens, *_ = choose(logits, draws, places, CPU, torch.Generator())
    wide = own_columns(vocabulary, TABLE)[vocabulary.to_draft[1], 0].expand(rows, -1)
    drafted, q, _ = Drawing(vocabulary, CPU).draw(wide, draws, places)
    assert q is None
    inside = torch.isin(tokens, vocabulary.to_target)
    assert int(inside.sum()) > 50
    assert torch.equal(drafted[inside], tokens[inside])
    assert bool(torch.isin(drafted, vocabulary.to_target).all())


@pytest.mark.parametrize("name", MAPS)
def test_a_coupled_draft_is_what_the_whole_vocabulary_would_give_without_the_other_ids(
    name: str,
) -> None:
    vocabulary, rows = MAPS[name], 2_000
    draws = [Draw(0.9, top_k=2, seed=seed) for seed in range(rows)]
    places = list(range(rows))
    logits = DRAFTER[torch.arange(rows) % WIDTH, 3]
    drafted, *_ = Drawing(vocabulary, CPU).draw(logits, draws, places)
    whole = vocabulary.spread(vocabulary.keep(logits), float("-inf"))
    assert torch.equal(drafted, coupled(whole, draws, places, CPU))


# --- greedy requests -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAPS)
def test_a_greedy_draft_is_the_likeliest_id_that_is_kept_and_carries_no_law(name: str) -> None:
    vocabulary = MAPS[name]
    logits = DRAFTER[:, 2]
    drafted, q, _ = Drawing(vocabulary, CPU).draw(logits, [Draw()] * WIDTH, [1] * WIDTH)
    whole = vocabulary.spread(vocabulary.keep(logits), float("-inf"))
    assert q is None
    assert torch.equal(drafted, whole.argmax(-1))


def test_requests_of_every_kind_draft_together() -> None:
    vocabulary = reduced(VOCABULARY, torch.tensor([0, 2, 4]))
    logits = DRAFTER[:4, 1, :3]
    draws = [Draw(1.0), Draw(), Draw(1.0, seed=5), Draw(0.5)]
    drafted, q, _ = Drawing(vocabulary, CPU).draw(logits, draws, [4, 5, 6, 7])
    assert q is not None
    expected = torch.zeros(2, VOCABULARY)
    expected[:, [0, 2, 4]] = (logits[[0, 3]] / torch.tensor([[1.0], [0.5]])).softmax(-1)
    torch.testing.assert_close(q, expected)
    assert int(drafted[1]) == [0, 2, 4][int(logits[1].argmax())]
    alone, *_ = Drawing(vocabulary, CPU).draw(logits[2:3], draws[2:3], [6])
    assert int(drafted[2]) == int(alone)
