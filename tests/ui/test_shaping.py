"""What the console makes of the API's answers: numbers, rows and sentences."""

from __future__ import annotations

from typing import Any

import pytest

from ui import shaping


def state(*points: dict[str, Any]) -> dict[str, Any]:
    return {"time": 1000.0, "history": list(points)}


DECISION = {
    "id": "a-1",
    "time": 1795969880.3,
    "drafter": "ngram",
    "draft_length": 3.5,
    "previous_drafter": "none",
    "previous_draft_length": 0.0,
    "sentence": "The text repeats itself.",
    "reason": "GAIN",
    "predicted_goodput": 200.0,
    "realised": {"steps": 10, "tokens": 30, "ms": 140.0, "goodput": 214.3},
    "candidates": [
        {"drafter": "none", "draft_length": 0.0, "goodput": 150.0, "low": 140.0, "high": 160.0},
        {"drafter": "ngram", "draft_length": 3.5, "goodput": 200.0, "low": 180.0, "high": 220.0},
    ],
}


@pytest.mark.parametrize(
    ("value", "text"), [(1234.4, "1,234 ms"), (0, "0 ms"), (None, "–"), (float("nan"), "–")]
)
def test_a_number_has_its_unit_and_a_missing_one_is_a_dash(value: Any, text: str) -> None:
    assert shaping.number(value, 0, " ms") == text


def test_a_share_is_shown_in_percent() -> None:
    assert shaping.percent(0.426) == "43 %"
    assert shaping.percent(None) == "–"


def test_a_mean_draft_length_keeps_one_digit_and_a_whole_one_none() -> None:
    assert (shaping.length(4.0), shaping.length(3.46), shaping.length(None)) == ("4", "3.5", "–")


@pytest.mark.parametrize(
    ("seconds", "text"), [(7, "7 s"), (187, "3 min 7 s"), (7500, "2 h 5 min"), (90000, "1 d 1 h")]
)
def test_an_uptime_reads_in_its_two_largest_units(seconds: int, text: str) -> None:
    assert shaping.duration(seconds) == text


def test_a_time_is_shown_in_utc_from_epoch_seconds_and_from_iso_text() -> None:
    assert shaping.clock(0) == "00:00:00"
    assert shaping.clock("2026-11-29T12:30:15+02:00") == "10:30:15"
    assert shaping.clock("not a time") == "–"


def test_a_day_is_shown_with_its_time_and_a_missing_one_is_a_dash() -> None:
    assert shaping.day_and_clock(1_795_991_376.1) == "2026-11-29 22:29:36"
    assert shaping.day_and_clock(None) == shaping.MISSING


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1 token"), (0, "0 tokens"), (1200, "1,200 tokens")]
)
def test_what_is_counted_is_one_or_many(value: int, text: str) -> None:
    assert shaping.counted(value, "token") == text


def test_the_series_counts_back_from_now_and_drops_what_is_older_than_the_span() -> None:
    rows = shaping.series(state({"time": 500.0}, {"time": 990.0}, {"time": 1000.4}), 300)
    assert [row["ago"] for row in rows] == [-10.0, 0.0]


def test_the_state_before_the_first_snapshot_gives_no_rows() -> None:
    assert shaping.series({}) == []
    assert shaping.series({"time": 1.0, "history": None}) == []


def test_idle_seconds_have_no_drafter_share() -> None:
    rows = shaping.series(
        state(
            {"time": 998.0, "drafters": {"ngram": 0.75, "none": 0.25}},
            {"time": 999.0, "drafters": {}},
            {"time": 1000.0, "drafters": {"none": 1.0}},
        )
    )
    shares = [(row["ago"], row["drafter"], row["share"]) for row in shaping.drafter_series(rows)]
    assert shares == [
        (-2.0, "none", 0.25),
        (-2.0, "ngram", 0.75),
        (0.0, "none", 1.0),
        (0.0, "ngram", 0.0),
    ]


def test_a_server_without_requests_in_the_last_minute_is_idle() -> None:
    busy = {"time": 930.0, "running": 2, "tokens_per_s": 80.0}
    quiet = {"time": 995.0, "running": 0, "waiting": 0, "tokens_per_s": 0.0}
    assert shaping.idle(shaping.series(state(busy, quiet)))
    assert not shaping.idle(shaping.series(state(quiet, {**busy, "time": 960.0})))


def test_the_drafter_now_is_the_one_that_drafts_with_its_share_of_request_steps() -> None:
    assert shaping.drafter_now({"drafters": {"none": 0.7, "ngram": 0.3}}) == "ngram 30 %"
    assert shaping.drafter_now({"drafters": {"none": 1.0}}) == "none"
    assert shaping.drafter_now({"drafters": {}}) == "–"
    assert shaping.main_drafter({}) is None


def test_pages_used_are_those_not_free() -> None:
    assert shaping.pages_used({"total_pages": 100, "free_pages": 0}) == (100, 100)
    assert shaping.pages_used({}) is None


def test_a_decision_becomes_a_row_with_its_change_and_how_the_prediction_held() -> None:
    (row,) = shaping.decision_rows([DECISION])
    assert row["Change"] == "none, D 0 → ngram, D 3.5"
    assert row["Why"] == "The text repeats itself."
    assert row["Difference"] == "+7 %"


def test_a_decision_that_ran_no_step_yet_has_no_measured_goodput() -> None:
    fresh = {**DECISION, "realised": {"steps": 0, "tokens": 0, "ms": 0.0, "goodput": 0.0}}
    assert shaping.realised_goodput(fresh) is None
    assert shaping.outcome(fresh) == "–"


def test_a_decision_shows_tokens_and_ms_of_a_step_as_predicted_and_as_measured() -> None:
    realised = {**DECISION["realised"], "tokens_per_step": 3.0, "ms_per_step": 14.0}
    decision = {**DECISION, "predicted_tokens": 2.5, "predicted_ms": 12.5, "realised": realised}
    tokens, ms, goodput = shaping.step_rows(decision)
    assert (tokens["Predicted"], tokens["Measured"], tokens["Difference"]) == (2.5, 3.0, "+20 %")
    assert (ms["Predicted"], ms["Measured"], ms["Difference"]) == (12.5, 14.0, "+12 %")
    assert (goodput["Predicted"], goodput["Difference"]) == (200.0, "+7 %")


def test_a_decision_of_an_earlier_version_has_dashes_for_what_it_did_not_tell() -> None:
    tokens, ms, goodput = shaping.step_rows(DECISION)
    for row in (tokens, ms):
        assert (row["Predicted"], row["Measured"], row["Difference"]) == (None, None, "–")
    assert goodput["Difference"] == "+7 %"


def test_candidates_are_sorted_by_goodput_and_the_chosen_one_is_marked() -> None:
    rows = shaping.candidate_rows(DECISION)
    assert [(row["label"], row["won"]) for row in rows] == [
        ("ngram, D 3.5", True),
        ("none, D 0", False),
    ]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"mode": "auto"}, "controller chooses drafter and draft length"),
        ({"mode": "off"}, "Speculation is off"),
        ({"mode": "pinned", "drafter": "ngram", "draft_length": 4}, "Pinned to ngram with D = 4"),
        ({"mode": "pinned", "drafter": "ngram", "draft_length": None}, "controller chooses the"),
        ({"mode": "pinned", "drafter": "none", "draft_length": 0}, "decodes plainly"),
        (
            {"mode": "auto", "tpot_target_ms": 22.5},
            "Drafts keep TPOT within 22.5 ms where they can.",
        ),
        ({"mode": "auto", "draft_budget": 8}, "A step drafts at most 8 tokens."),
    ],
)
def test_every_setting_reads_as_a_sentence(setting: dict[str, Any], words: str) -> None:
    assert words in shaping.setting_sentence(setting)


def test_acceptance_rows_leave_out_positions_that_were_never_reached() -> None:
    place = {"position": 1, "reached": 10.0, "accepted": 7.0, "rate": 0.7}
    never = {"position": 2, "reached": 0.0, "accepted": 0.0, "rate": None}
    rows = shaping.acceptance_rows({"acceptance": {"ngram": {"positions": [place, never]}}})
    assert rows == [{"drafter": "ngram", **place}]


def test_text_of_the_server_is_escaped_before_it_becomes_html() -> None:
    assert shaping.escape('<img src="x">') == "&lt;img src=&quot;x&quot;&gt;"


def test_the_last_death_is_one_line_with_time_reason_and_log() -> None:
    death = {"time": 0.0, "reason": "The engine process ended with status 1.", "log_line": "boom"}
    shown = shaping.last_death({"engine": {"last_death": death}})
    assert shown == ("00:00:00 UTC: The engine process ended with status 1. Its log says: boom")
    assert shaping.last_death({"engine": {"last_death": {**death, "log_line": None}}}).endswith(
        "1."
    )
    assert shaping.last_death({"engine": {"last_death": None}}) == ""
    assert shaping.last_death({}) == ""


def test_a_size_is_in_the_unit_that_suits_it():
    assert [shaping.size(value) for value in (0, 1023, 2048, 3 * 2**20, None)] == [
        "0 B",
        "1,023 B",
        "2.0 KiB",
        "3.0 MiB",
        shaping.MISSING,
    ]
