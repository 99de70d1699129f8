"""Rows of planted runs: speed-ups, regret, goodput, failures; and the files made of them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from app.bench import report
from app.bench.acceptance import Step, positions
from app.bench.client import Run, Sample
from app.bench.page import page
from app.bench.result import Result, csv_of
from app.bench.svg import ticks
from app.bench.table import cells, markdown

CATEGORIES = ("copy", "chat <b>&")
SPEED = {"none": 1.0, "ngram:8": 1.6, "suffix:4": 1.3, "auto": 1.5}
"""How many times as fast an arm is, on every prompt."""


def sample(mode: str, order: int, ms: float, category: str = "c", **more: Any) -> Sample:
    how = {"tokens": 11, "ttft_ms": 0.1 * ms, "e2e_ms": ms, "gaps_ms": [ms / 11] * 10, **more}
    return Sample(mode, 1, 0, 0, category, order, order=order, **how)


def run(mode: str, chunk: int = 0, *, repeat: int = 0, count: int = 6, **more: Any) -> Run:
    """Prompts of growing length, one after the other."""
    times = [100.0 * (n + 1) / SPEED[mode] for n in range(count)]
    category = CATEGORIES[chunk % 2]
    samples = [sample(mode, n, ms, category, **more) for n, ms in enumerate(times)]
    return Run(mode, 1, repeat, chunk, category, sum(times), samples)


def rows_by_mode(runs: list[Run], **how: Any) -> dict[str, report.Row]:
    return {row.mode: row for row in report.rows(runs, **how) if row.category == "all"}


def test_the_speedup_is_over_the_same_prompts_with_an_interval() -> None:
    rows = rows_by_mode([run(mode) for mode in SPEED])
    found = rows["auto"].speedup
    assert found is not None
    assert found.low is not None
    assert (found.value, found.low, found.pairs) == (pytest.approx(1.5), pytest.approx(1.5), 6)
    other = rows_by_mode([run(mode) for mode in SPEED], base="suffix:4")["auto"].speedup
    assert other is not None
    assert other.value == pytest.approx(1.5 / 1.3)


def test_a_mixed_chunk_has_a_row_for_each_category_of_its_prompts() -> None:
    def mixed(mode: str, slow: float) -> Run:
        samples = [
            sample(mode, n, 100.0 if n % 2 else 100.0 * slow, CATEGORIES[n % 2]) for n in range(12)
        ]
        return Run(mode, 8, 0, 0, "mixed", 250.0, samples)

    runs = [mixed("none", 1.0), mixed("auto", 0.5)]
    found = {(row.category, row.mode): row for row in report.rows(runs)}
    assert len(found) == 3 * 2
    copy, chat = found["copy", "auto"], found["chat <b>&", "auto"]
    assert (copy.requests, copy.tokens, copy.wall_s) == (6, 66, 0.25)
    assert copy.speedup is not None
    assert chat.speedup is not None
    assert (copy.speedup.value, chat.speedup.value) == (pytest.approx(2), pytest.approx(1))
    assert copy.tokens_per_s + chat.tokens_per_s == found["all", "auto"].tokens_per_s
    assert [row.category for row in report.rows(runs, by_category=False)] == ["all", "all"]


def test_a_prompt_that_failed_anywhere_is_no_pair() -> None:
    broken = run("auto")
    samples = [*broken.samples[:-1], Sample("auto", 1, 0, 0, "c", 5, order=5, error="x")]
    kept = Run("auto", 1, 0, 0, "copy", broken.wall_ms, samples)
    rows = rows_by_mode([run("none"), kept, run("none", repeat=1), run("auto", repeat=1)])
    found = rows["auto"].speedup
    assert found is not None
    assert (found.pairs, found.value) == (5, pytest.approx(1.5))
    assert rows["auto"].failed == 1


def test_regret_is_against_the_fastest_arm_that_was_fixed_beforehand() -> None:
    rows = rows_by_mode([run(mode) for mode in SPEED])
    assert {row.best_static for row in rows.values()} == {"ngram:8"}
    assert rows["ngram:8"].regret is None
    found = rows["auto"].regret
    assert found is not None
    assert found.value == pytest.approx(1 - 1.5 / 1.6)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high
    alone = rows_by_mode([run("auto"), run("suffix:4")])["auto"].regret
    assert alone is not None
    assert alone.value == pytest.approx(1 - 1.5 / 1.3)  # negative: it beats the best
    assert rows_by_mode([run("auto")])["auto"].best_static is None


def test_goodput_counts_what_keeps_the_target() -> None:
    # TPOT is 0.9 * ms / 10: 9, 18, … 54 ms for the six prompts of `none`.
    (row,) = report.rows([run("none")], tpot_ms=30.0)
    assert row.goodput_per_s == pytest.approx(3 * 11 / 2.1)
    assert row.tokens_per_s == pytest.approx(6 * 11 / 2.1)
    assert report.rows([run("none")])[0].goodput_per_s is None
    (one,) = report.rows([run("none", tokens=1)], tpot_ms=0.01)
    assert one.goodput_per_s == pytest.approx(6 / 2.1)


def test_failures_are_counted_by_kind() -> None:
    failed = [
        Sample("none", 1, 0, 0, "c", n, order=n, failure=kind, error="x")
        for n, kind in enumerate(("cut", "cut", "stalled"))
    ]
    (row,) = report.rows([Run("none", 1, 0, 0, "c", 50.0, failed)], tpot_ms=10)
    assert (row.requests, row.failed, row.failures) == (3, 3, {"cut": 2, "stalled": 1})
    assert (row.tokens, row.tokens_per_s, row.goodput_per_s) == (0, 0.0, 0.0)
    assert row.speedup is None
    assert row.ttft_ms == row.tpot_ms == row.itl_ms == {}


def test_a_chunk_that_was_cut_is_left_out_of_what_is_counted_over_time() -> None:
    """Its wall time holds the time of answers that never came."""
    whole = [run("none"), run("auto"), run("none", 1)]
    half = run("auto", 1)
    cut = msgspec.structs.replace(half, samples=half.samples[:5], wall_ms=1e6, cut=True)
    before, after = rows_by_mode(whole[:2], tpot_ms=1e3), rows_by_mode([*whole, cut], tpot_ms=1e3)
    for name in ("tokens", "wall_s", "tokens_per_s", "goodput_per_s", "ratio"):
        assert getattr(after["auto"], name) == getattr(before["auto"], name), name
    assert after["auto"].requests == 6 + 5
    assert after["auto"].speedup is not None
    assert after["auto"].speedup.pairs == 6 + 5  # what was answered is compared as ever
    base_cut = msgspec.structs.replace(run("none"), wall_ms=1e6, cut=True)
    assert rows_by_mode([base_cut, run("auto")])["auto"].ratio is None


def test_an_arm_of_which_all_was_cut_has_no_throughput() -> None:
    cut = msgspec.structs.replace(run("auto"), cut=True)
    rows = report.rows([run("none"), cut])
    auto = next(row for row in rows if row.mode == "auto")
    assert (auto.wall_s, auto.tokens_per_s, auto.requests) == (0.0, 0.0, 6)
    assert cells(auto, "none", False)["tokens/s"] == "-"
    chart = page(result(rows)).split("Output tokens per second over the load")[1].split("<h2>")[0]
    assert ">c1 copy none<" in chart or ">c1 none<" in chart
    assert "auto" not in chart


def test_phases_have_no_categories_and_a_row_of_all_together() -> None:
    runs = [
        Run(one.mode, 1, 0, n, one.category, one.wall_ms, one.samples, phase=f"p{n}")
        for mode in ("none", "auto")
        for n, one in enumerate((run(mode, 0), run(mode, 1, count=2)))
    ]
    found = [(row.load.label, row.category, row.mode) for row in report.rows(runs)]
    assert found == [
        ("p0 c1", "all", "none"), ("p0 c1", "all", "auto"), ("p1 c1", "all", "none"),
        ("p1 c1", "all", "auto"), ("all", "all", "none"), ("all", "all", "auto"),
    ]  # fmt: skip
    total = report.rows(runs)[-1]
    assert total.requests == 8
    assert total.wall_s == pytest.approx((2100 + 300) / 1500)
    assert total.speedup is not None
    assert total.speedup.pairs == 8  # the first prompts of both phases are not mixed up


def test_repeats_of_a_prompt_are_one_pair() -> None:
    runs = [run(mode, repeat=n) for n in range(3) for mode in ("none", "auto")]
    found = rows_by_mode(runs)["auto"].speedup
    assert found is not None
    assert found.pairs == 6


def full() -> list[report.Row]:
    steps = positions([Step("ngram", 4, 2, False), Step("ngram", 3, 3, False)])
    more = {
        "steps": 5, "drafted": 7, "accepted": 5, "histogram": [3, 0, 1, 1],
        "drafters": {"none": 3, "ngram": 2}, "positions": steps,
    }  # fmt: skip
    runs = [run(mode, chunk, **more) for chunk in (0, 1) for mode in SPEED]
    two = [
        Run(one.mode, 2, 0, one.chunk, one.category, one.wall_ms / 1.7, one.samples) for one in runs
    ]
    return report.rows([*runs, *two], tpot_ms=20.0)


def result(rows: list[report.Row], runs: Sequence[Run] = ()) -> Result:
    machine = {"processor": "a <fast> one", "cores": 2}
    return Result("bench", ["paceline", "bench"], 0.0, machine, None, {}, "none", rows, [*runs])


def test_the_page_is_well_formed_and_needs_no_network() -> None:
    text = page(result(full()))
    charts = re.findall(r"<svg.*?</svg>", text)
    assert len(charts) == 6
    for chart in charts:
        assert "nan" not in chart
        ElementTree.fromstring(chart)
    assert not re.search(r"https?://|<script|<link|src=|@import|url\(", text)
    assert "a &lt;fast&gt; one" in text
    assert "chat &lt;b&gt;&amp;" in text
    assert "<b>" not in text
    Balanced().feed(text)
    assert text.count("<tr") == 1 + len(full())


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_without_anything_measured_says_so() -> None:
    failed = Run("none", 1, 0, 0, "c", 5.0, [Sample("none", 1, 0, 0, "c", 1, error="x")])
    for rows in ([], report.rows([failed])):
        text = page(result(rows))
        assert "No answer had a second token." in text
        assert "No server told who drafted." in text
        assert markdown(rows, "none")


def test_the_bars_are_as_long_as_the_numbers() -> None:
    text = page(result([row for row in full() if row.category == "all" and row.concurrency == 1]))
    speeds = re.findall(r"<svg.*?</svg>", text)[0]
    widths = [float(w) for w in re.findall(r'<rect [^>]*width="([0-9.]+)"', speeds)]
    assert widths[0] / widths[1] == pytest.approx(1.6 / 1.3, rel=0.01)


def test_the_csv_has_a_line_per_row_and_empty_cells_without_a_value() -> None:
    lines = list(csv.DictReader(io.StringIO(csv_of(full()))))
    assert len(lines) == len(full())
    auto = next(line for line in lines if line["arm"] == "auto" and line["category"] == "all")
    assert float(auto["speedup"]) == pytest.approx(1.5)
    assert float(auto["regret"]) == pytest.approx(1 - 1.5 / 1.6)
    assert float(auto["itl_ms_p50"]) > 0
    best = next(line for line in lines if line["arm"] == "ngram:8")
    assert best["regret"] == best["rate_per_s"] == ""
    assert csv_of([]) == ""


def test_the_markdown_table_has_as_many_cells_in_every_line() -> None:
    lines = markdown(full(), "none").splitlines()
    assert len(lines) == 2 + len(full())
    assert len({line.count(" | ") for line in lines}) == 1
    assert "1.50x" in lines[-1]


@pytest.mark.parametrize(
    ("highest", "last"), [(0, 1), (1, 1), (1.01, 1.5), (97, 100), (1e-7, 1e-7), (3.3e9, 4e9)]
)
def test_an_axis_reaches_its_highest_value_in_few_round_steps(highest: float, last: float) -> None:
    found = ticks(highest)
    assert found[0] == 0
    assert found[-1] == pytest.approx(last)
    assert 2 <= len(found) <= 6
