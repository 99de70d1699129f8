"""The policies of the console: those of the server, with their own options, and the comparison."""

from __future__ import annotations

from typing import Any

import pytest

from controller.policies import NAMES, PolicyInputs, make
from controller.policies.base import Policy
from controller.policies.options import parse_options
from ui import policies


def test_the_console_offers_the_policies_that_there_are() -> None:
    assert tuple(policies.POLICIES) == NAMES


@pytest.mark.parametrize("name", policies.POLICIES)
def test_the_options_shown_are_all_that_a_policy_takes_with_their_defaults(name: str) -> None:
    shown = parse_options(policies.POLICIES[name].options)
    plain, given = (
        make(name, PolicyInputs(("ngram", "suffix"), options=options)) for options in ({}, shown)
    )
    if isinstance(plain, Policy) and isinstance(given, Policy):
        assert given.options.in_force == plain.options.in_force
        assert set(shown) == set(plain.options.in_force)
    else:
        assert not shown


def test_a_change_has_a_second_policy_only_when_one_is_wanted() -> None:
    alone = policies.change("fixed", " draft_length=3 ", None, "x=1", 0.2)
    assert alone == {"policy": "fixed", "policy_options": "draft_length=3"}
    both = policies.change("adaptive", "", "fixed", "draft_length=2", 0.2)
    assert both == {
        "policy": "adaptive", "policy_options": "", "ab_policy": "fixed",
        "ab_options": "draft_length=2", "ab_share": 0.2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({}, "adaptive"),
        ({"policy": "fixed", "policy_options": "draft_length=3"}, "fixed (draft_length=3)"),
        (
            {"policy": "adaptive", "ab_policy": "off", "ab_share": 0.25},
            "adaptive against off, which has 25 % of the requests",
        ),
    ],
)
def test_what_is_in_force_is_said_in_words(setting: dict[str, Any], said: str) -> None:
    assert policies.in_force(setting) == said


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.02, 1.2, "B has more"),
        (0.7, 0.9, "A has more"),
        (0.9, 1.1, "no clear difference"),
        (None, None, "too few requests ended"),
    ],
)
def test_the_verdict_follows_the_interval(low: float | None, high: float | None, said: str) -> None:
    assert policies.verdict({"value": 1.0, "low": low, "high": high}) == said


def test_the_arms_are_compared_by_the_reports_figures() -> None:
    figure = {"value": 40.0, "low": 36.0, "high": 44.0}
    arm = {"policy": "adaptive", "requests": 1, "running": 2, "tokens_per_row_second": figure}
    report = {
        "ab": {
            "arms": {"A": arm, "B": {**arm, "policy": "off", "tokens_per_row_second": None}},
            "b_over_a": {},
        }
    }
    assert policies.counts(report)["A"] == "adaptive: 1 request ended, 2 running"
    first = policies.comparison(report)[0]
    assert (first.a, first.b, first.ratio) == ("40.00 (36.00 … 44.00)", "–", "–")
    assert first.verdict == "too few requests ended"
    assert policies.comparison({}) == []
