"""When a policy records a decision, and what it says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from controller.contract import DrafterInfo, Setting
from controller.policies.reasons import POLICY_REASONS
from controller.policies.recorder import LEAST_STEPS
from tests.controller.policies.stage import Stage, everything, policy

DOCS = Path(__file__).resolve().parents[3] / "docs" / "policies.md"


def test_every_reason_code_is_documented() -> None:
    text = DOCS.read_text()
    for code, meaning in POLICY_REASONS.items():
        assert f"| `{code}` | {meaning} |" in text


def test_the_plan_follows_the_batch_at_once_and_decisions_are_apart() -> None:
    stage = Stage(policy("batch_table", table="1-2:4,3-9:1"))
    opened: list[int] = []
    for step in range(200):
        size = 1 if step % 2 else 4
        plan = stage.step(size)
        assert {one.length for one in plan.allotments} == {4 if size == 1 else 1}
        if plan.decision is not None:
            opened.append(plan.decision.step)
    assert len(opened) > 3
    gaps = [after - before for before, after in pairwise(opened)]
    assert min(gaps) >= LEAST_STEPS


def test_a_steady_plan_makes_no_decision_after_the_first() -> None:
    stage = Stage(policy("fixed"))
    plans = [stage.step(4, everything) for _ in range(300)]
    assert [plan.decision is not None for plan in plans] == [True] + [False] * 299
    first = stage.opened[0]
    assert (first.reason, first.drafter, first.draft_length) == ("START", "ngram", 4)
    assert first.sentence == (
        "First plan of policy fixed, mode auto, D at most 16. D = 4 is fixed, with ngram."
    )
    assert first.inputs["policy"] == "fixed"
    assert (first.realised.steps, first.realised.tokens) == (300, 300 * 4 * 5)


def test_an_operators_change_is_a_decision_at_once_with_its_words() -> None:
    subject = policy("fixed")
    stage = Stage(subject)
    stage.step()
    subject.configure(Setting("pinned", "ngram", 2, 16))
    stage.step()
    subject.set_enabled("ngram", False)
    stage.step()
    subject.set_enabled("ngram", True)
    subject.configure(Setting("off", max_draft_length=16))
    stage.step()
    subject.add_drafter(DrafterInfo("suffix"))
    stage.step()
    found = [(one.reason, one.drafter, one.draft_length) for one in stage.opened]
    assert found == [
        ("START", "ngram", 4),
        ("OPERATOR", "ngram", 2),
        ("OPERATOR", "none", 0),
        ("OPERATOR", "none", 0),
        ("OPERATOR", "none", 0),
    ]
    sentences = [one.sentence for one in stage.opened]
    assert sentences[1].startswith("The operator set mode pinned with ngram, D = 2")
    assert sentences[2].startswith("The operator disabled ngram. The operator pinned ngram, which")
    assert sentences[3].startswith("The operator set mode off")
    assert sentences[4].startswith("The drafter suffix was loaded.")


def test_the_operators_table_and_limit_are_told_apart_from_the_policys() -> None:
    setting = Setting("pinned", "ngram", None, 16, ((2, 6), (4, 1)), 6)
    stage = Stage(policy("fixed", setting=setting))
    for size in (1, 4, 8, 4):
        for _ in range(LEAST_STEPS + 1):
            stage.step(size)
    found = [(one.reason, one.draft_length) for one in stage.opened]
    assert found == [("START", 6), ("BATCH_TABLE", 1), ("REQUEST_LIMIT", 0), ("REQUEST_LIMIT", 1)]
    assert "above the operator's limit of 6" in stage.opened[2].sentence


def test_a_drafter_that_is_not_there_is_said_to_be_missing() -> None:
    stage = Stage(policy("fixed", drafter="mtp"))
    stage.step()
    assert stage.opened[0].drafter == "none"
    assert "No drafter: mtp is not loaded, or not enabled." in stage.opened[0].sentence


def test_a_named_drafter_that_is_loaded_later_drafts_from_then_on() -> None:
    subject = policy("fixed", drafter="mtp")
    stage = Stage(subject, ("ngram", "mtp"))
    assert stage.lengths(2) == [0, 0]
    subject.add_drafter(DrafterInfo("mtp", model=True, rho=0.1))
    plan = stage.step()
    assert (plan.allotments[0].drafter, plan.allotments[0].length) == ("mtp", 4)


def test_auto_takes_a_model_before_a_drafter_without() -> None:
    subject = policy("fixed", ("ngram", "mtp"), models=("mtp",))
    stage = Stage(subject, ("ngram", "mtp"))
    assert stage.step().allotments[0].drafter == "mtp"
    subject.set_enabled("mtp", False)
    assert stage.step().allotments[0].drafter == "ngram"
