"""The suite over a folder of traces, its figures, and the plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from controller.policies import ADAPTIVE
from controller.simulate import svg
from controller.simulate.cells import Cell, find_traces, labels, make_cells
from controller.simulate.plots import course_plots, suite_plots
from controller.simulate.rows import Row, compare
from controller.simulate.suite import figures, judge, make_tasks, run_all, run_task
from tests.controller.simulate.small import write_trace

SCALE = 0.002


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("traces")
    write_trace(found / "acceptance_a.jsonl", seed=1)
    write_trace(found / "b.jsonl", seed=2)
    (found / "prompts.jsonl").write_text('{"turns": ["hello"]}\n')
    return found


def few(folder: Path) -> list[Cell]:
    """Every kind of cell, of the batches some."""
    every = make_cells(find_traces(folder), SCALE)
    return [cell for cell in every if cell.batch <= 8 or cell.kind in ("content", "load", "break")]


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[Row]:
    cells = few(folder)
    work = make_tasks(cells, (ADAPTIVE, "fixed"), 0)
    found = [one for _, some in run_all(work, 1) for one in some]
    return judge(cells, found)


def test_files_that_are_no_traces_are_passed_over(folder: Path, tmp_path: Path) -> None:
    assert [path.name for path in find_traces(folder)] == ["acceptance_a.jsonl", "b.jsonl"]
    with pytest.raises(ValueError, match="no acceptance trace"):
        find_traces(tmp_path)


def test_there_is_a_row_per_cell_and_policy(folder: Path, rows: list[Row]) -> None:
    cells = few(folder)
    who = {"none", "best static", "best static by phase", "clairvoyant", ADAPTIVE, "fixed"}
    for cell in cells:
        assert {one["policy"] for one in rows if one["cell"] == cell.name} == who
    assert len(rows) == len(cells) * len(who)


def test_figures_are_the_worst_of_their_cells(rows: list[Row]) -> None:
    found = figures(rows)
    steady = [r for r in rows if r["policy"] == ADAPTIVE and r["figure"] == "steady"]
    assert found["steady"]["worst_vs_best_static"] == min(r["vs_best_static"] for r in steady)
    assert found["steady"]["worst_vs_none"] == min(r["vs_none"] for r in steady)
    assert 0.5 < found["useless_drafters"]["worst_vs_none"] < 1.5
    assert found["content_shift"]["b8"] != found["content_shift"]["b64"]
    assert 0.0 < found["clairvoyant_ratio"] < 1.0
    assert found["load_content_shift"] > 0.0
    settled = sum(r["settled_steps"] for r in steady)
    assert settled == 0
    assert found["steady"]["switches_per_1000"] is None
    assert figures(rows, "none")["useless_drafters"]["worst_vs_none"] == 1.0


def one_cell(**fields: Any) -> Row:
    return {"policy": ADAPTIVE, "figure": "steady", "cell": "x, batch 1", "batch": 1, **fields}


def test_code_edits_are_the_traces_with_code_in_their_name() -> None:
    rows = [
        one_cell(cell=f"{name}, batch {batch}", batch=batch, vs_best_static=value)
        for name, batch, value in (
            ("instructcoder", 1, 1.2), ("mycode", 1, 1.1), ("instructcoder", 8, 1.4),
            ("gsm8k", 1, 0.9), ("instructcoder", 32, 0.8), ("my, code", 8, 1.3),
        )
    ]  # fmt: skip
    assert figures(rows)["code_edits"] == {"b1": 1.1, "b8": 1.3}
    assert figures(rows[3:4])["code_edits"] == {"b1": None, "b8": None}


def test_switches_count_in_the_steady_state_over_all_cells() -> None:
    """Not the mean of ratios: a short cell with one switch does not count for a long one."""
    rows = [
        one_cell(settled_steps=3900, settled_switches=7, vs_best_static=1.0),
        one_cell(settled_steps=100, settled_switches=1, vs_best_static=1.0),
    ]
    assert figures(rows)["steady"]["switches_per_1000"] == 2.0


def test_calibration_is_the_mean_size_of_errors_and_the_largest() -> None:
    rows = [
        one_cell(calibration={"tokens": 0.02, "ms": -0.03}, vs_best_static=1.0),
        one_cell(calibration={"tokens": -0.04, "ms": 0.01}, vs_best_static=1.0),
        one_cell(calibration=None, vs_best_static=1.0),
    ]
    assert figures(rows)["calibration"] == {
        "tokens": 0.03, "worst_tokens": 0.04, "ms": 0.02, "worst_ms": 0.03,
    }  # fmt: skip


def test_recovery_is_told_by_kind_of_break_and_over_all(rows: list[Row]) -> None:
    cell = "breaks, mixed and useless"
    mine = next(r for r in rows if r["cell"] == cell and r["policy"] == ADAPTIVE)
    assert set(mine["recovery_steps"]) == {"mixed to useless", "useless to mixed"}
    assert set(figures(rows)["recovery"]) == {"steps_p50", "steps_p90", "steps_worst"}
    steps = [{"a to b": 16, "b to a": 48}, {"c to d": 320}, {"d to c": None}]
    told = [one_cell(figure="break", recovery_steps=one) for one in steps]
    assert figures(told[:2])["recovery"] == {
        "steps_p50": 48, "steps_p90": 320, "steps_worst": 320,
    }  # fmt: skip
    assert figures(told)["recovery"] == {"steps_p50": 48, "steps_p90": None, "steps_worst": None}


def test_the_best_static_is_the_best_of_the_grid_and_below_the_clairvoyant(
    rows: list[Row],
) -> None:
    for one in rows:
        if one["policy"] == "best static":
            assert one["tokens_per_s"] == max(one["grid"].values())
            assert one["grid"][one["static"]] == one["tokens_per_s"]
            assert len(one["grid"]) == 41
            assert one["vs_clairvoyant"] <= 1.0
            assert one["regret"] == pytest.approx(1.0 - one["vs_clairvoyant"], abs=2e-4)


def test_one_trace_alone_is_enough(tmp_path: Path) -> None:
    cells = make_cells([write_trace(tmp_path / "only.jsonl")], SCALE)
    shift = next(cell for cell in cells if cell.kind == "content")
    assert {phase.corpus for phase in shift.phases} == {str(tmp_path / "only.jsonl")}


def test_a_trace_without_a_drafter_of_the_suite_is_refused(tmp_path: Path) -> None:
    """Its cells would compare with a drafter that never has a draft."""
    path = write_trace(tmp_path / "only.jsonl")
    path.write_text(path.read_text().replace("acc_ngram", "acc_ngrams"))
    with pytest.raises(ValueError, match=r"only\.jsonl: it has no acc_ngram, but eagle, ngrams"):
        find_traces(tmp_path)


def test_traces_that_are_called_like_something_else_keep_their_own_cells(tmp_path: Path) -> None:
    """Rows are joined by the cell's name, and breaks are told by what the texts are called."""
    names = ("acceptance_code.jsonl", "code.jsonl", "content shift.jsonl", "edits.jsonl",
             "mixed.jsonl", "useless drafters.jsonl", "x.jsonl")  # fmt: skip
    for seed, name in enumerate(names):
        write_trace(tmp_path / name, seed=seed)
    traces = find_traces(tmp_path)
    assert list(labels(traces).values()) == [*names[:-1], "x"]
    cells = make_cells(traces, SCALE)
    assert len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        assert len(set(cell.corpora.values())) == len(cell.corpora)
    mine = [cell for cell in cells if cell.name in ("edits, batch 1", "edits.jsonl, batch 1")]
    rows = judge(mine, [one for task in make_tasks(mine, (), 0) for one in run_task(task)])
    assert [sum(one["cell"] == cell.name for one in rows) for cell in mine] == [4, 4]
    write_trace(tmp_path / "acceptance_code.jsonl.jsonl")
    with pytest.raises(ValueError, match=r"code\.jsonl: two traces"):
        make_cells(find_traces(tmp_path), SCALE)


def test_a_task_gives_the_same_rows_again(folder: Path) -> None:
    task = make_tasks(make_cells(find_traces(folder), SCALE), (ADAPTIVE,), 0)[-1]
    timed = "controller_us_per_step"
    one, two = (
        [{k: v for k, v in row.items() if k != timed} for row in run_task(task)] for _ in range(2)
    )
    assert one == two


def test_policies_are_compared_within_their_load() -> None:
    rows = compare(
        [
            {"policy": "none", "tokens_per_s": 100.0},
            {"policy": "best static", "tokens_per_s": 150.0},
            {"policy": "clairvoyant", "tokens_per_s": 200.0},
            {"policy": "x", "tokens_per_s": 165.0},
        ]
    )
    assert rows[-1]["vs_none"] == 1.65
    assert rows[-1]["vs_best_static"] == 1.1
    assert rows[-1]["regret"] == 0.175
    open_loop = compare(
        [{"policy": "x", "tokens_per_s": 50.0}, {"policy": "y", "tokens_per_s": 80.0}]
    )
    assert [one["regret"] for one in open_loop] == [0.375, 0.0]
    assert "vs_none" not in open_loop[0]


# --- plots ----------------------------------------------------------------------------------------


def parsed(text: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    return root


def test_plots_of_a_suite_show_every_policy(rows: list[Row]) -> None:
    plots = suite_plots(rows, ADAPTIVE)
    assert set(plots) == {"throughput.svg", "choice.svg", "regret.svg"}
    for text in plots.values():
        parsed(text)
    for policy in ("clairvoyant", "best static", ADAPTIVE, "fixed"):
        assert policy in plots["throughput.svg"]
    assert "regret" in plots["regret.svg"]


def test_plots_over_time_show_throughput_load_and_choice(rows: list[Row]) -> None:
    mine = [one for one in rows if one["figure"] == "load"]
    text = course_plots(mine)
    parsed(text)
    for words in ("Throughput over time", f"{ADAPTIVE}: load, D and drafters", "eagle"):
        assert words in text


def test_lines_are_in_the_plot_and_names_are_escaped() -> None:
    text = svg.lines("a < b", "x & y", "z", {'<script>"': [(1.0, 2.0), (256.0, 3.0)]}, log_x=True)
    root = parsed(text)
    (line,) = root.iter("{http://www.w3.org/2000/svg}polyline")
    for point in line.attrib["points"].split():
        x, y = map(float, point.split(","))
        assert svg.LEFT - 0.1 <= x <= svg.WIDTH - svg.RIGHT + 0.1
        assert svg.TOP - 0.1 <= y <= svg.HEIGHT - svg.BOTTOM + 0.1
    assert "<script>" not in text


def test_bars_are_as_high_as_their_values() -> None:
    root = parsed(svg.bars("t", "y", {"one": 1.0, "two": 2.0}))
    heights = [
        float(rect.attrib["height"])
        for rect in root.iter("{http://www.w3.org/2000/svg}rect")
        if len(rect)
    ]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)


def test_without_data_a_plot_says_so() -> None:
    assert "nothing to draw" in svg.lines("t", "x", "y", {})
    assert "nothing to draw" in svg.bars("t", "y", {})
