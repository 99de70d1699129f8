"""`paceline simulate replay`: a recording and its server's description are all it needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.failures import Failure
from app.options import build_parser
from app.simulate import texts
from app.simulate.replay import replay
from app.simulate.texts import recorded
from controller.contract import RECORDING_VERSION
from controller.simulate.recording import Recording

SERVER: dict[str, Any] = {
    "recording": RECORDING_VERSION, "model": "HuggingFaceTB/SmolLM2-135M-Instruct", "device": "cpu",
    "max_batch": 8, "max_draft_length": 12, "drafters": {"ngram": "model_free", "mtp": "model"},
}  # fmt: skip


def row(request: int, place: int, drafter: str, drafted: int, accepted: int) -> dict[str, Any]:
    found = {
        "request": request, "context": 20 + place, "drafter": drafter, "drafted": drafted,
        "accepted": accepted, "committed": accepted + 1,
    }  # fmt: skip
    return found | ({"match": 5, "source": "prompt"} if drafter == "ngram" else {})


def recording(path: Path, **server: Any) -> Path:
    """Three requests; plain steps take 10 ms, a position of mtp 2 ms."""
    lines: list[dict[str, Any]] = [SERVER | server]
    for number in range(3):
        lines.append({"s": 0.2 * number, "arrived": {"request": number, "prompt": 20}})
        place = 1
        for drafter, drafted, accepted in (("none", 0, 0), ("ngram", 4, 3), ("mtp", 3, 1)) * 6:
            step: dict[str, Any] = {"s": 0.2 * number + 0.01 * place, "verify_ms": 10.0}
            if drafter == "mtp":
                step["proposals"] = [{"drafter": "mtp", "requests": 1, "depth": 3, "ms": 6.0}]
            lines.append(step | {"requests": [row(number, place, drafter, drafted, accepted)]})
            place += accepted + 1
        lines.append({"s": 0.2 * number + 1.0, "finished": {"request": number, "output": place}})
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def run(*arguments: str) -> int:
    return replay(build_parser().parse_args(["simulate", "replay", *arguments]))


def test_a_recording_is_replayed_by_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    path = recording(tmp_path / "my live run (2).jsonl")
    policies = ("--policy", "off", "--policy", "fixed drafter=mtp draft_length=3")
    assert run(str(path), *policies, "--json", str(out)) == 0
    assert "fixed drafter=mtp draft_length=3" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert [one["policy"] for one in found["rows"]] == ["off", policies[3]]
    assert [one["finished"] for one in found["rows"]] == [3, 3]
    assert found["rows"][1]["acceptance_length"] > 1.2
    config = found["config"]
    assert config["machine"] == {"hardware": "CPU", "model": "smollm2-135m", "max_batch": 8}
    assert config["setting"]["max_draft_length"] == 12
    assert {one["name"]: one["kind"] for one in config["drafters"]} == {
        "ngram": "lookup", "mtp": "head",
    }  # fmt: skip
    assert config["drafters"][1]["rho"] == pytest.approx(0.2)


def test_without_a_policy_the_controller_that_serves_is_held_against_none(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert run(str(recording(tmp_path / "live.jsonl")), "--json", str(out)) == 0
    assert [one["policy"] for one in json.loads(out.read_text())["rows"]] == ["adaptive", "off"]


def test_a_machine_that_the_recording_does_not_tell_is_asked_for(tmp_path: Path) -> None:
    path = recording(tmp_path / "live.jsonl", device="cuda:0", model="my-own")
    with pytest.raises(Failure, match="--hardware, one of A100"):
        run(str(path))
    with pytest.raises(Failure, match=r"'my-own' is none .* --model, one of smollm2-135m"):
        run(str(path), "--hardware", "H100")
    assert run(str(path), "--hardware", "H100", "--model", "llama-8b", "--speed", "2") == 0


def test_a_drafter_that_was_loaded_later_is_one_of_the_machine(tmp_path: Path) -> None:
    path = recording(tmp_path / "live.jsonl", drafters={"ngram": "model_free"})
    assert recorded(path).kinds == {"ngram": "model_free", "mtp": "model"}


def test_a_look_up_that_was_enabled_and_never_scored_has_no_draft(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    drafters = SERVER["drafters"] | {"suffix": "model_free"}
    path = recording(tmp_path / "live.jsonl", drafters=drafters)
    policies = ("--policy", "adaptive", "--policy", "fixed drafter=suffix draft_length=3")
    assert run(str(path), *policies, "--json", str(out)) == 0
    adaptive, suffix = json.loads(out.read_text())["rows"]
    assert adaptive["acceptance_length"] > 1.2
    assert (suffix["acceptance_length"], suffix["mean_d"]) == (1.0, 0.0)
    assert run(str(recording(tmp_path / "all.jsonl", drafters={"suffix": "model_free"}))) == 0


def test_a_link_and_a_relative_path_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    inner = texts.read_recording

    def watched(path: Path) -> Recording:
        read.append(path)
        return inner(path)

    monkeypatch.setattr(texts, "read_recording", watched)
    (tmp_path / "kept").mkdir()
    target = recording(tmp_path / "kept" / "0001.jsonl")
    (tmp_path / "latest.jsonl").symlink_to(target)
    monkeypatch.chdir(tmp_path)
    assert run("latest.jsonl", "--policy", "off") == 0
    assert read == [tmp_path / "latest.jsonl"]


def test_a_policy_for_a_drafter_that_was_not_recorded_is_refused(tmp_path: Path) -> None:
    path = recording(tmp_path / "live.jsonl")
    with pytest.raises(Failure, match=r"policies: .*no drafter 'suffix', but ngram, mtp"):
        run(str(path), "--policy", "fixed drafter=suffix")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"recording": 1}\n', "version 1; this release reads version 2"),
        ('{"recording": 99}\n', "version 99"),
        ('{"other": 1}\n', "first line"),
        ("", "no request committed"),
        ('{"recording": 2}\nnot json\n', "line 2"),
        ('{"recording": 2}\n' + "[" * 100_000, "line 2: its values are nested too deeply"),
        ("[" * 100_000, "line 1: its values are nested too deeply"),
    ],
)
def test_what_cannot_be_replayed_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "live.jsonl"
    path.write_text(text)
    with pytest.raises(Failure, match=said):
        run(str(path))


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"none\.jsonl: No such file"):
        run(str(tmp_path / "none.jsonl"))


def test_a_wrong_policy_is_said(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="policy: 'best'"):
        run(str(recording(tmp_path / "live.jsonl")), "--policy", "best")
