"""The output law is the target's, enumerated whole, whatever drafts: the p/q rule and matching."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.batch import Chunk
from engine.drafts import Draft
from engine.draw import Draw
from engine.rejection import judge, likelihood
from engine.request import Request
from engine.sampling import choose, coupled, filtered
from tests.engine.scripted import Harness, ScriptedDrafter
from tests.engine.toy import (
    CPU,
    VOCABULARY,
    Drafts,
    Propose,
    drawn_from,
    executor,
    law,
    misfit,
    one_hot,
    sample,
    target_logits,
)

SAMPLES = 100_000
TABLE = target_logits()
RANDOM = torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(11)) * 2


def opposite() -> Tensor:
    """Likes what the target does not."""
    return -TABLE.nan_to_num(neginf=-9.0)


def switching() -> Propose:
    """Another drafter every step, some with q, some one-hot, some none, within one request."""
    drafters = [drawn_from(RANDOM, 1), one_hot(TABLE), drawn_from(opposite(), 2)]

    def propose(step: int, last: Tensor, places: Tensor, most: int) -> Drafts | None:
        part = step % 4
        return None if part == 3 else drafters[part](step, last, places, 1)

    return propose


DRAFTERS: dict[str, Propose] = {
    "always wrong": drawn_from(opposite() * 4, 3),
    "always right": drawn_from(TABLE, 4),
    "random q": drawn_from(RANDOM, 5),
    "switching mid-request": switching(),
    "truncated by confidence before the draw": drawn_from(RANDOM, 6, confident=0.6),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_law_is_the_targets(name: str) -> None:
    found = sample(executor(TABLE), SAMPLES, DRAFTERS[name], lambda i: Draw(1.0))
    assert found.drafted > 0
    assert misfit(found.outputs, law(TABLE, Draw(1.0))) < 1


def test_a_right_drafter_is_always_accepted() -> None:
    found = sample(executor(TABLE), 5_000, DRAFTERS["always right"], lambda i: Draw(1.0))
    assert found.accepted == found.drafted


@pytest.mark.parametrize("table", [RANDOM, opposite()], ids=["random", "opposite"])
def test_acceptance_is_one_minus_the_total_variation(table: Tensor) -> None:
    found = sample(executor(TABLE), 15_000, drawn_from(table, 8), lambda i: Draw(1.0), depth=2)
    distance = (TABLE[1, 0].softmax(0) - table[1, 0].softmax(0)).abs().sum() / 2
    assert found.accepted / found.drafted == pytest.approx(1 - float(distance), abs=0.02)


@pytest.mark.parametrize("seeded", [False, True], ids=["unseeded", "seeded"])
def test_filters_hold_under_the_rule(seeded: bool) -> None:
    """Temperature, min_p, top_k and top_p shape p; the drafter's q knows nothing of them."""
    draw = Draw(0.8, top_k=4, top_p=0.93, min_p=0.06)

    def of(i: int) -> Draw:
        return Draw(0.8, top_k=4, top_p=0.93, min_p=0.06, seed=i) if seeded else draw

    found = sample(executor(TABLE), 15_000, drawn_from(RANDOM, 9), of)
    assert misfit(found.outputs, law(TABLE, draw)) < 1


# --- the counterexample: the length of a draft must not depend on what was drawn ----------------

COIN = torch.tensor([0.7, 0.3]).log().expand(2, 8, 2)


def fair(keep: str) -> Propose:
    """q = (0.5, 0.5). keep "drawn 0": the draft is dropped when a 1 was drawn; keep "half": half
    of the drafts are dropped by a coin of their own."""
    generator = torch.Generator().manual_seed(13)

    def propose(step: int, last: Tensor, places: Tensor, most: int) -> Drafts:
        tokens = torch.randint(0, 2, (len(last), 1), generator=generator)
        coin = torch.randint(0, 2, (len(last),), generator=generator)
        kept = 1 - tokens[:, 0] if keep == "drawn 0" else coin
        return Drafts(tokens, torch.full((len(last), 1, 2), 0.5), kept.tolist())

    return propose


def coin_after(keep: str) -> tuple[float, float]:
    """The misfit, and the share of 0 among the first tokens."""
    found = sample(executor(COIN), 20_000, fair(keep), lambda i: Draw(1.0), depth=2)
    zeros = sum(count for output, count in found.outputs.items() if output[0] == 0)
    return misfit(found.outputs, law(COIN, Draw(1.0), depth=2)), zeros / 20_000


def test_truncating_by_the_drawn_token_is_caught() -> None:
    wrong, zeros = coin_after("drawn 0")
    assert wrong > 10
    assert zeros == pytest.approx(0.85, abs=0.015)


def test_truncating_by_anything_else_is_exact() -> None:
    wrong, zeros = coin_after("half")
    assert wrong < 1
    assert zeros == pytest.approx(0.70, abs=0.015)


# --- the rule alone ------------------------------------------------------------------------------


def ruled(p: list[float], q: list[float], token: int, rows: int = 20_000) -> tuple[float, Tensor]:
    """Share of accepted drafts, and the weights of the draw that replaces a rejected one."""
    scores = torch.tensor(p).log().expand(rows, -1)
    accepted, weights, chances = judge(
        scores,
        torch.full((rows,), token),
        torch.tensor(q).expand(rows, -1),
        torch.Generator().manual_seed(2),
    )
    if accepted.any():
        assert float(chances[0]) == pytest.approx(float(accepted.float().mean()), abs=0.015)
    return float(accepted.float().mean()), weights[0].exp()


def test_a_draft_without_a_law_is_accepted_as_often_as_it_is_drawn() -> None:
    scores = torch.tensor([[0.2, 0.8, 0.0], [0.5, 0.25, 0.25]]).log()
    assert likelihood(scores, torch.tensor([1, 0])).tolist() == pytest.approx([0.8, 0.5])
    assert likelihood(scores, torch.tensor([2, 7])).tolist() == [0.0, 0.0]
    noise = torch.Generator().manual_seed(1)
    chances = judge(
        scores, torch.tensor([0, 7]), torch.tensor([[0.0, 0.5, 0.5]] * 2), noise
    ).chances
    assert chances.tolist() == pytest.approx([0.2, 0.0])


def test_a_draft_the_target_gives_no_mass_is_rejected() -> None:
    share, weights = ruled([0.0, 0.25, 0.75], [0.5, 0.25, 0.25], 0)
    assert share == 0.0
    assert weights.tolist() == pytest.approx([0.0, 0.0, 0.5])


def test_a_draft_is_accepted_by_the_ratio() -> None:
    share, weights = ruled([0.2, 0.8], [0.5, 0.5], 0)
    assert share == pytest.approx(0.4, abs=0.015)
    assert weights.tolist() == pytest.approx([0.0, 0.3])


def test_equal_laws_leave_no_residual_and_fall_back_to_p() -> None:
    share, weights = ruled([0.5, 0.5], [0.5, 0.5], 1)
    assert share == 1.0
    assert weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("q", "token"),
    [
        ([1.0, 0.0], 1),  # q says that its own draft cannot be
        ([float("nan"), float("nan")], 0),
        ([0.5, float("nan")], 0),
        ([0.0, 0.0], 0),
        ([0.5, 0.5], -1),
        ([0.5, 0.5], 2),
    ],
)
def test_a_draft_without_a_law_is_judged_as_one_hot(q: list[float], token: int) -> None:
    share, weights = ruled([0.4, 0.6], q, token)
    assert share == 0.0
    assert weights.tolist() == pytest.approx([0.4, 0.6])


def test_a_lying_q_that_denies_its_draft_does_not_bias() -> None:
    def propose(step: int, last: Tensor, places: Tensor, most: int) -> Drafts:
        tokens = torch.full((len(last), most), 3)
        q = torch.zeros(len(last), most, VOCABULARY)
        q[:, :, 0] = 1.0
        return Drafts(tokens, q, [most] * len(last))

    found = sample(executor(TABLE), 10_000, propose, lambda i: Draw(1.0))
    assert misfit(found.outputs, law(TABLE, Draw(1.0))) < 1


def test_nan_logits_are_unsound_under_the_rule_too() -> None:
    table = TABLE.clone()
    table[1, 1, 2] = float("nan")
    target = executor(table)
    q = torch.full((2, VOCABULARY), 0.2)
    chunk = Chunk(1, [1, 1, 0], 0, (0,), Draw(1.0), drafted=2, q=q)
    for _ in range(50):
        (result,) = target.verify([chunk]).result()
        assert (result.bad is None) == (result.accepted == 0), "only the rows that count are judged"


class DrawingDrafter(ScriptedDrafter):
    """Draws from the target's own law, and hands the law over or not."""

    def __init__(self, with_q: bool) -> None:
        super().__init__(lambda tokens, length: [], "a")
        self._with_q = with_q
        self._generator = torch.Generator().manual_seed(3)

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        drafts: list[Draft] = []
        for request, length in zip(requests, lengths, strict=True):
            text, laws = list(request.tokens), []
            for _ in range(length):
                laws.append(TABLE[text[-1], len(text) - 1].softmax(0))
                text.append(int(torch.multinomial(laws[-1], 1, generator=self._generator)))
            q = torch.stack(laws) if self._with_q else None
            drafts.append(Draft(text[len(request.tokens) :], q))
        return drafts


def test_the_engine_hands_the_laws_of_drafts_to_the_verifier() -> None:
    """A draft from the target's own law is always accepted by the rule, matching takes luck."""
    rates = []
    for with_q in (True, False):
        harness = Harness(
            VOCABULARY,
            lambda token, position: TABLE[token, position].tolist(),
            [DrawingDrafter(with_q)],
            lambda s, r, n: ("a", 3),
        )
        requests = [harness.add([1], 7, Draw(1.0)) for _ in range(60)]
        harness.drain()
        drafted = sum(request.drafted for request in requests)
        rates.append(sum(request.accepted for request in requests) / drafted)
    assert rates[0] == 1.0
    assert rates[1] < 0.8


# --- seeded requests -----------------------------------------------------------------------------


def test_greedy_and_seeded_requests_ignore_q() -> None:
    for draw in (Draw(), Draw(0.9, seed=4)):
        outputs = []
        for propose in (None, drawn_from(RANDOM, 21), one_hot(TABLE)):
            found = sample(executor(TABLE), 1, propose, lambda i, draw=draw: draw, depth=6)
            outputs.append(list(found.outputs))
        assert outputs[0] == outputs[1] == outputs[2]


def test_a_coupled_draft_of_the_same_law_always_agrees_and_a_near_one_mostly() -> None:
    rows = 4_000
    draws = [Draw(0.9, top_k=4, seed=seed) for seed in range(rows)]
    near = TABLE[1, 0] + 0.1 * RANDOM[1, 0]
    generator = torch.Generator().manual_seed(1)
    places = [7] * rows
    tokens, *_ = choose(TABLE[1, 0].expand(rows, -1), draws, places, CPU, generator)
    assert torch.equal(coupled(TABLE[1, 0].expand(rows, -1), draws, places, CPU), tokens)
    agreed = (coupled(near.expand(rows, -1), draws, places, CPU) == tokens).float().mean()
    p, q = (filtered(row[None], draws[:1], CPU).softmax(-1) for row in (TABLE[1, 0], near))
    distance = float((p - q).abs().sum() / 2)
    assert float(agreed) > (1 - distance) / (1 + distance) - 0.02
