"""The inputs of a decision as the console names them."""

from __future__ import annotations

import pytest

from controller.contract import Setting
from tests.controller.mixed_engine import MixedWorld
from ui import inputs


@pytest.mark.parametrize("setting", [Setting(), Setting(tpot_target_ms=1.0, draft_budget=1)])
def test_every_input_of_a_real_decision_has_a_name_with_its_unit(setting: Setting) -> None:
    world = MixedWorld(size=4, suffix=lambda request: (0.4, 0.8)).run(60)
    world.controller.configure(setting)
    world.run(10)
    decisions = world.controller.take_decisions()
    assert decisions
    for name in {name for decision in decisions for name in decision.inputs}:
        assert name in inputs.NAMES or name.startswith(tuple(inputs.PARTS)), name


def test_shares_of_nobody_are_left_out_and_unknown_inputs_keep_their_name() -> None:
    given = {"mode": "auto", "batch": 2.0, "share mtp": 0.25, "share ngram": 0.0, "new": 7}
    assert inputs.rows(given) == [
        ("Mode", "auto"),
        ("Decoding requests", "2"),
        ("Requests drafted for by mtp", "25 %"),
        ("new", "7"),
    ]


def test_a_loss_has_its_sign_and_texts_stay_text() -> None:
    assert dict(inputs.rows({"loss": 0.0123}))["Loss against plain decoding, recent"] == "+1.23 %"
    assert "&lt;b&gt;" in inputs.table({"mode": "<b>"})
