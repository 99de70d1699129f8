"""`paceline bench`: choice of prompts, the report's arithmetic, and a real run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.bench import report
from app.bench.client import Run, Sample
from app.bench.prompts import Prompt, category, chunks, read_prompts
from app.bench.publish import publishable
from app.cli import main
from app.failures import SettingsError
from app.modes import speculation
from tests.conftest import Server
from tests.random_head import random_head


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"question_id": n, "category": category, "turns": [text, "unused second turn"]}
        for n, (category, text) in enumerate(
            [
                ("copy", "Repeat after me: one two three, one two three, one two three."),
                ("copy", "Repeat: a b c d a b c d a b c d a b c d."),
                ("copy", "Repeat: red green blue red green blue."),
                ("chat", "What is a river?"),
                ("chat", "Name a colour."),
            ]
        )
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", "utf-8")
    return path


def run(mode: str, chunk: int, wall_ms: float, tokens: int, **more: Any) -> Run:
    sample = Sample(mode, 1, 0, chunk, "copy", 1, tokens=tokens, ttft_ms=10, e2e_ms=wall_ms, **more)
    return Run(mode, 1, 0, chunk, "copy", wall_ms, [sample])


def test_a_limit_takes_from_every_category_in_turn(prompts: Path) -> None:
    chosen = read_prompts(prompts, 3)
    assert [prompt.category for prompt in chosen] == ["copy", "chat", "copy"]
    assert len(read_prompts(prompts)) == 5
    assert {prompt.category for prompt in read_prompts(prompts, None, ("chat",))} == {"chat"}


def test_small_categories_count_as_one_before_the_limit_takes_its_share(prompts: Path) -> None:
    chosen = read_prompts(prompts, 4, (), 3)
    assert [prompt.category for prompt in chosen] == ["copy", "mixed", "copy", "mixed"]
    assert chosen[1].text == "What is a river?"
    assert {prompt.category for prompt in read_prompts(prompts, None, (), 2)} == {"copy", "chat"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "line 1"),
        ('{"question_id": 1, "category": "x"}', "line 1: .*turns"),
        ("", "no prompts"),
        ('{"question_id": 1, "category": "x", "turns": ["t"]}', "of category y; there are x"),
    ],
)
def test_a_broken_prompts_file_is_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(content, "utf-8")
    with pytest.raises(SettingsError, match=message):
        read_prompts(path, None, ("y",) if "category y" in message else ())


def test_chunks_are_of_one_category_and_about_equal() -> None:
    made = [Prompt(n, "a" if n < 11 else "b", ("t",)) for n in range(14)]
    parts = chunks(made, 5, 1)
    assert sorted(len(part) for part in parts) == [3, 3, 4, 4]
    assert all(len({prompt.category for prompt in part}) == 1 for part in parts)
    assert sorted(prompt.question_id for part in parts for prompt in part) == list(range(14))


def test_the_ratio_compares_each_chunk_with_plain_decoding_on_the_same_chunk() -> None:
    runs = [
        run("none", 0, 1000, 100), run("auto", 0, 500, 100),
        run("none", 1, 2000, 100), run("auto", 1, 2000, 100),
        run("none", 2, 1000, 100), run("auto", 2, 250, 100),
    ]  # fmt: skip
    by_mode = {row.mode: row for row in report.rows(runs)}
    assert by_mode["auto"].ratio == pytest.approx(2.0)
    assert by_mode["none"].ratio == pytest.approx(1.0)
    assert by_mode["auto"].tokens_per_s == pytest.approx(300 / 2.75)
    assert by_mode["auto"].ratio_quartiles == pytest.approx((1.5, 3.0))


def test_acceptance_is_counted_over_steps_and_really_drafted_tokens() -> None:
    (row,) = report.rows([run("auto", 0, 1000, 31, steps=10, drafted=40, accepted=21)])
    assert row.acceptance_length == pytest.approx(3.0)
    assert row.acceptance_rate == pytest.approx(21 / 40)
    assert row.decode_tokens_per_s == pytest.approx(30 / 0.99)
    assert row.ratio is None


def test_failed_requests_are_counted_and_do_not_enter_the_numbers() -> None:
    good = run("none", 0, 1000, 100)
    bad = Sample("none", 1, 0, 0, "copy", 2, error="HTTP 500")
    (row,) = report.rows([Run("none", 1, 0, 0, "copy", 1000, [*good.samples, bad])])
    assert (row.requests, row.failed, row.tokens) == (2, 1, 100)


@pytest.mark.parametrize(
    ("mode", "field"),
    [
        ("auto", None),
        ("none", {"enabled": False}),
        ("ngram", {"drafter": "ngram"}),
        ("ngram:8", {"drafter": "ngram", "draft_length": 8}),
    ],
)
def test_a_mode_becomes_the_request_field(mode: str, field: dict | None) -> None:
    assert speculation(mode) == field


@pytest.mark.parametrize("mode", ["ngram:", "ngram:x", ":3", "none:2", "auto:2", "ngram:-1"])
def test_a_wrong_mode_is_refused(mode: str) -> None:
    with pytest.raises(SettingsError, match="DRAFTER:LENGTH"):
        speculation(mode)


def test_neither_the_key_nor_folders_are_written_into_the_result() -> None:
    shown = publishable(["bench", "--key", "pl-secret", "--key=pl-secret", "--url", "u"])
    assert shown == ["bench", "--key", "KEY", "--key=KEY", "--url", "u"]
    shown = publishable(["bench", "--prompts", "/home/me/p.jsonl", "--json=out/r.json"])
    assert shown == ["bench", "--prompts", "p.jsonl", "--json=r.json"]
    assert publishable(["--key", "--json", "x/y"]) == ["--key", "KEY", "x/y"]
    assert publishable(["--trace", "/data/t.csv", "--set", "prompts=/home/me/p.jsonl"]) == [
        "--trace",
        "t.csv",
        "--set",
        "prompts=p.jsonl",
    ]
    shown = publishable(["--arm", "x=http://me:secret@host:1/v1", "--url", "http://me:s@host"])
    assert shown == ["--arm", "x=http://host:1/v1", "--url", "http://host"]


def test_a_key_option_cannot_be_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--prompts", "p", "--ke", "pl-secret"])
    assert stopped.value.code == 2


def test_a_real_run_measures_every_mode(
    server: Server, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "result.json", tmp_path / "result.html"
    arguments = ["bench", "--url", server.url, "--key", server.admin_key, "--prompts", str(prompts)]
    arguments += ["--limit", "3", "--max-tokens", "16", "--modes", "none,ngram:4"]
    arguments += ["--positions", "--tpot-ms", "60000", "--html", str(page)]
    assert main([*arguments, "--json", str(out)]) == 0
    text = out.read_text("utf-8")
    assert server.admin_key not in text + page.read_text("utf-8")
    result = json.loads(text)
    rows = {(row["mode"], row["concurrency"], row["category"]): row for row in result["rows"]}
    assert len(rows) == 2 * 3
    plain, drafted = rows["none", 1, "all"], rows["ngram:4", 1, "all"]
    assert plain["requests"] == drafted["requests"] == 3
    assert plain["failed"] == drafted["failed"] == 0
    assert plain["acceptance_rate"] is None
    assert plain["acceptance_length"] == 1.0
    assert plain["joint"] == []
    assert drafted["acceptance_length"] > 1.0
    assert plain["ratio"] == plain["speedup"]["value"] == 1.0
    assert drafted["speedup"]["pairs"] == 3
    assert plain["best_static"] in ("none", "ngram:4")
    assert all(row["same_text"] == 1.0 for row in rows.values())
    assert all(row["goodput_per_s"] == row["tokens_per_s"] for row in rows.values())
    assert set(plain["shares"]) == {"none"}
    assert 0 < drafted["shares"]["ngram"] < 1
    assert result["server"]["model"]
    assert result["machine"]["cores"]
    shown = capsys.readouterr().out
    assert "tokens/s" in shown
    assert "by position" in shown
    # What each step says of itself adds up to what the server counts at the end.
    for run in result["runs"]:
        for sample in run["samples"]:
            kept = sum(pair[1] for pairs in sample["positions"].values() for pair in pairs)
            assert kept == sample["accepted"]
            assert sum(sample["histogram"]) == sum(sample["drafters"].values()) == sample["steps"]
    first = drafted["conditional"]["ngram"][0]
    assert 0 < first["accepted"] <= first["reached"] <= drafted["requests"] * 16
    assert first["rate"] == first["accepted"] / first["reached"]


def test_phases_run_in_order_and_are_put_together(
    server: Server, prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    arguments = [
        "bench",
        "--url",
        server.url,
        "--key",
        server.inference_key,
        "--modes",
        "auto,none",
    ]
    arguments += ["--prompts", str(prompts), "--max-tokens", "8", "--json", str(out)]
    arguments += ["--phase", "name=copy,requests=2,categories=copy"]
    assert main([*arguments, "--phase", "name=chat,requests=2,rate=50,max_tokens=4"]) == 0
    result = json.loads(out.read_bytes())
    found = [(row["phase"], row["mode"], row["requests"]) for row in result["rows"]]
    assert found == [
        ("copy", "auto", 2), ("copy", "none", 2), ("chat", "auto", 2), ("chat", "none", 2),
        ("all", "auto", 4), ("all", "none", 4),
    ]  # fmt: skip
    assert [(run["mode"], run["phase"]) for run in result["runs"]] == [
        ("auto", "copy"), ("auto", "chat"), ("none", "copy"), ("none", "chat"),
    ]  # fmt: skip
    chat = result["runs"][1]["samples"]
    assert [sample["tokens"] for sample in chat] == [4, 4]
    assert all(sample["sent_ms"] > 0 for sample in chat)
    assert result["server"] is None  # this key may not read it


def test_a_mode_that_the_server_refuses_stops_the_run(
    server: Server, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "--url", server.url, "--key", server.inference_key]
    assert main([*arguments, "--prompts", str(prompts), "--modes", "nonsense"]) == 1
    assert "Mode nonsense does not work on this server" in capsys.readouterr().err


def test_a_wrong_key_is_named(
    server: Server, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--url", server.url, "--key", "no", "--prompts", str(prompts)]) == 3
    assert "HTTP 401" in capsys.readouterr().err


def test_small_categories_are_pooled_so_that_the_concurrency_is_reached() -> None:
    made = [Prompt(number, f"kind {number % 3}", ("x",)) for number in range(9)]
    made += [Prompt(number, "large", ("x",)) for number in range(20)]
    parts = chunks(made, 16, 8)
    assert sorted(len(part) for part in parts) == [9, 10, 10]
    assert [category(part) for part in parts] == ["large", "large", "mixed"]


# --- bench drafters -------------------------------------------------------------------------------

CORPUS = """
{"text": "A river is a natural flowing watercourse. One two three, one two three, one two three."}
{"text": ""}
{"token_ids": [17]}
{"token_ids": [5, 6, 7, 8, 9, 5, 6, 7, 8, 10], "id": "more fields are ignored"}
"""


def test_the_drafters_are_measured_in_an_engine_of_their_own(
    prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "result.json"
    long = json.dumps({"token_ids": [number * number * 31 % 40_000 for number in range(1_500)]})
    corpus.write_text(f"{CORPUS}{long}\n{long}\n", "utf-8")
    arguments = ["bench", "drafters", "--prompts", str(prompts), "--corpus", str(corpus)]
    arguments += ["--limit", "2", "--max-tokens", "8", "--rounds", "2", "--json", str(out)]
    arguments += ["--threads", "1"]  # beside other tests more of them wait for each other
    head = random_head(tmp_path / "head")
    arguments += ["--mtp", str(head), "--draft-model", "off", "--model-length", "2"]
    chosen = ("none", "ngram", "mix, warm", "mtp")
    for mode in chosen:
        arguments += ["--only", mode]
    assert main(arguments) == 0
    result = json.loads(out.read_text("utf-8"))
    modes = result["tokens_per_step"]
    assert tuple(modes) == chosen
    for name, mode in modes.items():
        assert set(mode["categories"]) == {"copy", "chat"}
        assert mode["prompts"] == 2
        for key in ("steps", "tokens", "prompts"):
            assert mode[key] == sum(one[key] for one in mode["categories"].values())
        assert mode["tokens"] == modes["none"]["tokens"] > 0  # the same text, however drafted
        assert mode["tokens_per_step"] == pytest.approx(mode["tokens"] / mode["steps"], abs=1e-4)
        assert mode["tokens_per_step"] >= 1
        assert 0 <= mode["acceptance_rate"] <= 1
        assert (mode["drafted_per_step"] > 0) == (name != "none")
        assert mode["drafting_cpu_s"] > 0
    assert modes["none"]["tokens_per_step"] == 1
    assert modes["ngram"]["tokens_per_step"] > 1
    assert modes["mtp"]["drafted_per_step"] <= 2
    assert modes["mtp"]["positions"]["mtp"][0]["rate"] < 0.5
    assert result["cost"]["mtp"]["token_ms"] > 0
    assert str(head.parent) not in json.dumps(result["command"])
    first, second = result["rounds"]
    assert second["acceptance_rate"] >= first["acceptance_rate"]
    assert second["tokens"] == first["tokens"]
    assert 0 < result["drafting"]["share"] < 1
    assert set(result["calls"]) == {"suffix", "ngram"}
    for name in ("commit", "admit", "work", "put", "drop"):
        assert result["calls"]["suffix"][f"longest_{name}_ms"] > 0
    assert result["calls"]["suffix"]["soak_bytes"] <= result["calls"]["suffix"]["soak_limit_bytes"]
    shown = capsys.readouterr().out
    assert "Tokens per target step" in shown
    assert "A token drafted by mtp takes" in shown
    assert "longest commit ms" in shown


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", '{"text": "x"}\n[1]\n', "line 2: Expected `object`"),
        ("a.jsonl", '{"text": "x"}\n\n{"text"\n', "line 3: "),
        ("a.jsonl", '{"text": "x", "token_ids": [1]}', "line 1: give exactly one of text and"),
        ("a.jsonl", '{"token_ids": [-1]}', "line 1: Expected `int` >= 0"),
        ("a.pdf", "x", "is none of .txt, .jsonl"),
        ("a.npz", "x", "is not an .npz file"),
        ("missing.txt", None, "No such file"),
    ],
)
def test_a_wrong_corpus_is_refused_before_a_model_is_loaded(
    prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    name: str, content: str | None, says: str,
) -> None:  # fmt: skip
    corpus = tmp_path / name
    if content is not None:
        corpus.write_text(content, "utf-8")
    arguments = ["bench", "drafters", "--prompts", str(prompts), "--corpus", str(corpus)]
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert "model" not in shown.out
