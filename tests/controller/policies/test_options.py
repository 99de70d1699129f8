"""Options of policies: taken as numbers or text, bounded, and refused with what to do instead."""

from __future__ import annotations

import pytest

from controller.policies import NAMES, PolicyInputs, make
from controller.policies.options import OptionError, parse_options
from tests.controller.policies.stage import policy


def refused(name: str, **options: object) -> str:
    with pytest.raises(OptionError) as caught:
        make(name, PolicyInputs(("ngram",), options=options))
    return str(caught.value)


def test_options_are_written_as_pairs_with_spaces_in_between() -> None:
    assert parse_options(" draft_length=5  drafter=mtp") == {"draft_length": "5", "drafter": "mtp"}
    assert parse_options("schedule=4:4,8:2") == {"schedule": "4:4,8:2"}
    assert parse_options("") == {}


@pytest.mark.parametrize("text", ["draft_length", "=4", "draft_length=", "a=1 a=2"])
def test_text_that_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"KEY=VALUE|twice"):
        parse_options(text)


@pytest.mark.parametrize("value", [5, "5", 5.0])
def test_a_number_may_be_written_as_text(value: object) -> None:
    report = policy("fixed", draft_length=value).report()
    assert report["policy"] == {
        "name": "fixed",
        "options": {"drafter": "auto", "draft_length": 5},
        "state": {},
    }


@pytest.mark.parametrize(
    "value", [-1, 65, 1.5, "x", "nan", "inf", "1e999", True, None, [4], "9" * 400]
)
def test_a_length_out_of_bounds_or_no_number_is_refused(value: object) -> None:
    text = refused("fixed", draft_length=value)
    assert text.startswith("draft_length: must be a whole number from 0 to 64, not ")


def test_an_unknown_option_names_those_that_there_are() -> None:
    text = refused("fixed", depth=3)
    assert text == "depth: is no option of policy fixed; it has drafter, draft_length"
    assert refused("adaptive", depth=3).endswith("it has no options")
    assert refused("off", draft_length=3).endswith("it has no options")


def test_too_many_options_are_refused() -> None:
    assert "at most 32" in refused("fixed", **{f"o{i}": i for i in range(33)})


def test_a_policy_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(ValueError, match="policy: 'clever' is not one of adaptive, off, fixed"):
        make("clever", PolicyInputs(("ngram",)))


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("2-4:1", "must start at 1, not 2"),
        ("1-8:3,8-16:2", "must rise and not overlap"),
        ("1-8:3,20-10:2", "must rise and not overlap"),
        ("1-8", "must be FIRST-LAST:VALUE"),
        ("1-8:-2", "must be FIRST-LAST:VALUE"),
        ("1-8:3,", "must be FIRST-LAST:VALUE"),
        ("1-8:65", "each value must be 0 to 64"),
        ("1-2000000:3", "a batch is at most 1000000"),
        (",".join(f"{i}-{i}:1" for i in range(1, 66)), "at most 64 entries"),
        ("1-8:3" * 400, "text of at most 1024 characters"),
    ],
)
def test_a_batch_table_that_makes_no_sense_is_refused(table: str, why: str) -> None:
    assert why in refused("batch_table", table=table)


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ("8:2,4:4", "batches must rise"),
        ("4:4,4:2", "batches must rise"),
        ("0:4", "batches must rise, from 1"),
        ("4:65", "each value must be 0 to 64"),
        ("4", "must be UP_TO:VALUE"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(schedule: str, why: str) -> None:
    assert why in refused("tensorrt_schedule", schedule=schedule)


@pytest.mark.parametrize(
    ("tiers", "why"),
    [
        ("1:3/1", "D must rise within a slot"),
        ("1:1/65", "D must rise within a slot"),
        ("2:1/3", "the first from 1"),
        ("1:1/3,8:1,4:1", "batches must rise"),
        ("1", "must be FROM:D/D@HYSTERESIS"),
        ("1:1@x", "must be FROM:D/D@HYSTERESIS"),
        ("1:1@2", "must be FROM:D/D@HYSTERESIS"),
        (",".join(f"{i}:1" for i in range(1, 66)), "at most 64 entries"),
    ],
)
def test_tiers_that_make_no_sense_are_refused(tiers: str, why: str) -> None:
    assert why in refused("ema_tiers", tiers=tiers)


def test_lengths_of_the_bandit_and_words_are_checked() -> None:
    assert "rising whole numbers" in refused("ucb", draft_lengths="4,2")
    assert "rising whole numbers" in refused("ucb", draft_lengths="0,2")
    assert "one of tokens, tokens_per_ms" in refused("ucb", reward="speed")
    assert "a drafter's name, or auto" in refused("fixed", drafter="a b")


def test_options_that_would_have_no_effect_are_refused() -> None:
    text = refused("tensorrt_schedule", acceptance_threshold=0.3)
    assert text.startswith("acceptance_threshold: has no effect without a window")
    make("tensorrt_schedule", PolicyInputs((), options={"acceptance_threshold": 0.5}))
    text = refused("ema_tiers", draft_length=2)
    assert text.startswith("draft_length: 2 is none of the D in tiers")
    make("ema_tiers", PolicyInputs((), options={"draft_length": 7}))
    make("ema_tiers", PolicyInputs((), options={"tiers": "1:1/2"}))


def test_a_model_is_no_matcher_and_a_matcher_no_model() -> None:
    names = ("ngram", "mtp")
    for given, text in (
        ({"matcher": "mtp"}, "matcher: mtp is a model, which matches no text"),
        ({"model": "ngram"}, "model: ngram has no model"),
    ):
        with pytest.raises(OptionError, match=text):
            make("ngram_else_model", PolicyInputs(names, models=("mtp",), options=given))
    options = {"matcher": "later", "model": "later_too"}
    make("ngram_else_model", PolicyInputs(names, models=("mtp",), options=options))


def test_every_policy_can_be_made_without_options() -> None:
    for name in NAMES:
        make(name, PolicyInputs(("ngram",)))
