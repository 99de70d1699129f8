"""`paceline simulate`: its configuration file, its table, JSON and plots."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from app.failures import Failure
from app.options import build_parser
from app.simulate import command as simulate
from app.simulate import config as simulate_config
from app.simulate.config import Config, read_config
from app.simulate.options import add_simulate
from controller.contract import RECORDING_VERSION
from controller.simulate.texts import Library
from tests.controller.simulate.small import write_trace

DOCS = Path(__file__).parents[2] / "docs" / "simulate.md"

BASE = """
policies = ["adaptive", "fixed drafter=eagle draft_length=3"]
[machine]
hardware = "H200"
model = "llama-70b"
devices = 2
max_batch = 16
[[drafters]]
name = "ngram"
kind = "lookup"
[[drafters]]
name = "eagle"
kind = "head"
rho = 0.06
[[texts]]
name = "code"
synthetic = "edits"
count = 10
"""
CLOSED = BASE + '[load]\nkind = "closed"\nphases = [{requests = 4, texts = "code", tokens = 60}]\n'
OPEN = BASE + '[load]\nkind = "poisson"\ntexts = "code"\nseconds = 1.0\nrate = 20.0\n'


def replayed(path: Path) -> str:
    """A configuration that replays a recording when its requests came."""
    return BASE.replace('synthetic = "edits"\ncount = 10', f'recording = "{path.name}"') + (
        f'[load]\nkind = "recorded"\ntexts = "code"\narrivals = "{path.name}"\n'
    )


def main(arguments: list[str]) -> int:
    """The command without the options of all others, which take a second to build."""
    parser = argparse.ArgumentParser()
    add_simulate(parser.add_subparsers(), lambda parser: None)
    options = parser.parse_args(arguments)
    module, function = options.run.split(":")
    assert module == simulate.__name__
    return getattr(simulate, function)(options)


def config(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_a_run_prints_a_table_and_writes_json_and_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "out.svg"
    path = config(tmp_path, CLOSED)
    assert main(["simulate", "run", str(path), "--json", str(out), "--plot", str(plot)]) == 0
    shown = capsys.readouterr().out
    for name in ("none", "best static (", "clairvoyant", "adaptive", "fixed drafter=eagle"):
        assert name in shown
    written = json.loads(out.read_text())
    assert [row["policy"] for row in written["rows"]] == [
        "none", "best static", "clairvoyant", "adaptive", "fixed drafter=eagle draft_length=3",
    ]  # fmt: skip
    assert written["rows"][3]["vs_none"] > 2.0
    assert written["config"]["machine"]["model"] == "llama-70b"
    assert plot.read_text().startswith("<svg")


def test_an_open_load_shows_latencies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main(["simulate", "run", str(config(tmp_path, OPEN)), "--json", str(out)]) == 0
    assert "TTFT p50" in capsys.readouterr().out
    adaptive = json.loads(out.read_text())["rows"][0]
    assert adaptive["finished"] > 5
    assert 0.0 < adaptive["ttft_ms"]["p50"] <= adaptive["ttft_ms"]["p99"]
    assert adaptive["tpot_ms"]["p50"] > 0.0


def test_recorded_arrivals_are_read_once_for_all_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f"2023-11-16 18:17:{59 - k},{20 + k},9\n" for k in range(9))
    (tmp_path / "came.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    read: list[Path] = []
    inner = simulate_config.read_arrivals

    def watched(path: Path, *rest: float) -> object:
        read.append(path)
        return inner(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(simulate_config, "read_arrivals", watched)
    load = '[load]\nkind = "recorded"\ntexts = "code"\narrivals = "came.csv"\nseconds = 6.0\n'
    out = tmp_path / "out.json"
    assert main(["simulate", "run", str(config(tmp_path, BASE + load)), "--json", str(out)]) == 0
    assert [row["finished"] for row in json.loads(out.read_text())["rows"]] == [7, 7]
    assert read == [tmp_path / "came.csv"]


def test_a_recording_is_replayed_with_its_own_arrivals(tmp_path: Path) -> None:
    path, out = tmp_path / "live.jsonl", tmp_path / "out.json"
    records: list[dict[str, object]] = [
        {"recording": RECORDING_VERSION, "drafters": {"ngram": "model_free", "eagle": "model"}}
    ]
    for number in range(5):
        records.append({"s": 0.1 * number, "arrived": {"request": number, "prompt": 9}})
        row = {"request": number, "context": 10, "drafter": "ngram", "drafted": 4, "accepted": 3,
               "committed": 4, "match": 5, "source": "prompt"}  # fmt: skip
        records.append({"s": 0.1 * number, "verify_ms": 5.0, "requests": [row]})
        records.append({"s": 0.1 * number, "finished": {"request": number, "output": 5}})
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    assert main(["simulate", "run", str(config(tmp_path, replayed(path))), "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["finished"] for row in rows] == [5, 5]


@pytest.mark.parametrize("load", [CLOSED, OPEN])
def test_ten_thousand_nodes_are_a_sample_scaled(tmp_path: Path, load: str) -> None:
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    assert main(["simulate", "run", str(config(tmp_path, load)), "--json", str(one)]) == 0
    text = load.replace("devices = 2", "devices = 2\nreplicas = 10000\nsample = 2")
    text = text.replace("rate = 20.0", "rate = 200000.0")
    assert main(["simulate", "run", str(config(tmp_path, text)), "--json", str(many)]) == 0
    small, large = (json.loads(path.read_text())["rows"][-1] for path in (one, many))
    assert large["replicas"] == 10_000
    assert large["simulated"] == 2
    assert large["tokens_per_s"] == pytest.approx(10_000 * small["tokens_per_s"], rel=0.4)


@pytest.mark.parametrize(
    ("wrong", "right", "problem"),
    [
        ('hardware = "H200"', 'hardware = "H9000"', "'H9000' is not one of A100"),
        ('model = "llama-70b"', 'model = "gpt"', "'gpt' is not one of"),
        ("devices = 2", "devices = 1", "141 GB"),
        ("devices = 2", "devices = 0", "devices"),
        ("devices = 2", "devices = 2\nspeed = 3", "speed"),
        ("rho = 0.06", "", "pass_ms or rho"),
        ('name = "eagle"', 'name = "ngram"', "a name of its own"),
        ('synthetic = "edits"', 'synthetic = "jokes"', "'jokes' is not one of"),
        ('synthetic = "edits"', 'synthetic = "edits"\ntrace = "x"', "give one of"),
        ('synthetic = "edits"\ncount = 10', 'trace = "x.jsonl"', "x.jsonl"),
        ('texts = "code"', 'texts = "other"', "'other' are not one of code"),
        ("requests = 4", "requests = 17", "max_batch is 16"),
        ('"adaptive"', '"magic"', "'magic' is not one of adaptive"),
        ("draft_length=3", "draft_length=x", "draft_length"),
        ("drafter=eagle", "drafter=eagel", "there is no drafter 'eagel', but ngram, eagle"),
        ('name = "eagle"', 'name = "eagel"', "texts.code: it does not know the drafter 'eagel'"),
        ("max_batch = 16", "slowdowns = [[2.0, 1.5], [1.0, 2.0]]", "machine.slowdowns"),
        ("[machine]", "a = " + 3000 * "[" + "\n[machine]", "nested too deeply"),
        ('kind = "closed"', 'kind = "other"', "other"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_said(
    tmp_path: Path, wrong: str, right: str, problem: str
) -> None:
    assert wrong in CLOSED
    path = config(tmp_path, CLOSED.replace(wrong, right, 1))
    with pytest.raises(Failure, match=r"run\.toml") as said:
        main(["simulate", "run", str(path)])
    assert problem in str(said.value)


def test_a_missing_configuration_and_broken_toml_are_said(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="No such file"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(Failure, match=r"run\.toml"):
        read_config(config(tmp_path, "machine = ["))


def examples() -> list[str]:
    return re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)


def test_the_documented_examples_are_configurations(tmp_path: Path) -> None:
    write_trace(tmp_path / "acceptance_code.jsonl")
    (tmp_path / "arrivals.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,480,10\n"
    )
    shadows = [
        {"drafter": name, "drafted": 3, "accepted": 1, "match": 4} for name in ("ngram", "suffix")
    ]
    row = {
        "request": 1,
        "context": 9,
        "drafter": "none",
        "drafted": 0,
        "accepted": 0,
        "committed": 4,
        "shadows": shadows,
    }
    records = (
        {"recording": RECORDING_VERSION},
        {"s": 0.4, "arrived": {"request": 1, "prompt": 8}},
        {"s": 0.5, "verify_ms": 5.0, "requests": [row]},
    )
    (tmp_path / "live.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    assert len(examples()) >= 3
    for text in examples():
        found = read_config(config(tmp_path, text))
        scenario = found.scenario(tmp_path)
        assert found.choices
        assert isinstance(scenario.library, Library)
        for corpus, places in scenario.library.ranges.items():
            ends = scenario.library.first[places.start], scenario.library.last[places.stop - 1]
            for name, accepted in scenario.library.accepted.items():
                assert accepted[slice(*ends)].any(), f"{name} is useless on {corpus}"
        if scenario.deal is not None:
            assert scenario.deal(scenario.library, 0, np.random.default_rng(0))


def test_every_field_of_the_configuration_is_documented() -> None:
    text = DOCS.read_text()
    for kind in (Config, *tables()):
        for field in msgspec.structs.fields(kind):
            assert f"`{field.encode_name}`" in text, (kind.__name__, field.encode_name)


def tables() -> list[type[msgspec.Struct]]:
    from app.simulate import tables

    return [
        value
        for value in vars(tables).values()
        if isinstance(value, type) and issubclass(value, tables.Table)
    ]


def test_the_suite_writes_its_figures_and_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "traces", tmp_path / "suite.json"
    folder.mkdir()
    write_trace(folder / "acceptance_a.jsonl")
    command = ["simulate", "suite", "--traces", str(folder), "--json", str(out)]
    command += ["--scale", "0.0005", "--policies", "none", "--plots", str(tmp_path / "a" / "b")]
    assert main([*command, "--processes", "1"]) == 0
    shown = capsys.readouterr().out
    for words in ("steady.worst_vs_best_static: ", "recovery.steps_p50: ", "mixed to useless"):
        assert words in shown
    written = json.loads(out.read_text())
    assert written["steady"]["worst_vs_best_static"] > 0.0
    assert written["steady"]["worst_vs_none"] > 0.0
    assert written["useless_drafters"]["worst_vs_none"] > 0.0
    assert {"b8", "b64"} == set(written["content_shift"])
    assert written["load_content_shift"] > 0.0
    assert 0.0 < written["clairvoyant_ratio"] < 1.0
    assert {"tokens", "ms"} < set(written["calibration"])
    assert set(written["code_edits"]) == {"b1", "b8"}
    assert "switches_per_1000" in written["steady"]
    assert {row["policy"] for row in written["rows"]} >= {"none", "best static", "adaptive"}
    assert written["traces"] == ["a"]
    assert (tmp_path / "a" / "b" / "throughput.svg").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--policies", "magic"], "magic"),
        (["--json", "/nowhere/at/all.json"], "no folder"),
        (["--json", "."], "is a folder"),
        (["--plots", __file__], "is a file"),
        ([], "no acceptance trace"),
    ],
)
def test_what_is_wrong_with_the_suites_options_is_said(
    tmp_path: Path, options: list[str], problem: str
) -> None:
    with pytest.raises(Failure, match=problem):
        main(["simulate", "suite", "--traces", str(tmp_path), *options])


def test_the_command_line_has_the_commands() -> None:
    found = build_parser().parse_args(["simulate", "suite", "--traces", "x", "--policies", "ucb"])
    assert found.run == "app.simulate.command:suite"
    assert (found.policies, found.processes, found.scale, found.seed) == (("ucb",), 2, 1.0, 0)
    with pytest.raises(SystemExit):
        build_parser().parse_args(["simulate", "suite", "--traces", "x", "--scale", "0"])
