"""Chains: a draft continued by another drafter changes no output, and each part has its credit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from controller.contract import NONE, Allotment, BatchView, Offer, Part, Plan
from engine.drafts import Draft
from engine.draw import Draw
from engine.request import Request
from tests.engine.scripted import Harness, ScriptedController, ScriptedDrafter, ScriptedTail
from tests.engine.toy import (
    VOCABULARY,
    Drafts,
    Propose,
    drawn_from,
    executor,
    law,
    misfit,
    sample,
    target_logits,
)

TABLE = target_logits()
RANDOM = torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(31)) * 2
Script = Callable[[list[int], int], list[int]]


# --- the law -------------------------------------------------------------------------------------


def chain(head: Tensor, tail: Tensor, seed: int, *, choosy: bool = False) -> Propose:
    """A first token drawn from one law, q handed over, and the likeliest tokens of another after
    it. choosy: whether there is a tail depends on the token drawn."""
    draw, best = drawn_from(head, seed), tail.argmax(-1)

    def propose(step: int, last: Tensor, places: Tensor, most: int) -> Drafts | None:
        found = draw(step, last, places, 1)
        if found is None:
            return None
        tokens = [found.tokens[:, 0]]
        for ahead in range(1, most):
            tokens.append(best[tokens[-1], places + ahead])
        lengths = [most] * len(last)
        if choosy:
            lengths = [1 if token % 2 else most for token in found.tokens[:, 0].tolist()]
        return Drafts(torch.stack(tokens, 1), found.q, lengths)

    return propose


@pytest.mark.parametrize("head", [RANDOM, TABLE, -TABLE.nan_to_num(neginf=-9.0)])
@pytest.mark.parametrize("choosy", [False, True], ids=["always", "by what was drawn"])
def test_a_one_hot_tail_behind_a_drawn_head_keeps_the_law(head: Tensor, choosy: bool) -> None:
    found = sample(
        executor(TABLE), 15_000, chain(head, TABLE, 7, choosy=choosy), lambda i: Draw(1.0)
    )
    assert found.drafted > 0
    assert misfit(found.outputs, law(TABLE, Draw(1.0))) < 1


def test_a_tail_that_is_judged_by_the_heads_law_would_be_caught() -> None:
    """The guard of the test above: q for the tail too, which was not drawn from it."""
    right = chain(RANDOM, TABLE, 7)

    def wrong(step: int, last: Tensor, places: Tensor, most: int) -> Drafts | None:
        found = right(step, last, places, most)
        if found is None or found.q is None:
            return found
        return Drafts(found.tokens, found.q.expand(-1, most, -1), found.lengths)

    found = sample(executor(TABLE), 15_000, wrong, lambda i: Draw(1.0))
    assert misfit(found.outputs, law(TABLE, Draw(1.0))) > 1


# --- the engine ----------------------------------------------------------------------------------


class TailController(ScriptedController):
    """Allots `head` tokens to the model and up to `more` to its tail, as far as it may."""

    def __init__(self, head: int, more: int) -> None:
        super().__init__(lambda step, request, names: (NONE, 0))
        self._head, self._more = head, more

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        found: list[Allotment] = []
        for view in batch.requests:
            head = min(self._head, view.remaining - 1)
            more = min(self._more, view.remaining - 1 - head)
            one = Allotment(view.id, NONE, 0)
            if head:
                one = Allotment(view.id, "model", head, "suffix" if more else "", more)
            found.append(one)
        return Plan(tuple(found))


class DrawingHead(ScriptedDrafter):
    """Draws from a law of its own and hands it over."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(lambda tokens, length: [], "model")
        self._laws = table.softmax(-1)
        self._generator = torch.Generator().manual_seed(3)

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        drafts: list[Draft] = []
        for request, length in zip(requests, lengths, strict=True):
            text, laws = list(request.tokens), []
            for _ in range(length):
                laws.append(self._laws[text[-1], len(text) - 1])
                text.append(int(torch.multinomial(laws[-1], 1, generator=self._generator)))
            drafts.append(Draft(text[len(request.tokens) :], torch.stack(laws)))
        return drafts


def counting(token: int, position: int) -> list[float]:
    """The target counts up, modulo 26."""
    return [1.0 if other == (token + 1) % 26 else 0.0 for other in range(26)]


def up(tokens: list[int], length: int) -> list[int]:
    """A right draft."""
    return [(tokens[-1] + ahead) % 26 for ahead in range(1, length + 1)]


def right_for(count: int) -> Script:
    """Drafts whose first `count` tokens are right."""
    return lambda tokens, length: (up(tokens, count) + [0] * length)[:length]


def engine(
    head: Script, tail: Script, lengths: tuple[int, int] = (3, 4), pages: int = 4096
) -> Harness:
    drafters = [ScriptedDrafter(head, "model"), ScriptedTail(tail, "suffix")]
    return with_tails(Harness(26, counting, drafters, pages=pages), *lengths)


def with_tails(harness: Harness, head: int, more: int) -> Harness:
    controller = TailController(head, more)
    harness.controller = harness.engine.controller = controller
    harness.engine.drafting.controller = controller
    return harness


def parts(harness: Harness) -> list[tuple[Part, ...]]:
    return [result.parts for step in harness.controller.outcomes for result in step.per_request]


@pytest.mark.parametrize("head", [up, right_for(1), right_for(0)])
@pytest.mark.parametrize("tail", [up, right_for(2), right_for(0), lambda tokens, length: []])
def test_greedy_output_is_the_same_with_any_tail(head: Script, tail: Script) -> None:
    harness = engine(head, tail)
    requests = [harness.add([3 * i], 23) for i in range(4)]
    harness.drain()
    for i, request in enumerate(requests):
        assert request.tokens[1:] == [(3 * i + 1 + n) % 26 for n in range(23)]


def test_sampled_output_through_the_engine_keeps_the_law() -> None:
    best = TABLE.argmax(-1)

    def likeliest(tokens: list[int], length: int) -> list[int]:
        found: list[int] = []
        for ahead in range(length):
            found.append(int(best[(tokens + found)[-1], len(tokens) + ahead - 1]))
        return found

    outputs: Counter[tuple[int, ...]] = Counter()
    harness = with_tails(
        Harness(
            VOCABULARY,
            lambda token, position: TABLE[token, position].tolist(),
            [DrawingHead(RANDOM), ScriptedTail(likeliest, "suffix")],
        ),
        1,
        1,
    )
    requests = [harness.add([1], 4, Draw(1.0)) for _ in range(4_000)]
    harness.drain()
    for request in requests:
        outputs[tuple(request.tokens[1:])] += 1
    tails = [found for found in parts(harness) if found and found[1].accepted]
    assert len(tails) > 200
    assert misfit(outputs, law(TABLE, Draw(1.0), depth=4)) < 1


# --- credit ---------------------------------------------------------------------------------------


def test_each_part_gets_its_own_credit_in_outcomes_and_in_the_requests_statistics() -> None:
    harness = engine(up, right_for(1))
    request = harness.add([0], 12)
    harness.drain()
    first = parts(harness)[0]
    assert [(p.drafter, p.drafted, p.accepted) for p in first] == [
        ("model", 3, 3),
        ("suffix", 4, 1),
    ]
    speculation = harness.end(request).speculation  # type: ignore[union-attr]
    assert speculation.parts["model"][1] + speculation.parts["suffix"][1] == speculation.accepted
    assert speculation.parts["model"][0] + speculation.parts["suffix"][0] == speculation.drafted
    assert speculation.parts["model"][0] == speculation.parts["model"][1]
    assert set(speculation.drafters) == {"model+suffix", "model", "none"} & set(
        speculation.drafters
    )
    assert speculation.drafters["model+suffix"] >= 2


def test_a_tail_behind_a_rejected_head_has_nothing_accepted() -> None:
    harness = engine(right_for(1), up)
    harness.add([0], 12)
    harness.drain()
    for found in parts(harness):
        if found:
            assert (found[0].accepted, found[1].accepted) == (min(1, found[0].drafted), 0) or (
                found[0].drafted == 1
            )


def test_an_empty_tail_is_still_reported_so_that_it_is_known_to_be_rare() -> None:
    harness = engine(up, lambda tokens, length: [])
    harness.add([0], 20)
    harness.drain()
    found = [each for each in parts(harness) if each]
    assert found
    assert all((each[1].drafter, each[1].drafted) == ("suffix", 0) for each in found)


def test_a_short_head_is_not_continued() -> None:
    asked: list[int] = []

    def tail(tokens: list[int], length: int) -> list[int]:
        asked.append(length)
        return up(tokens, length)

    harness = engine(lambda tokens, length: up(tokens, length - 1), tail)
    harness.add([0], 20)
    harness.drain()
    assert not asked


@pytest.mark.parametrize(
    "tail",
    [
        lambda tokens, length: up(tokens, length + 20),  # more than was asked for
        lambda tokens, length: [(tokens[-1] + 1) % 26, 26, 5, -1],  # ids that are none
    ],
)
def test_a_tail_is_held_to_its_length_and_to_the_vocabulary(tail: Script) -> None:
    harness = engine(up, tail)
    request = harness.add([0], 20)
    harness.drain()
    assert request.tokens[1:] == up([0], 20)
    assert all(each[1].drafted <= 4 for each in parts(harness) if each)
    assert max(step.rows for step in harness.controller.outcomes) <= 1 + 3 + 4


def test_a_tail_that_fails_costs_its_tokens_only() -> None:
    def broken(tokens: list[int], length: int) -> list[int]:
        raise RuntimeError("a tail's own fault")

    harness = engine(up, broken)
    request = harness.add([0], 20)
    harness.drain()
    assert request.tokens[1:] == up([0], 20)
    assert request.accepted > 0


def test_a_drafter_that_continues_nobody_is_asked_in_vain() -> None:
    drafters = [ScriptedDrafter(up, "model"), ScriptedDrafter(up, "suffix")]
    harness = with_tails(Harness(26, counting, drafters), 3, 4)
    request = harness.add([0], 20)
    harness.drain()
    assert request.tokens[1:] == up([0], 20)
    assert {len(found) for found in parts(harness)} == {0}


def test_chains_fit_the_pages_there_are() -> None:
    harness = engine(up, up, (6, 8), pages=14)
    requests = [harness.add([3 * i], 9) for i in range(4)]
    harness.drain()
    for i, request in enumerate(requests):
        assert request.tokens[1:] == up([3 * i], 9)


def test_a_stop_inside_the_tail_counts_what_came_before_it() -> None:
    harness = engine(up, up)
    request = harness.add([0], 20, end_ids=frozenset({6}))
    harness.drain()
    assert request.tokens[1:] == [1, 2, 3, 4, 5, 6]
    last = [each for each in harness.controller.outcomes if each.per_request][-1].per_request[0]
    assert last.cut
    assert sum(part.accepted for part in last.parts) == last.accepted


def test_the_proposals_time_is_reported_by_drafter() -> None:
    harness = engine(up, up)
    harness.add([0], 20)
    harness.add([5], 20)
    harness.drain()
    found = [one for step in harness.controller.outcomes for one in step.proposals]
    assert {one.drafter for one in found} == {"model"}
    assert max((one.requests, one.depth) for one in found) == (2, 3)
    for step in harness.controller.outcomes:
        assert 0.0 <= sum(one.ms for one in step.proposals) <= step.draft_ms
