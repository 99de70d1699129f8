"""The engine process dies, refuses to start, or loads slowly; the API stays up and says so."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from engine.child import Child
from engine.client import MOST_STARTS, EngineCallError, EngineClient, EngineStartError
from engine.config import EngineConfig
from engine.log_files import older
from engine.recovery import Backoff
from engine.wire import (
    Failed,
    Finished,
    GetCorpora,
    LoadDrafter,
    Progress,
    Sampling,
    SetController,
    SetDrafter,
    Snapshot,
    Submit,
    UnloadDrafter,
)
from tests.app.conftest import MODEL, PROGRAM, eventually, running_api
from tests.app.test_responses import create, receive, socket, until_end


def client(
    tmp_path: Path, model: str = MODEL, patience_s: float = 60.0, **hooks: Any
) -> EngineClient:
    """patience_s: with an engine that says nothing; short only where that is what is tested, since
    any process may get no time for seconds on a busy machine."""
    hooks.setdefault("on_snapshot", lambda snapshot: None)
    config = EngineConfig(
        model=model,
        cache_dir=str(tmp_path / "go"),
        silence_timeout_s=patience_s,
        step_timeout_s=patience_s,
    )
    return EngineClient(config, tmp_path / "logs" / "engine.log", command=PROGRAM, **hooks)


def submit(id: str, prompt: str = "hello") -> Submit:
    return Submit(id, Sampling(), prompt=prompt)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


def test_the_child_starts_serves_and_ends_with_the_client(tmp_path: Path):
    async def scenario() -> None:
        progress: list[Progress] = []
        ended: list[Finished | Failed] = []
        engine = client(tmp_path, on_finished=lambda _, event: ended.append(event))
        hello = await engine.start(progress.append)
        assert engine.state == "ready"
        assert [item.stage for item in progress] == ["load"]
        # Its own session: a Ctrl-C in the terminal does not reach it.
        assert os.getsid(hello.pid) == hello.pid
        events = [event async for event in engine.submit(submit("a"))]
        assert isinstance(events[-1], Finished)
        assert ended == [events[-1]]
        await engine.stop()
        await engine.stop()
        assert not alive(hello.pid)
        late = [event async for event in engine.submit(submit("b"))]
        assert isinstance(late[0], Failed)
        assert late[0].code == "draining"

    asyncio.run(scenario())


def test_nobody_else_can_connect_once_the_engine_serves(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def scenario() -> None:
        engine = client(tmp_path)
        await engine.start()
        assert not list(tmp_path.glob("paceline-*"))
        await engine.stop()

    asyncio.run(scenario())


def test_a_killed_engine_fails_running_requests_and_comes_back_with_its_settings(tmp_path: Path):
    async def scenario() -> None:
        engine = client(tmp_path)
        hello = await engine.start()
        await engine.call(SetController("pinned", "ngram", 4))
        await engine.call(SetDrafter("ngram", False))
        stream = engine.submit(submit("a", "hang"))
        await anext(stream)
        os.kill(hello.pid, signal.SIGKILL)
        failed = [event async for event in stream]
        assert isinstance(failed[-1], Failed)
        assert failed[-1].code == "engine_restarting"
        refused = [event async for event in engine.submit(submit("b"))]
        assert isinstance(refused[0], Failed)
        with pytest.raises(EngineCallError) as caught:
            await engine.call(SetController("auto"))
        assert caught.value.code == "engine_restarting"
        await until(lambda: engine.state == "ready")
        assert engine.restarts == 1
        assert engine.hello is not None
        assert engine.hello.pid != hello.pid
        seen: list[Any] = []
        engine._on_snapshot = seen.append
        await until(lambda: seen)
        assert seen[-1].controller.mode == "pinned"
        assert seen[-1].controller.draft_length == 4
        assert not seen[-1].drafters[1].enabled
        events = [event async for event in engine.submit(submit("c"))]
        assert isinstance(events[-1], Finished)
        await engine.stop()

    asyncio.run(scenario())


def test_a_drafter_that_kills_every_engine_at_its_start_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("engine.client.Backoff", partial(Backoff, 0.01, 0.02))

    async def scenario() -> None:
        engine = client(tmp_path)
        hello = await engine.start()
        await engine.call(LoadDrafter("mtp", "deadly"))
        os.kill(hello.pid, signal.SIGKILL)
        await until(lambda: engine.restarts == 1 and engine.state == "ready")
        events = [event async for event in engine.submit(submit("a"))]
        assert isinstance(events[-1], Finished)
        assert engine.hello is not None
        os.kill(engine.hello.pid, signal.SIGKILL)
        await until(lambda: engine.restarts == 2 and engine.state == "ready")
        await engine.stop()

    asyncio.run(scenario())
    assert caplog.text.count("the engine did not restart") == MOST_STARTS
    assert caplog.text.count("without the drafters loaded meanwhile") == 1


def test_a_setting_that_a_restarted_engine_refuses_is_told_and_forgotten_but_its_limits_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    refused: list[tuple[Any, str]] = []

    async def scenario() -> None:
        seen: list[Snapshot] = []
        engine = client(
            tmp_path,
            on_snapshot=seen.append,
            on_refused=lambda setting, error: refused.append((setting, error.code)),
        )
        hello = await engine.start()
        await engine.call(LoadDrafter("mtp", "gone"))  # StartFailed, so that it is left out
        await engine.call(SetDrafter("mtp", False))
        await engine.call(SetController("pinned", "mtp", None, ((4, 2),), None, 30.5))
        os.kill(hello.pid, signal.SIGKILL)
        await until(lambda: engine.restarts == 1 and engine.state == "ready")
        seen.clear()
        await until(lambda: seen)
        now = seen[-1].controller
        assert (now.mode, now.drafter, now.schedule, now.tpot_target_ms) == ("auto", None, (), 30.5)
        assert engine.hello is not None
        os.kill(engine.hello.pid, signal.SIGKILL)
        await until(lambda: engine.restarts == 2 and engine.state == "ready")
        seen.clear()
        await until(lambda: seen)
        assert (seen[-1].controller.mode, seen[-1].controller.tpot_target_ms) == ("auto", 30.5)
        await engine.stop()

    asyncio.run(scenario())
    pin = SetController("pinned", "mtp", None, ((4, 2),), None, 30.5)
    assert refused == [
        (SetDrafter("mtp", False), "unknown_drafter"),
        (pin, "unknown_drafter"),
    ]
    assert caplog.text.count("the restarted engine did not take") == 2
    assert "drafter mtp is not loaded." in caplog.text


def test_an_engine_that_dies_while_it_is_given_its_settings_is_followed_by_one_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("engine.client.Backoff", partial(Backoff, 0.01, 0.02))
    honest = Child.send
    kill = [True]

    def send(self: Child, message: Any) -> None:
        if isinstance(getattr(message, "body", None), SetController) and kill:
            kill.clear()
            os.kill(self.pid, signal.SIGKILL)
        honest(self, message)

    async def scenario() -> None:
        seen: list[Snapshot] = []
        engine = client(tmp_path, on_snapshot=seen.append)
        hello = await engine.start()
        await engine.call(SetController("pinned", "ngram", 4))
        stream = engine.submit(submit("a", "queued"))
        monkeypatch.setattr(Child, "send", send)
        os.kill(hello.pid, signal.SIGKILL)
        await until(lambda: engine.restarts == 2 and engine.state == "ready")
        seen.clear()
        await until(lambda: seen)
        assert seen[-1].controller.mode == "pinned"
        stream.cancel()
        assert isinstance([event async for event in stream][-1], Finished)
        await engine.stop()

    asyncio.run(scenario())


def test_each_start_begins_a_new_log_and_a_restart_only_when_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("engine.client.Backoff", partial(Backoff, 0.01, 0.02))
    log = tmp_path / "logs" / "engine.log"
    log.parent.mkdir()
    log.write_text("of the run before\n")

    async def die(engine: EngineClient, restarts: int) -> None:
        async for _ in engine.submit(submit(f"a{restarts}", "die")):
            pass
        await until(lambda: engine.restarts >= restarts and engine.state == "ready")

    async def scenario() -> None:
        engine = client(tmp_path)
        await engine.start()
        assert older(log).read_text() == "of the run before\n"
        await die(engine, 2)
        assert log.read_text().count("dying as told") == 2
        assert older(log).read_text() == "of the run before\n"
        monkeypatch.setattr("engine.log_files.MOST_BYTES", 10)
        await die(engine, 4)
        assert engine.death is not None
        assert engine.death.log_line is not None
        assert "dying as told" in engine.death.log_line
        assert log.read_text() == ""
        assert older(log).read_text().count("dying as told") == 1
        await engine.stop()

    asyncio.run(scenario())


def test_a_drafter_whose_load_was_not_waited_for_is_loaded_by_the_next_engine(tmp_path: Path):
    async def scenario() -> None:
        seen: list[Snapshot] = []

        def state() -> tuple[str, str] | None:
            found = next((d for s in seen[-1:] for d in s.drafters if d.name == "mtp"), None)
            return (found.model.state, found.model.source) if found and found.model else None

        engine = client(tmp_path, on_snapshot=seen.append)
        await engine.start()
        for source, wanted in (("late", ("loaded", "late")), ("", ("unloaded", ""))):
            if source:
                with pytest.raises(EngineCallError):
                    await engine.call(LoadDrafter("mtp", source))
            else:
                await engine.call(UnloadDrafter("mtp"))
            await until(lambda wanted=wanted: state() == wanted)
            assert engine.hello is not None
            seen.clear()
            os.kill(engine.hello.pid, signal.SIGKILL)
            await until(lambda: not seen and engine.state != "ready")
            await until(lambda wanted=wanted: engine.state == "ready" and state() == wanted)
        await engine.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("model", "code"), [("no-start", "model_not_found"), ("crash", "engine_died")]
)
def test_an_engine_that_cannot_start_is_an_error_and_not_restarted(
    tmp_path: Path, model: str, code: str
):
    async def scenario() -> None:
        engine = client(tmp_path, model)
        with pytest.raises(EngineStartError) as caught:
            await engine.start()
        assert caught.value.code == code
        assert engine.state == "failed"
        assert engine.pid is None
        await engine.stop()

    asyncio.run(scenario())


def test_stopping_while_it_loads_leaves_no_process(tmp_path: Path):
    async def scenario() -> None:
        engine = client(tmp_path, "late")
        task = asyncio.create_task(engine.start())
        await until(lambda: engine.pid)
        pid = engine.pid
        assert pid is not None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await engine.stop()
        assert not alive(pid)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("prompt", "kind", "reason"),
    [
        ("mute", "hang", "The engine process hung: it sent nothing for 2 s."),
        ("stuck hang", "hang", "The engine process hung: it has been running step 7 for 2"),
        ("garbage hang", "protocol", "The engine process sent what is no message: "),
        ("oversize hang", "protocol", "frame of 4294967295 bytes exceeds the limit"),
        ("half", "exit", "The engine process ended with status 0."),
    ],
)
def test_an_engine_that_hangs_or_breaks_the_contract_is_replaced(
    tmp_path: Path, prompt: str, kind: str, reason: str
):
    async def scenario() -> None:
        engine = client(tmp_path, patience_s=2.0)
        hello = await engine.start()
        stream = engine.submit(submit("a", prompt))
        await until(lambda: engine.death)
        stream.cancel()
        assert engine.death is not None
        assert engine.death.kind == kind
        assert reason in engine.death.reason
        await until(lambda: engine.state == "ready" and engine.pid != hello.pid)
        assert not alive(hello.pid)
        assert isinstance([event async for event in engine.submit(submit("b"))][-1], Finished)
        await engine.stop()

    asyncio.run(scenario())


def test_a_stopped_process_is_killed_and_its_request_is_retried(tmp_path: Path):
    async def scenario() -> None:
        engine = client(tmp_path, patience_s=2.0)
        hello = await engine.start()
        os.kill(hello.pid, signal.SIGSTOP)
        stream = engine.submit(submit("a"))
        assert isinstance([event async for event in stream][-1], Finished)
        assert engine.death is not None
        assert engine.death.kind == "hang"
        assert not alive(hello.pid)
        await engine.stop()

    asyncio.run(scenario())


def test_an_engine_that_reads_nothing_refuses_new_requests_and_takes_them_later(tmp_path: Path):
    async def scenario() -> None:
        engine = client(tmp_path)
        hello = await engine.start()
        os.kill(hello.pid, signal.SIGSTOP)
        sent = 0
        while True:
            stream = engine.submit(submit(f"r{sent}", "x" * 500_000))
            if stream.waiting:
                break
            sent += 1
        refused = await anext(stream)
        assert isinstance(refused, Failed)
        assert refused.code == "queue_full"
        assert 8 <= sent <= 16, "a few megabytes wait at most"
        with pytest.raises(EngineCallError) as caught:
            await engine.call(SetController("auto"))
        assert caught.value.code == "queue_full"
        os.kill(hello.pid, signal.SIGCONT)
        await until(lambda: engine.active == 0)
        assert isinstance([event async for event in engine.submit(submit("b"))][-1], Finished)
        await engine.stop()

    asyncio.run(scenario())


def test_the_next_engine_gets_settings_first_and_requests_in_their_order_and_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sent: list[Any] = []
    honest = Child.send

    def send(self: Child, message: Any) -> None:
        if not isinstance(getattr(message, "body", None), GetCorpora):  # other servers ask for them
            sent.append(message)
        honest(self, message)

    async def scenario() -> None:
        engine = client(tmp_path)
        hello = await engine.start()
        await engine.call(SetDrafter("ngram", False))
        submits = [Submit(f"r{i}", Sampling(), prompt="queued", priority=i % 3) for i in range(6)]
        streams = [engine.submit(item) for item in submits]
        monkeypatch.setattr(Child, "send", send)
        os.kill(hello.pid, signal.SIGKILL)
        await until(lambda: len(sent) >= 7)
        assert sent[0].body == SetDrafter("ngram", False)
        assert sent[1:] == submits
        for stream in streams:
            stream.cancel()
            assert isinstance([event async for event in stream][-1], Finished)
        await engine.stop()

    asyncio.run(scenario())


def test_a_request_does_not_wait_for_ever_for_the_next_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("engine.client.RETRY_S", 0.3)

    async def scenario() -> None:
        (tmp_path / "go").touch()
        engine = client(tmp_path, "late")
        hello = await engine.start()
        (tmp_path / "go").unlink()
        stream = engine.submit(submit("a", "queued"))
        os.kill(hello.pid, signal.SIGKILL)
        (end,) = [event async for event in stream]
        assert isinstance(end, Failed)
        assert end.code == "engine_restarting"
        assert engine.state == "restarting"
        (tmp_path / "go").touch()
        await until(lambda: engine.state == "ready")
        assert isinstance([event async for event in engine.submit(submit("b"))][-1], Finished)
        await engine.stop()

    asyncio.run(scenario())


def test_a_request_cancelled_between_two_engines_ends_as_cancelled(tmp_path: Path):
    async def scenario() -> None:
        engine = client(tmp_path)
        hello = await engine.start()
        stream = engine.submit(submit("a", "queued"))
        os.kill(hello.pid, signal.SIGKILL)
        await until(lambda: engine.state == "restarting" and engine.death)
        assert engine.active == 1
        stream.cancel()
        (end,) = [event async for event in stream]
        assert isinstance(end, Finished)
        assert end.finish_reason == "cancelled"
        assert engine.active == 0
        await engine.stop()

    asyncio.run(scenario())


def test_a_refused_call_has_the_engines_code(tmp_path: Path):
    async def scenario() -> None:
        engine = client(tmp_path)
        await engine.start()
        with pytest.raises(EngineCallError) as caught:
            await engine.call(SetController("pinned", "refused"))
        assert (caught.value.code, caught.value.param) == ("bad_setting", "drafter")
        await engine.stop()

    asyncio.run(scenario())


# --- through the API ------------------------------------------------------------------------------


def test_the_api_is_live_and_not_ready_while_the_engine_loads(tmp_path: Path):
    with running_api(tmp_path, model="late", cache_dir=str(tmp_path / "go")) as api:
        http = api.client
        assert http.get("/health/live").status_code == 200
        ready = http.get("/health/ready")
        assert ready.status_code == 503
        assert ready.json()["status"] == "starting"
        assert ready.json()["detail"] == "The engine is still loading."
        refused = http.post("/v1/completions", json={"model": MODEL, "prompt": "x"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_starting"
        assert refused.headers["retry-after"]
        assert http.get("/api/state").json()["model"] is None
        assert http.get("/api/controller").status_code == 503
        assert http.get("/v1/models").status_code == 200
        (tmp_path / "go").touch()
        api.ready()


def test_an_engine_death_is_a_clear_error_and_serving_works_again(tmp_path: Path):
    with running_api(tmp_path) as api:
        api.ready()
        http = api.client
        body = {"model": MODEL, "prompt": "hang", "stream": True}
        with api.client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            first = next(lines)
            assert api.service.engine.pid is not None
            os.kill(api.service.engine.pid, signal.SIGKILL)
            parts = [first, *lines]
        assert "engine_restarting" in parts[-2] + parts[-1]
        assert "signal 9" in parts[-2] + parts[-1]
        (row,) = eventually(lambda: http.get("/api/requests").json()["requests"])
        assert row["completion_tokens"] == 2
        assert row["e2e_ms"] >= row["ttft_ms"] > 0
        assert row["finish_reason"] == "error"
        assert http.get("/health/live").status_code == 200
        api.ready()
        again = http.post("/v1/completions", json={"model": MODEL, "prompt": "hello"})
        assert again.status_code == 200
        assert http.get("/health/ready").json()["engine"]["restarts"] == 1
        assert "paceline_engine_restarts_total 1.0" in http.get("/metrics").text


def test_a_request_that_was_not_begun_is_answered_by_the_next_engine(tmp_path: Path):
    with running_api(tmp_path) as api:
        api.ready()
        body = {"model": MODEL, "prompt": f"die-once {tmp_path / 'died'}", "max_tokens": 4}
        answer = api.client.post("/v1/completions", json=body)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["text"] == "w0 w1 w2 w3 "
        assert api.service.engine.restarts == 1


def test_why_the_engine_ended_is_told_where_operators_look(tmp_path: Path):
    with running_api(tmp_path) as api:
        api.ready()
        http = api.client
        assert http.get("/api/state").json()["engine"]["last_death"] is None
        answer = http.post("/v1/completions", json={"model": MODEL, "prompt": "die"})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_restarting"
        assert "twice" in answer.json()["error"]["message"]
        ready = http.get("/health/ready")
        reason = "The engine process ended with status 9."
        assert ready.status_code == 200 or ready.json()["detail"] == reason
        death = http.get("/api/state").json()["engine"]["last_death"]
        assert (death["kind"], death["reason"]) == ("exit", reason)
        assert death["log_line"].endswith("ERROR dying as told")
        assert death["time"] > 0
        api.ready()
        assert "detail" not in http.get("/health/ready").json()
        assert http.get("/api/state").json()["engine"]["last_death"] == death


def test_a_pin_that_a_restarted_engine_refuses_is_told_where_operators_look(tmp_path: Path):
    with running_api(tmp_path) as api:
        api.ready()
        http = api.client
        assert http.post("/api/drafters/mtp/load", json={"source": "gone"}).is_success
        pin = {"mode": "pinned", "drafter": "mtp"}
        assert http.put("/api/controller", json=pin).json()["drafter"] == "mtp"
        assert api.service.engine.pid is not None
        os.kill(api.service.engine.pid, signal.SIGKILL)
        eventually(lambda: api.service.engine.restarts == 1)
        api.ready()
        eventually(lambda: http.get("/api/state").json()["controller"]["mode"] == "auto")
        setting = http.get("/api/state").json()["controller"]
        assert setting["drafter"] is None
        assert setting["set_by"] == "engine restart"
        found = eventually(
            lambda: [
                entry
                for entry in http.get("/api/audit").json()["audit"]
                if entry["actor_name"] == "engine restart"
            ]
        )
        assert (found[0]["action"], found[0]["result"]) == ("set_controller", "unknown_drafter")
        assert found[0]["after"]["drafter"] == "mtp"


def test_an_engine_that_cannot_start_is_told_and_the_api_stays_live(tmp_path: Path):
    with running_api(tmp_path, model="no-start") as api:
        (error,) = eventually(lambda: api.failed)
        assert error.code == "model_not_found"
        assert api.client.get("/health/live").status_code == 200
        ready = api.client.get("/health/ready").json()
        assert ready["status"] == "failed"
        assert ready["detail"] == "There is no model here. Give another."
        refused = api.client.post("/v1/completions", json={"model": MODEL, "prompt": "x"})
        assert refused.json()["error"]["code"] == "engine_failed"


def test_a_setting_that_the_engine_refuses_is_a_failed_start(tmp_path: Path):
    with running_api(tmp_path, mode="pinned", drafter="refused") as api:
        (error,) = eventually(lambda: api.failed)
        assert error.message == "The engine refused --mode pinned: The setting was refused."
        assert api.client.get("/health/ready").status_code == 503


def test_a_shutdown_lets_running_answers_finish_and_refuses_new_ones(tmp_path: Path):
    with running_api(tmp_path) as api:
        api.ready()
        api.service.drain_s = 60.0
        gate = tmp_path / "go"
        body = {"model": MODEL, "prompt": f"gate {gate}", "max_tokens": 60, "stream": True}
        with api.client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            api.shut_down()
            eventually(lambda: api.service.draining)
            refused = api.client.post("/v1/completions", json={"model": MODEL, "prompt": "x"})
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "draining"
            gate.touch()
            rest = list(lines)
        assert "data: [DONE]" in rest
    assert api.service.engine.pid is None


def test_a_shutdown_cancels_what_does_not_finish_in_time(tmp_path: Path):
    with running_api(tmp_path) as api:
        api.ready()
        api.service.drain_s = 0.3
        body = {"model": MODEL, "prompt": "hang", "stream": True}
        with api.client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            api.shut_down()
            rest = list(lines)
        assert "draining" in "".join(rest)


def test_a_shutdown_lets_a_websocket_answer_finish_and_closes_it_with_1012(tmp_path: Path):
    with running_api(tmp_path) as api:
        api.ready()
        api.service.drain_s = 60.0
        with socket(api) as connection:
            create(connection, "slow", max_output_tokens=60)
            receive(connection)
            api.shut_down()
            assert until_end(connection)[-1]["type"] == "response.incomplete"
            with pytest.raises(ConnectionClosed) as caught:
                receive(connection)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1012


def test_a_locked_database_degrades_storage_and_not_serving(tmp_path: Path):
    with running_api(tmp_path) as api:
        api.ready()
        lock = sqlite3.connect(tmp_path / "paceline.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        try:
            eventually(lambda: api.client.get("/health/ready").json()["database"] == "degraded", 60)
            answer = api.client.post("/v1/completions", json={"model": MODEL, "prompt": "x"})
            assert answer.status_code == 200
            assert api.client.get("/health/ready").status_code == 200
            assert api.client.get("/api/decisions?limit=1").status_code == 200
            made = api.client.post("/api/keys", json={"name": "x", "scopes": ["inference"]})
            assert made.status_code == 503
            assert made.json()["code"] == "database_unavailable"
        finally:
            lock.close()
        eventually(lambda: api.client.get("/health/ready").json()["database"] == "ok", 60)
