"""The engine's side of changing the policy while it serves."""

from __future__ import annotations

from typing import Any

import pytest

from controller.contract import CostPoint
from engine.build import open_controller
from engine.calls import answer, controller_state
from engine.config import EngineConfig
from engine.errors import RequestError, StartError
from engine.wire import SetController, SetPolicy
from tests.engine.scripted import Harness, ScriptedDrafter

POINTS = [CostPoint(1, rows, 256, 30.0 + rows) for rows in (1, 8, 17)]
NO_TEXT: Any = None


def count_up(token: int, position: int) -> list[float]:
    return [1.0 if k == (token + 1) % 26 else 0.0 for k in range(26)]


def following(tokens: list[int], length: int) -> list[int]:
    return [(tokens[-1] + 1 + place) % 26 for place in range(length)]


def serving(**config: Any) -> Harness:
    """An engine whose drafter is always right, over the controller that its config names."""
    harness = Harness(26, count_up, [ScriptedDrafter(following, "ngram")])
    controller = open_controller(EngineConfig(**config), POINTS)
    harness.engine.controller = harness.engine.drafting.controller = controller
    return harness


def forwards(harness: Harness, tokens: int = 41) -> int:
    """How many forwards so many tokens take."""
    before = harness.executor.forwards
    request = harness.add([0], tokens)
    harness.drain()
    assert request.tokens == [place % 26 for place in range(tokens + 1)]
    return harness.executor.forwards - before


def test_the_config_names_the_policy() -> None:
    assert forwards(serving(policy="off")) == 41
    options = "drafter=ngram draft_length=4"
    assert forwards(serving(policy="fixed", policy_options=options)) == 1 + 8


def test_a_config_that_cannot_be_is_an_error_of_the_start() -> None:
    with pytest.raises(StartError, match="policy_options: depth: is no option of policy fixed"):
        open_controller(EngineConfig(policy="fixed", policy_options="depth=4"), POINTS)


def test_the_policy_is_changed_between_two_requests() -> None:
    harness = serving()
    engine = harness.engine
    body = SetPolicy("fixed", "drafter=ngram draft_length=4")
    state = answer(body, engine, NO_TEXT)
    assert state == controller_state(engine)
    assert (controller_state(engine).policy, controller_state(engine).mode) == ("fixed", "auto")
    assert forwards(harness) == 1 + 8
    answer(SetPolicy("off"), engine, NO_TEXT)
    assert forwards(harness) == 41
    reasons = [(one.inputs["policy"], one.reason) for one in engine.controller.take_decisions()]
    assert reasons == [("fixed", "START"), ("off", "START")]


def test_a_setting_of_the_operator_outlives_the_policy() -> None:
    harness = serving()
    answer(SetController("pinned", "ngram", 4), harness.engine, NO_TEXT)
    answer(SetPolicy("off"), harness.engine, NO_TEXT)
    assert controller_state(harness.engine).drafter == "ngram"
    assert forwards(harness) == 1 + 8


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        (SetPolicy("clever"), "policy", "'clever' is not one of adaptive, off"),
        (SetPolicy("fixed", "depth=4"), "policy_options", "is no option of policy fixed"),
        (SetPolicy("off", "", "fixed", "depth=4"), "ab_options", "is no option of policy fixed"),
        (SetPolicy("off", ab_policy="off", ab_share=7.0), "ab_share", "must be 0 to 1"),
    ],
)
def test_a_policy_that_cannot_be_changes_nothing(body: SetPolicy, param: str, text: str) -> None:
    harness = serving(policy="fixed", policy_options="drafter=ngram draft_length=4")
    with pytest.raises(RequestError, match=text) as caught:
        answer(body, harness.engine, NO_TEXT)
    assert (caught.value.code, caught.value.param) == ("bad_setting", param)
    assert forwards(harness) == 1 + 8


def test_a_controller_that_is_no_choice_of_policies_cannot_be_changed() -> None:
    harness = Harness(26, count_up)
    with pytest.raises(RequestError, match="cannot be changed"):
        answer(SetPolicy("off"), harness.engine, NO_TEXT)
    assert controller_state(harness.engine).policy == "adaptive"
