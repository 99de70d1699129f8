"""What is run when: arrivals, traces, phases, and the order of the arms."""

from __future__ import annotations

import argparse
import functools
from itertools import pairwise
from pathlib import Path

import pytest

from app.bench import arrivals
from app.bench.arrivals import Arrival, poisson, prompts_like, read_trace
from app.bench.options import add_bench
from app.bench.phases import Phase, parse_phase, prompts_of, read_phases
from app.bench.schedule import groups, rotated
from app.bench.workloads import Prompt
from app.failures import SettingsError

POOL = [Prompt(n, "ab"[n % 2], (f"prompt {n}",)) for n in range(12)]
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:05.9799600,100,8
2023-11-16 18:17:04.9799600,20,1
"""


def options(*arguments: str) -> argparse.Namespace:
    return parser().parse_args(["bench", "--prompts", "x", *arguments])


@functools.cache
def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser()
    add_bench(found.add_subparsers(), lambda client: None)
    return found


def test_poisson_arrivals_have_the_rate_and_are_the_same_every_time() -> None:
    times = poisson(4.0, 4000)
    assert times == sorted(times) == poisson(4.0, 4000)
    assert times[-1] == pytest.approx(1000, rel=0.06)
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance == pytest.approx(mean**2, rel=0.15)  # exponential


def test_a_trace_is_replayed_from_its_first_request(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE, "utf-8")
    found = read_trace(path, limit=None, speed=2.0, token_scale=0.1)
    assert found == [Arrival(0.0, 481, 1), Arrival(0.5, 2, 1), Arrival(1.0, 10, 1)]
    assert len(read_trace(path, limit=2, speed=1.0, token_scale=1.0)) == 2


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("yesterday,5,5", "line 5: no arrival: Invalid isoformat"),
        ("2023-11-16 18:17:06,nan,5", "line 5: no arrival: ContextTokens is nan"),
        ("2023-11-16 18:17:06,5,-1", "line 5: no arrival: GeneratedTokens is -1"),
        ("2023-11-16 18:17:06,5,99999999", "line 5: no arrival: GeneratedTokens"),
        ("2023-11-16 18:17:06,5", "line 5: no arrival: could not convert"),
        ("2023-12-24 18:17:06,5,5", "more than a week"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(tmp_path: Path, row: str, says: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE + row + "\n", "utf-8")
    with pytest.raises(SettingsError, match=says):
        read_trace(path, limit=None, speed=1.0, token_scale=1.0)


@pytest.mark.parametrize(
    ("content", "says"),
    [("", "no column TIMESTAMP"), ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests")],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content, "utf-8")
    with pytest.raises(SettingsError, match=says):
        read_trace(path, limit=None, speed=1.0, token_scale=1.0)


def test_a_trace_that_is_too_long_is_not_cut_unsaid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE, "utf-8")
    monkeypatch.setattr(arrivals, "MOST_ARRIVALS", 2)
    for limit in (None, 3):
        with pytest.raises(SettingsError, match=r"more than 2 requests.* --limit 2 or fewer"):
            read_trace(path, limit=limit, speed=1.0, token_scale=1.0)
    assert len(read_trace(path, limit=2, speed=1.0, token_scale=1.0)) == 2
    monkeypatch.setattr(arrivals, "MOST_ARRIVALS", 3)
    assert len(read_trace(path, limit=None, speed=1.0, token_scale=1.0)) == 3


def test_prompts_of_a_trace_have_its_lengths_and_real_text() -> None:
    made = prompts_like([Arrival(0, 10, 3), Arrival(1, 2, 500)], POOL)
    assert [len(prompt.text) for prompt in made] == [40, 8]
    assert made[0].text == "prompt 0\n\nprompt 1\n\nprompt 2\n\nprompt 3\n\n"
    assert made[1].text == "prompt 5"  # nothing is read twice before all was read once
    assert [prompt.max_tokens for prompt in made] == [3, 500]


def test_a_phase_from_the_command_line() -> None:
    found = parse_phase("name=chat, requests=20,categories=a+b,concurrency=8,temperature=1.2")
    assert found == Phase("chat", 20, ("a", "b"), 8, None, 1.2)
    assert parse_phase("name=x,requests=1,rate=0.5,max_tokens=9").rate == 0.5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name=x", "requests"),
        ("name=x,requests=0", "requests"),
        ("name=x,requests=1,rate=0", "rate"),
        ("name=x,requests=1,rate=nan", "rate"),
        ("name=x,requests=1,concurrency=99999", "concurrency"),
        ("name=x,requests=1,temperature=3", "temperature"),
        ("name=x,requests=1,speed=3", "speed"),
        ("name=x,requests=1,requests=2", "once for a field"),
        ("chat", "not FIELD=VALUE"),
    ],
)
def test_a_wrong_phase_is_refused(text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        parse_phase(text)


def test_phases_from_a_file_come_first(tmp_path: Path) -> None:
    path = tmp_path / "phases.toml"
    path.write_text('[[phase]]\nname = "calm"\nrequests = 3\ncategories = ["a"]\n', "utf-8")
    found = read_phases(str(path), ["name=busy,requests=2,concurrency=4"])
    assert [phase.name for phase in found] == ["calm", "busy"]
    with pytest.raises(SettingsError, match="Two phases are called calm"):
        read_phases(str(path), ["name=calm,requests=2"])
    path.write_text('[[phase]]\nname = "calm"\n', "utf-8")
    with pytest.raises(SettingsError, match=r"phases.toml.*requests"):
        read_phases(str(path), [])
    path.write_text("[[phase]]\nname = " + "[" * 5000, "utf-8")
    with pytest.raises(SettingsError, match="nested too deeply"):
        read_phases(str(path), [])
    path.write_text("[[phase", "utf-8")
    with pytest.raises(SettingsError, match="cannot read"):
        read_phases(str(path), [])


def test_phases_of_the_same_categories_go_on_in_the_pool() -> None:
    phases = [Phase("1", 2, ("a",)), Phase("2", 2, ("b",)), Phase("3", 5, ("a",))]
    numbers = [[p.question_id for p in part] for part in prompts_of(phases, POOL)]
    assert numbers == [[0, 2], [1, 3], [4, 6, 8, 10, 0]]
    with pytest.raises(SettingsError, match="Phase 1: no prompts of category z"):
        prompts_of([Phase("1", 2, ("z",))], POOL)


def test_phases_are_one_group_so_that_an_arm_meets_them_in_turn() -> None:
    (group,) = groups(
        options(
            "--phase", "name=x,requests=2,max_tokens=7", "--phase", "name=y,requests=3,rate=2"
        ),
        POOL,
    )  # fmt: skip
    assert [(one.phase, one.concurrency, one.rate) for one in group] == [("x", 1, 0), ("y", 0, 2)]
    assert group[0].arrivals is None
    assert group[0].max_tokens == 7
    assert group[1].arrivals is not None
    assert len(group[1].arrivals) == 3


def test_every_concurrency_runs_every_prompt_once() -> None:
    found = groups(options("--concurrency", "1,2"), POOL)
    assert all(len(group) == 1 for group in found)
    for concurrency in (1, 2):
        slices = [one for (one,) in found if one.concurrency == concurrency]
        numbers = [prompt.question_id for one in slices for prompt in one.prompts]
        assert sorted(map(str, numbers)) == sorted(str(n) for n in range(12))


def test_a_trace_gives_the_lengths_and_the_times(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE, "utf-8")
    found = groups(options("--trace", str(path), "--trace-speed", "2"), POOL)
    ((one,),) = found
    assert one.arrivals == [0.0, 0.5, 1.0]
    assert one.rate == 2.0
    assert [prompt.max_tokens for prompt in one.prompts] == [10, 1, 8]


def test_only_one_kind_of_load_at_a_time() -> None:
    with pytest.raises(SettingsError, match="only one of --phase and --rate"):
        groups(options("--rate", "1", "--phase", "name=x,requests=2"), POOL)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--rate", "0"), ("--rate", "inf"), ("--rate", "nan"), ("--concurrency", "0"),
        ("--concurrency", "5000"), ("--temperature", "-1"), ("--repeat", "0"),
        ("--repeat", "1001"), ("--trace-speed", "nan"), ("--trace-tokens", "11"),
        ("--tpot-ms", "0"), ("--stall-s", "0"), ("--warm-up", "0"), ("--max-tokens", "0"),
    ],
)  # fmt: skip
def test_numbers_out_of_bounds_are_refused(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        options(*arguments)
    assert stopped.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_every_arm_starts_first_in_turn() -> None:
    assert [rotated(["a", "b", "c"], n)[0] for n in range(4)] == ["a", "b", "c", "a"]
