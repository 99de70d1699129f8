"""What an engine records: whole lines, bounded, without text, and nothing when nobody asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.simulate.recorded_texts import recorded_texts
from controller.simulate.recording import read_recording
from engine.calls import answer
from engine.errors import RequestError
from engine.outbox import Outbox
from engine.recorder import PART_BYTES, Recorder
from engine.traffic import reply
from engine.wire import Call, FromEngine, Recorded, Reply, StartRecording, StopRecording
from tests.engine.scripted import Harness, ScriptedDrafter

NO_TEXT: Any = None
START = StartRecording("20260101-000000-abcd", 60.0, 10_000_000)


def count_up(token: int, position: int) -> list[float]:
    return [1.0 if k == (token + 1) % 26 else 0.0 for k in range(26)]


def two_right(tokens: list[int], length: int) -> list[int]:
    """Of each draft the first two tokens are right."""
    return [(tokens[-1] + 1 + place) % 26 if place < 2 else 0 for place in range(length)]


def serving() -> Harness:
    drafters = [ScriptedDrafter(two_right, "ngram")]
    return Harness(26, count_up, drafters, lambda step, request, names: ("ngram", 4))


def start(harness: Harness, body: StartRecording = START) -> None:
    events: list[Any] = harness.events
    harness.engine.recorder.start(body, events.append)


def parts(harness: Harness) -> list[Recorded]:
    events: list[Any] = harness.events
    return [one for one in events if isinstance(one, Recorded)]


def lines(harness: Harness) -> list[dict[str, Any]]:
    whole = b"".join(part.lines for part in parts(harness))
    assert whole.endswith(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


def test_while_nobody_records_nothing_is_sent_or_kept() -> None:
    harness = serving()
    harness.add([1], 30)
    harness.drain()
    harness.engine.recorder.tick()
    assert parts(harness) == []
    assert harness.engine.recorder._lines == []


def test_a_recording_tells_arrivals_steps_and_ends(tmp_path: Path) -> None:
    harness = serving()
    start(harness)
    first, second = harness.add([1, 2, 3], 31), harness.add([4], 1)
    harness.drain()
    answer(StopRecording(), harness.engine, NO_TEXT)
    assert [part.end for part in parts(harness)][-1] == "stopped"
    found = lines(harness)
    arrived = [one["arrived"] for one in found if "arrived" in one]
    assert arrived == [{"request": first.id, "prompt": 3}, {"request": second.id, "prompt": 1}]
    done = [one["finished"] for one in found if "finished" in one]
    assert done == [{"request": second.id, "output": 1}, {"request": first.id, "output": 31}]
    steps = [one for one in found if "requests" in one]
    assert len(steps) == 10
    assert steps[0]["requests"] == [
        {
            "request": first.id, "context": 4, "drafter": "ngram", "drafted": 4, "accepted": 2,
            "committed": 3, "match": 1,
        }
    ]  # fmt: skip
    assert all(one["verify_ms"] > 0.0 and one["s"] >= 0.0 for one in steps)
    path = tmp_path / "run.jsonl"
    path.write_text('{"recording": 2}\n' + "".join(json.dumps(one) + "\n" for one in found))
    long, short = recorded_texts(read_recording(path), 0)
    assert (long.prompt, long.length, short.prompt, short.length) == (3, 31, 1, 1)
    assert long.accepted["ngram"][1:9].tolist() == [2, 1, 0] * 2 + [2, 1]


def test_nothing_of_a_text_or_of_who_sent_it_is_recorded() -> None:
    harness = serving()
    start(harness)
    request = harness.add([1], 20)
    request.tenant = "somebody"
    harness.drain()
    answer(StopRecording(), harness.engine, NO_TEXT)
    whole = b"".join(part.lines for part in parts(harness)).decode()
    assert request.name not in whole
    assert "somebody" not in whole
    assert not {"tokens", "text", "tenant", "name"} & set(whole.split('"'))


def test_a_recorded_run_emits_what_it_emits_without() -> None:
    texts = []
    for recorded in (False, True):
        harness = serving()
        if recorded:
            start(harness)
        request = harness.add([1], 50)
        harness.drain()
        texts.append((request.tokens, harness.executor.forwards))
    assert texts[0] == texts[1]


def test_a_recording_ends_at_its_size_with_whole_lines_and_serving_goes_on() -> None:
    harness = serving()
    start(harness, StartRecording("x", 60.0, 2_000))
    request = harness.add([1], 200)
    harness.drain()
    found = parts(harness)
    assert [part.end for part in found] == ["size"]
    assert 1_000 < sum(len(part.lines) for part in found) <= 2_000
    assert len(lines(harness)) > 5
    assert request.produced == 200


class Clock:
    now = 5.0

    def __call__(self) -> float:
        return self.now


def test_a_recording_ends_at_its_time_also_while_nothing_runs() -> None:
    sent: list[Recorded] = []
    clock = Clock()
    recorder = Recorder(clock)
    recorder.start(StartRecording("x", 10.0, 1_000), sent.append)
    clock.now = 14.9
    recorder.tick()
    assert recorder.running
    clock.now = 15.0
    recorder.tick()
    assert [one.end for one in sent] == ["duration"]
    assert not recorder.running


def test_lines_are_sent_in_parts_and_at_every_tick() -> None:
    harness = serving()
    start(harness)
    for _ in range(40):
        harness.add([1], 120)
    harness.drain()
    before = parts(harness)
    assert len(before) > 1
    assert all(PART_BYTES <= len(part.lines) < PART_BYTES + 10_000 for part in before)
    harness.engine.recorder.tick()
    (last,) = parts(harness)[len(before) :]
    assert 0 < len(last.lines) < PART_BYTES
    harness.engine.recorder.tick()
    assert parts(harness)[-1] is last


def test_one_recording_runs_at_a_time_within_bounds() -> None:
    harness = serving()
    for field, body in {
        "seconds": StartRecording("x", 0.0, 1_000),
        "limit_bytes": StartRecording("x", 1.0, 2**40),
    }.items():
        with pytest.raises(RequestError, match=field) as said:
            start(harness, body)
        assert said.value.param == field
    answer(StopRecording(), harness.engine, NO_TEXT)
    start(harness)
    with pytest.raises(RequestError, match="runs already"):
        start(harness)
    answer(StopRecording(), harness.engine, NO_TEXT)
    start(harness)


def test_the_loop_answers_the_call_and_sends_the_parts() -> None:
    harness, outbox = serving(), Outbox()
    reply(Call(7, START), harness.engine, NO_TEXT, outbox)
    harness.add([1], 10)
    harness.drain()
    reply(Call(8, StopRecording()), harness.engine, NO_TEXT, outbox)
    outbox.close()
    frames = iter(lambda: outbox.take(0.0), None)
    found = [msgspec.msgpack.decode(frame[4:], type=FromEngine) for frame in frames]
    first, recorded, last = found
    assert (first, last) == (Reply(7, {}), Reply(8, {}))
    assert isinstance(recorded, Recorded)
    assert (recorded.name, recorded.end) == (START.name, "stopped")


def test_a_fault_of_the_recorder_ends_the_recording_and_no_request() -> None:
    harness = serving()
    start(harness)

    def broken(line: object) -> bytes:
        raise TypeError("no such line")

    request = harness.add([1], 20)
    harness.engine.recorder._encode = broken
    harness.drain()
    assert [part.end for part in parts(harness)] == ["failed"]
    assert request.produced == 20


def test_an_end_that_cannot_be_sent_is_said_and_another_recording_can_begin() -> None:
    sent: list[Recorded] = []

    def narrow(recorded: Recorded) -> None:
        if recorded.lines:
            raise RequestError("invalid_request", "no frame can hold it")
        sent.append(recorded)

    recorder = Recorder()
    recorder.start(START, narrow)
    recorder.arrived(serving().add([1], 10))
    recorder.stop()
    assert [one.end for one in sent] == ["failed"]
    assert not recorder.running
    recorder.start(START, narrow)
    recorder.stop()
    assert [one.end for one in sent] == ["failed", "stopped"]


def test_an_engine_that_has_ended_its_recording_says_nothing_more() -> None:
    sent: list[Recorded] = []
    recorder = Recorder()
    recorder.start(StartRecording("x", 60.0, 60), sent.append)
    harness = serving()
    for _ in range(5):
        recorder.arrived(harness.add([1], 10))
    assert [one.end for one in sent] == ["size"]
