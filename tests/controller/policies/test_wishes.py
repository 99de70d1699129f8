"""A D that a request asks for without naming the drafter: the policy's own drafter drafts it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from controller.contract import Features, Offer, Wish
from tests.controller.policies.stage import Stage, everything, people, policy
from tests.controller.simulated_engine import request

NAMES = ("ngram", "suffix", "mtp")
NAMED = ("fixed", "batch_table", "tensorrt_schedule", "ema_tiers", "goodput", "acceptance_gate")


def drafter(name: str, offers: Sequence[Offer], **options: Any) -> tuple[str, int]:
    """Who drafts how much for a request that asks for two tokens."""
    stage = Stage(policy(name, NAMES, models=("mtp",), **options))
    plan = stage.plan([request(0, wish=Wish(draft_length=2))], offers)
    return plan.allotments[0].drafter, plan.allotments[0].length


def offered(*names: str, match: int = 3) -> list[Offer]:
    return [Offer(0, name, 8, Features(match if name != "mtp" else 0)) for name in names]


@pytest.mark.parametrize("name", [*NAMED, "margin_verify"])
def test_it_is_the_one_that_the_options_name(name: str) -> None:
    assert drafter(name, offered(*NAMES), drafter="suffix") == ("suffix", 2)
    assert drafter(name, offered(*NAMES)) == ("mtp", 2)


def test_where_that_one_has_no_draft_another_drafts() -> None:
    assert drafter("fixed", offered("mtp", "suffix"), drafter="ngram") == ("suffix", 2)


def test_a_match_or_else_the_model() -> None:
    options: dict[str, Any] = {"least_match": 4}
    assert drafter("ngram_else_model", offered(*NAMES, match=4), **options) == ("ngram", 2)
    assert drafter("ngram_else_model", offered(*NAMES, match=3), **options) == ("mtp", 2)
    assert drafter("ngram_else_model", offered("ngram", match=3), **options) == ("ngram", 2)


def test_the_bandits_favourite() -> None:
    stage = Stage(policy("ucb", NAMES, models=("mtp",)), NAMES)
    asks = [request(0, wish=Wish(draft_length=2))]
    assert stage.plan(asks, offered(*NAMES)).allotments[0].drafter == "mtp"
    for _ in range(150):
        plan = stage.plan(people(1))
        stage.observe(plan, lambda one: everything(one) if one.drafter == "suffix" else 0)
    assert stage.plan(asks, offered(*NAMES)).allotments[0].drafter == "suffix"
    assert stage.plan(asks, offered("mtp")).allotments[0].drafter == "mtp"
