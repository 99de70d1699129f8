"""Margins of models' drafts: what the drafters report, and what a plan's bar makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from controller.contract import Allotment, Bar, BatchView, Offer, Plan, RequestOutcome
from engine.draft_models.margin import margins
from engine.drafting import Drafting
from engine.drafts import Draft
from engine.draw import Draw
from engine.request import Request
from engine.scheduler import Work
from tests.engine.replay import make_request
from tests.engine.scripted import Harness, ScriptedController, ScriptedDrafter, ScriptedTail
from tests.engine.toy import (
    VOCABULARY,
    Drafts,
    Propose,
    executor,
    law,
    misfit,
    sample,
    target_logits,
)

TABLE = target_logits()
QUARTER = Draw(0.5)


def plainly(logits: Tensor) -> Tensor:
    two = logits.sort(dim=-1, descending=True).values
    return two[:, 0] - two[:, 1]


@pytest.mark.parametrize("width", [2, 5, 63, 4096, 49152, 49153])
def test_the_margin_is_largest_minus_second_largest(width: int) -> None:
    logits = torch.randn(7, width, generator=torch.Generator().manual_seed(width))
    assert torch.equal(margins(logits), plainly(logits))


def test_the_second_best_may_lie_in_the_best_ones_block_or_in_another() -> None:
    logits = torch.full((2, 4096), -9.0)
    logits[0, 10], logits[0, 12] = 5.0, 3.5
    logits[1, 10], logits[1, 3000] = 5.0, 4.75
    assert margins(logits).tolist() == [1.5, 0.25]


def test_equal_best_tokens_have_no_margin_and_a_single_one_is_sure() -> None:
    assert margins(torch.zeros(1, 4096)).tolist() == [0.0]
    assert margins(torch.zeros(2, 1)).tolist() == [float("inf")] * 2


# --- a draft and its bar -------------------------------------------------------------------------

BAR = Bar(0.6, 0.0, 1.0, 0.0, 12.0)


def test_a_cut_or_continued_draft_keeps_what_was_drafted_in_mind() -> None:
    draft = Draft([1, 2, 3], margins=(3.0, 2.0, 1.0))
    assert draft.cut(1) == Draft([1], margins=(3.0, 2.0, 1.0))
    assert draft.extended([4]).margins == (3.0, 2.0, 1.0)


class Telling(ScriptedDrafter):
    """A drafter that says how sure it was of each token."""

    kind: Literal["model_free", "model"] = "model"

    def __init__(self, margin: Callable[[Sequence[int]], float]) -> None:
        super().__init__(lambda tokens, length: [(tokens[-1] + 1) % VOCABULARY] * length, "mtp")
        self._margin = margin

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        drafts = super().propose(requests, lengths)
        return [
            Draft(
                draft.tokens,
                margins=tuple(self._margin(draft.tokens[:n]) for n in range(len(draft))),
            )
            for draft in drafts
        ]


class Barring(ScriptedController):
    """Allots three tokens to everybody, under a bar for greedy requests."""

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        plan = super().plan(batch, offers)
        greedy = {request.id for request in batch.requests if not request.sampled}
        return Plan(
            tuple(
                one._replace(bar=BAR) if one.request in greedy else one for one in plan.allotments
            )
        )


def outcomes(margin: Callable[[Sequence[int]], float], draw: Draw) -> list[RequestOutcome]:
    harness = Harness(
        VOCABULARY,
        lambda token, position: TABLE[token, position % 8].tolist(),
        [Telling(margin)],
    )
    controller = Barring(lambda s, r, n: ("mtp", 3))
    harness.engine.controller = harness.engine.drafting.controller = controller
    harness.add([1], 12, draw)
    harness.drain()
    return [one for step in controller.outcomes for one in step.per_request]


def test_what_promises_too_little_is_not_verified_and_the_controller_sees_why() -> None:
    found = outcomes(lambda before: 9.0 if not before else 0.0, Draw())
    whole = [one for one in found if one.margins is not None and len(one.margins.values) == 3]
    assert whole
    for one in whole:
        assert one.drafted == 1
        assert one.margins is not None
        assert (one.margins.drafter, one.margins.sampled) == ("mtp", False)
        assert one.margins.values == (9.0, 0.0, 0.0)


def test_a_draft_that_promises_nothing_is_plain_decoding_that_still_says_who_drafted() -> None:
    found = [one for one in outcomes(lambda before: -1.0, Draw()) if one.margins is not None]
    assert {(one.drafter, one.drafted) for one in found} == {("none", 0)}
    assert {one.margins.drafter for one in found if one.margins} == {"mtp"}


def test_a_bar_is_for_its_kind_of_request_alone() -> None:
    found = [one for one in outcomes(lambda before: 0.0, QUARTER) if one.margins is not None]
    assert found[0].drafted == 3
    assert found[0].margins is not None
    assert found[0].margins.sampled


def test_a_draft_that_a_bar_ended_is_not_continued() -> None:
    """A tail continues what came in full: how much it may add was settled before the draft."""
    drafter = Telling(lambda before: 9.0 if not before else 0.0)
    tail = ScriptedTail(lambda tokens, length: [0] * length, "suffix")
    controller: Any = SimpleNamespace(attentive=True)
    drafting = Drafting([drafter, tail], controller, 8, VOCABULARY)
    request = make_request([1, 2])
    drafting.admit([request])
    work = Work([request], [])
    for bar, length in ((None, 5), (BAR, 1)):
        allotments = (Allotment(request.id, "mtp", 2, "suffix", 3, bar),)
        (draft,), _ = drafting.draft(work.decoding, Plan(allotments), lambda r, n: n)
        assert len(draft) == length


# --- exactness -----------------------------------------------------------------------------------

DRAFTER = torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(29)) * 2


def barred(honest: bool, met: set[int]) -> Propose:
    """A drafter that draws whole drafts from its law, of which a bar decides how much is verified:
    by each place's own margin, or by the score of the very token that was drawn there. met: the
    lengths that there were."""
    generator = torch.Generator().manual_seed(31)
    laws = DRAFTER.softmax(-1)

    def propose(step: int, last: Tensor, places: Tensor, most: int) -> Drafts:
        tokens: list[Tensor] = []
        q: list[Tensor] = []
        told: list[Tensor] = []
        for ahead in range(most):
            rows = laws[last, places + ahead]
            ahead_of = margins(DRAFTER[last, places + ahead])
            last = torch.multinomial(rows, 1, generator=generator).squeeze(1)
            score = rows.gather(1, last.unsqueeze(1)).squeeze(1)
            tokens.append(last)
            q.append(rows)
            told.append(ahead_of if honest else 2.0 * score)
        bar = Bar(0.45 if honest else 0.6, 0.0, 1.0, 0.0, 12.0)
        lengths = [bar.length(one) for one in torch.stack(told, 1).tolist()]
        met.update(lengths)
        return Drafts(torch.stack(tokens, 1), torch.stack(q, 1), lengths)

    return propose


def test_a_bar_on_margins_leaves_the_law_as_it_is() -> None:
    met: set[int] = set()
    found = sample(executor(TABLE), 15_000, barred(True, met), lambda i: Draw(1.0))
    assert {1, 2} <= met
    assert misfit(found.outputs, law(TABLE, Draw(1.0))) < 1


def test_a_bar_on_what_was_drawn_would_not() -> None:
    """The guard of the test above."""
    found = sample(executor(TABLE), 15_000, barred(False, set()), lambda i: Draw(1.0))
    assert misfit(found.outputs, law(TABLE, Draw(1.0))) > 2
