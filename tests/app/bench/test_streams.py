"""Every way in which a server can fail is a counted failure, and the rest of the run is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.bench.client import CHAT, Place, Run, Sample, Sender, ask, run_chunk
from app.bench.stream import Answer, Fault
from app.bench.workloads import Prompt
from app.cli import main
from tests.app.bench.fake_server import MODEL, Fake, fake_server


@pytest.fixture
def fake() -> Generator[Fake]:
    with fake_server() as running:
        yield running


def asked(url: str, content: str, stall_s: float = 5.0) -> Answer:
    async def one() -> Answer:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            body = {"messages": [{"role": "user", "content": content}]}
            return await ask(client, CHAT, body, stall_s)

    return asyncio.run(one())


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        ("500", "refused", "HTTP 500: it broke"),
        ("html", "refused", "HTTP 502: <html>Bad gateway</html>"),
        ("hang up", "cut", "the connection ended"),
        ("half a chunk", "cut", "the connection ended"),
        ("cut", "cut", "ended early, after 3 events"),
        ("garbage", "malformed", "no chunk"),
        ("wrong type", "malformed", "no chunk"),
        ("negative", "malformed", "no chunk"),
        ("infinite", "malformed", "no chunk"),
        ("error event", "failed", "out of memory"),
        ("deep", "malformed", "nested too deeply"),
        ("deep error", "failed", "x"),
        ("endless line", "too_long", "longer than any answer"),
    ],
)
def test_a_failure_has_its_kind_and_says_what_happened(
    fake: Fake, content: str, kind: str, says: str
) -> None:
    with pytest.raises(Fault, match=says) as fault:
        asked(fake.url, content)
    assert fault.value.kind == kind


def test_silence_in_a_stream_is_a_stall(fake: Fake) -> None:
    with pytest.raises(Fault, match=r"nothing came for 0\.2 s") as fault:
        asked(fake.url, "stall", 0.2)
    assert fault.value.kind == "stalled"


def test_a_server_that_is_not_there_is_a_failed_connection() -> None:
    with pytest.raises(Fault) as fault:
        asked("http://127.0.0.1:9", "fine")
    assert fault.value.kind == "connection"


def test_an_answer_has_its_text_its_counts_and_a_gap_between_events(fake: Fake) -> None:
    answer = asked(fake.url, "fine")
    assert answer.text == "w0 w1 w2 w3 "
    assert (answer.tokens, answer.prompt_tokens, answer.counted) == (6, 7, True)
    assert len(answer.gaps_ms) == 3
    assert answer.ttft_ms is not None
    assert 0 < answer.ttft_ms <= answer.e2e_ms
    assert answer.ttft_ms + sum(answer.gaps_ms) <= answer.e2e_ms + 0.01


def test_events_may_come_in_any_pieces_with_any_line_ends(fake: Fake) -> None:
    answer = asked(fake.url, "lines")
    assert answer.text == "split \u2028 text"
    assert answer.tokens == 3


def test_without_usage_events_are_counted_and_that_is_said(fake: Fake) -> None:
    answer = asked(fake.url, "uncounted")
    assert (answer.tokens, answer.counted) == (5, False)


def test_a_finish_reason_ends_an_answer_also_without_done(fake: Fake) -> None:
    assert asked(fake.url, "finished, no done").tokens == 2


def test_an_answer_without_text_is_no_failure(fake: Fake) -> None:
    answer = asked(fake.url, "no text")
    assert (answer.text, answer.tokens, answer.ttft_ms) == ("", 1, None)


def test_what_another_server_calls_metrics_is_ignored(fake: Fake) -> None:
    assert asked(fake.url, "odd metrics").spec.num_spec_steps == 0


def chunk(fake: Fake, contents: list[str], **how: Any) -> list[Sample]:
    runs: list[Run] = []
    prompts = [Prompt(n, "c", (content,)) for n, content in enumerate(contents)]
    arrivals = how.pop("arrivals", None)
    concurrency = how.pop("concurrency", 2)

    async def go() -> None:
        async with httpx.AsyncClient(base_url=fake.url, trust_env=False) as client:
            sender = Sender(client, {"stream": True}, 16, **how)
            place = Place("arm", concurrency)
            await run_chunk(sender, prompts, "c", place, lambda: None, runs, arrivals)

    asyncio.run(go())
    return runs[0].samples


def test_failures_in_a_chunk_leave_the_others_as_they_are(fake: Fake) -> None:
    samples = chunk(fake, ["fine", "cut", "500", "fine"])
    assert [sample.failure for sample in samples] == [None, "cut", "refused", None]
    assert [sample.tokens for sample in samples] == [6, 0, 0, 6]
    assert [sample.order for sample in samples] == [0, 1, 2, 3]


def test_a_conversation_goes_on_with_the_answers_until_one_fails(fake: Fake) -> None:
    async def go() -> list[Sample]:
        async with httpx.AsyncClient(base_url=fake.url, trust_env=False) as client:
            prompt = Prompt(1, "c", ("fine", "fine", "cut", "fine"))
            sender = Sender(client, {}, 16, all_turns=True)
            return await sender.converse(prompt, Place("arm", 1), 0, 0.0)

    samples = asyncio.run(go())
    assert [(sample.turn, sample.failure) for sample in samples] == [
        (0, None), (1, None), (2, "cut"),
    ]  # fmt: skip
    roles = [message["role"] for message in fake.bodies[2]["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert fake.bodies[1]["messages"][1]["content"] == "w0 w1 w2 w3 "


def test_requests_arrive_at_their_times_whatever_is_still_running(fake: Fake) -> None:
    samples = chunk(fake, ["stall", "fine"], arrivals=[0.0, 0.2], concurrency=0, stall_s=0.5)
    assert [sample.failure for sample in samples] == ["stalled", None]
    assert samples[1].sent_ms >= 200
    assert samples[1].sent_ms + samples[1].e2e_ms < 500  # it did not wait for the first


def test_a_cancelled_chunk_keeps_what_was_done(fake: Fake) -> None:
    runs: list[Run] = []
    prompts = [Prompt(1, "c", ("fine",)), Prompt(2, "c", ("stall",))]

    async def go() -> None:
        async with httpx.AsyncClient(base_url=fake.url, trust_env=False) as client:
            place = Place("arm", 1)
            work = run_chunk(Sender(client, {}, 16), prompts, "c", place, done.set, runs)
            task = asyncio.create_task(work)
            await done.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    done = asyncio.Event()
    asyncio.run(go())
    assert [sample.tokens for sample in runs[0].samples] == [6]
    assert runs[0].cut


def test_a_chunk_that_is_cancelled_before_an_answer_is_no_run(fake: Fake) -> None:
    runs: list[Run] = []

    async def go() -> None:
        async with httpx.AsyncClient(base_url=fake.url, trust_env=False) as client:
            prompts = [Prompt(1, "c", ("stall",))]
            work = run_chunk(Sender(client, {}, 16), prompts, "c", Place("arm", 1), print, runs)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(work, 0.2)

    asyncio.run(go())
    assert runs == []


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("fine\nuncounted\ncut\nfine\nfine\nfine\n500\n", "utf-8")
    return path


def test_other_servers_are_arms_and_get_only_what_openai_knows(
    fake: Fake, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("PACELINE_ARM_KEY_TWO", "secret-of-two")
    monkeypatch.setenv("PACELINE_API_KEY", "ours")
    out, table = tmp_path / "out.json", tmp_path / "out.csv"
    arguments = ["bench", "--arm", f"one={fake.url}/v1", "--arm", f"two={fake.url},named"]
    arguments += ["--prompts", str(prompts), "--json", str(out), "--csv", str(table)]
    assert main([*arguments, "--html", str(tmp_path / "out.html"), "--tpot-ms", "60000"]) == 1
    result = json.loads(out.read_bytes())
    assert result["base"] == "one"
    rows = {row["mode"]: row for row in result["rows"] if row["category"] == "all"}
    assert set(rows) == {"one", "two"}
    for row in rows.values():
        assert (row["requests"], row["failed"]) == (7, 2)
        assert row["failures"] == {"cut": 1, "refused": 1}
        assert row["tokens"] == 4 * 6 + 5
        assert row["counted"] is False
        assert row["goodput_per_s"] == pytest.approx(row["tokens_per_s"])
        assert row["best_static"] is None
    assert rows["two"]["speedup"]["pairs"] == 5
    assert {body["model"] for body in fake.bodies} == {MODEL, "named"}
    asked_for = {"model", "stream", "stream_options", "temperature", "messages", "max_tokens"}
    assert all(set(body) == asked_for for body in fake.bodies)
    keys = {head.get("authorization") for head in fake.headers}
    assert keys == {None, "bearer secret-of-two"}
    text = out.read_text("utf-8") + table.read_text("utf-8") + capsys.readouterr().out
    assert "secret-of-two" not in text
    assert str(tmp_path) not in json.dumps(result)
    assert len(table.read_text("utf-8").splitlines()) == 1 + len(result["rows"])


def test_an_arm_that_does_not_answer_stops_the_run_before_it_begins(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "--arm", "gone=http://127.0.0.1:9", "--prompts", str(prompts)]
    assert main(arguments) == 3
    assert "Arm gone (http://127.0.0.1:9) cannot be reached" in capsys.readouterr().err
