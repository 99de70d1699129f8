"""Arrivals read from a CSV: in the order of time, in UTC, bounded, errors with their line."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from controller.simulate.arrival_file import Came, read_arrivals

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def read(
    folder: Path, text: str, seconds: float = math.inf, speed: float = 1.0, most: int = 100
) -> list[Came]:
    path = folder / "arrivals.csv"
    path.write_text(text, encoding="utf-8")
    return read_arrivals(path, seconds, speed, most)


def minute(*seconds: int) -> str:
    return HEAD + "".join(f"2023-11-16 18:17:{one:02},{one},1\n" for one in seconds)


def test_gaps_and_tokens_are_kept_and_the_speed_shortens_the_gaps(tmp_path: Path) -> None:
    rows = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.4799600,110,20.0\n"
    one, two = read(tmp_path, HEAD + rows, speed=2.0)
    assert one == (0.0, 4808, 10)
    assert two == (pytest.approx(0.25), 110, 20)


def test_rows_out_of_order_are_sorted_and_none_behind_a_late_one_is_lost(tmp_path: Path) -> None:
    found = read(tmp_path, minute(30, 59, 10, 20), seconds=10.0, speed=2.0)
    assert [one.prompt for one in found] == [10, 20, 30]
    assert [one.second for one in found] == [0.0, 5.0, 10.0]


def test_rows_of_one_time_keep_their_order(tmp_path: Path) -> None:
    rows = "".join(f"2023-11-16 18:17:03,{tokens},1\n" for tokens in (5, 3, 4))
    assert [one.prompt for one in read(tmp_path, HEAD + rows)] == [5, 3, 4]


def test_a_time_without_a_zone_is_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Berlin the second of these hours was not there: the clock went from 2 to 3."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        rows = "2024-03-31 01:30:00,1,1\n2024-03-31 03:30:00,2,1\n2024-03-31 03:31:00+00:00,3,1\n"
        assert [one.second for one in read(tmp_path, HEAD + rows)] == [0.0, 7200.0, 7260.0]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_more_than_a_run_takes_are_an_error_but_not_those_outside_of_its_time(
    tmp_path: Path,
) -> None:
    assert len(read(tmp_path, minute(*range(60)), seconds=9.5, most=10)) == 10
    assert len(read(tmp_path, minute(*range(59, -1, -1)), seconds=9.5, most=10)) == 10
    with pytest.raises(ValueError, match=r"arrivals\.csv: more than 10 .* lower load\.seconds"):
        read(tmp_path, minute(*range(60)), seconds=10.0, most=10)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("yesterday,1,2", "yesterday"),
        ("2023-11-16 18:17:03,x,2", "'x'"),
        ("2023-11-16", "could not convert"),
        (f"2023-11-16 18:17:03,{10**18},2", "ContextTokens is 1e.18; it takes 0 to 1,048,576"),
        ("2023-11-16 18:17:03,-1,2", "ContextTokens is -1"),
        ("2023-11-16 18:17:03,nan,2", "ContextTokens is nan"),
        ("2023-11-16 18:17:03,1,65537", "GeneratedTokens is 65537; it takes 0 to 65,536"),
        ("2023-11-16 18:17:03,1,inf", "GeneratedTokens is inf"),
        ("x" * 100_000 + ",1,2", "x{20,200}$"),
    ],
)
def test_a_line_that_is_no_arrival_is_named(tmp_path: Path, line: str, problem: str) -> None:
    text = HEAD + "2023-11-16 18:17:03.97,1,2\n" + line + "\n"
    with pytest.raises(ValueError, match=rf"(?s)arrivals\.csv: line 3.*{problem}"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no column TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("TIMESTAMP,ContextTokens\n", "no column GeneratedTokens"),
        (HEAD, "no arrival in it"),
        (minute(1) + '"' + minute(2) * 9000, "after line 2: it is no CSV: field larger"),
    ],
    ids=["empty", "column", "head", "quote"],
)
def test_a_file_that_has_no_arrivals_is_named(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=rf"arrivals\.csv.*{problem}"):
        read(tmp_path, text)


def test_other_bytes_are_no_text_and_a_mark_before_the_text_is_none(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_bytes(b"\xef\xbb\xbf" + minute(7).encode())
    assert read_arrivals(path, 1.0, 1.0, 10) == [(0.0, 7, 1)]
    path.write_bytes(HEAD.encode() + b"\xff\xfe\n")
    with pytest.raises(ValueError, match=r"arrivals\.csv: it is no UTF-8 text"):
        read_arrivals(path, 1.0, 1.0, 10)
