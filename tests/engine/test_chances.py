"""What verification knows of drafts that are accepted by chance, and how the controller is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from engine.batch import Chunk
from engine.draw import Draw
from engine.executor import Verified
from tests.engine.scripted import Harness, ScriptedDrafter
from tests.engine.toy import CPU, VOCABULARY, executor, target_logits

TABLE = target_logits()
SAMPLED = Draw(0.8, top_k=4)
DRAFT = [3, 1]


def p(last: int, place: int, token: int) -> float:
    """What the target draws `token` with under SAMPLED, written down plainly."""
    scores = (TABLE[last, place] / SAMPLED.temperature).double()
    kept = scores.sort(descending=True).values[SAMPLED.top_k - 1]
    return float(scores.where(scores >= kept, float("-inf")).softmax(0)[token])


def verified(draw: Draw, q: Tensor | None = None, count: int = 1) -> list[Verified]:
    chunks = [
        Chunk(i, [1, *DRAFT], 0, (0,), draw, drafted=2, q=q, history=[1], prompt_length=1)
        for i in range(count)
    ]
    return executor(TABLE).verify(chunks).result()


def test_a_draft_without_a_law_has_the_chance_that_the_target_draws_it() -> None:
    found = verified(SAMPLED, count=4000)
    expected = [p(1, 0, 3), p(3, 1, 1)]
    assert all(one.chances == pytest.approx(expected, abs=1e-5) for one in found)
    share = sum(one.accepted > 0 for one in found) / len(found)
    assert share == pytest.approx(expected[0], abs=0.03)


def test_a_draft_that_was_drawn_has_the_chance_of_the_ratio() -> None:
    q = torch.tensor([[0.1, 0.1, 0.1, 0.5, 0.2], [0.3, 0.1, 0.2, 0.2, 0.2]])
    found = verified(SAMPLED, q)[0]
    expected = [min(1.0, p(1, 0, 3) / 0.5), min(1.0, p(3, 1, 1) / 0.1)]
    assert found.chances == pytest.approx(expected, abs=1e-5)


def test_a_tail_without_a_law_behind_a_draft_with_one_has_each_its_own_chance() -> None:
    q = torch.tensor([[0.1, 0.1, 0.1, 0.5, 0.2]])
    found = verified(SAMPLED, q)[0]
    assert found.chances == pytest.approx([min(1.0, p(1, 0, 3) / 0.5), p(3, 1, 1)], abs=1e-5)


def test_requests_of_all_kinds_in_one_batch_keep_their_own_chances() -> None:
    q = torch.tensor([[0.1, 0.1, 0.1, 0.5, 0.2]])
    draws = [SAMPLED, Draw(), SAMPLED, Draw(0.8, seed=3), SAMPLED]
    laws, counts = [None, None, q, None, None], [2, 2, 2, 2, 0]
    chunks = [
        Chunk(i, [1, *DRAFT[:n]], 0, (0,), draw, drafted=n, q=law, history=[1], prompt_length=1)
        for i, (draw, law, n) in enumerate(zip(draws, laws, counts, strict=True))
    ]
    found = executor(TABLE).verify(chunks).result()
    plain = [p(1, 0, 3), p(3, 1, 1)]
    assert found[0].chances == pytest.approx(plain, abs=1e-5)
    assert found[2].chances == pytest.approx([min(1.0, plain[0] / 0.5), plain[1]], abs=1e-5)
    assert found[1].chances == found[3].chances == found[4].chances == ()


@pytest.mark.parametrize("draw", [Draw(), Draw(0.8, seed=9)], ids=["greedy", "seeded"])
def test_where_nothing_is_left_to_chance_none_is_told(draw: Draw) -> None:
    assert verified(draw)[0].chances == ()


# --- what the controller is told -----------------------------------------------------------------


def always(
    name: str, script: Callable[[Sequence[int], int], list[int]], stop: frozenset[int] = frozenset()
) -> Harness:
    def logits(token: int, position: int) -> list[float]:
        return TABLE[token, position % 8].tolist()

    harness = Harness(
        VOCABULARY, logits, [ScriptedDrafter(script, name)], lambda s, r, n: (name, 3)
    )
    for _ in range(40):
        harness.add([1], 20, Draw(1.0), stop_token_ids=stop)
    harness.drain()
    return harness


@pytest.mark.parametrize("stop", [frozenset[int](), frozenset({3})], ids=["to the end", "cut"])
def test_the_controller_is_told_the_chances_of_what_was_verified(stop: frozenset[int]) -> None:
    harness = always("a", lambda tokens, length: [(tokens[-1] + 2) % VOCABULARY] * length, stop)
    found = [one for step in harness.controller.outcomes for one in step.per_request if one.drafted]
    assert any(one.cut for one in found) == bool(stop)
    assert {len(one.chances) for one in found} >= {1, 2}
    for one in found:
        rejected = one.accepted < one.drafted and not one.cut
        assert len(one.chances) == one.accepted + rejected
        assert all(0.0 <= chance <= 1.0 for chance in one.chances)
    accepted = sum(one.accepted for one in found)
    if not stop:  # a cut hides the last acceptance of a text
        assert sum(map(sum, (one.chances for one in found))) == pytest.approx(accepted, rel=0.1)


def test_chances_are_read_without_a_wait_of_their_own() -> None:
    """They come with the step's other findings, through the same copies."""
    copied: list[int] = []
    made = executor(TABLE)
    to_host = made.device.to_host

    class Watched(type(CPU)):  # the device is frozen
        def to_host(self, value: Tensor) -> Tensor:
            copied.append(value.numel())
            return to_host(value)

    made.device = Watched(CPU.torch_device, CPU.dtype)
    chunk = Chunk(0, [1, *DRAFT], 0, (0,), SAMPLED, drafted=2, history=[1], prompt_length=1)
    assert len(made.verify([chunk]).result()[0].chances) == 2
    assert copied == [3, 1, 3, 2]
