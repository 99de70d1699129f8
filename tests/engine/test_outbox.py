"""What waits for a slow client is bounded, and nothing of it is lost."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable

import msgspec
import pytest

from engine import frames
from engine.errors import RequestError
from engine.frames import BadFrame, Connection, encode
from engine.outbox import Outbox, Pulse
from engine.traffic import Inbox, write
from engine.wire import (
    Call,
    Cancel,
    Delta,
    Deltas,
    Failed,
    FromEngine,
    GetReport,
    Heartbeat,
    Piece,
    PromptLogprobs,
    Reply,
    Sampling,
    Submit,
)


def delta(step: int) -> Deltas:
    text = "x" * 200
    return Deltas((Delta("a", text, (Piece(1, text, "plain"),), step, "none", 0, 0),))


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_client_that_does_not_read_stops_the_producer_and_gets_everything_later() -> None:
    limit, steps = 10_000, 5_000
    outbox, inbox, produced = Outbox(limit), Inbox(1), list[int]()
    ours, theirs = socket.socketpair()

    def produce() -> None:
        for step in range(steps):
            assert outbox.room(20)
            outbox.put(delta(step))
            produced.append(step)

    threads = [
        threading.Thread(target=write, args=(Connection(ours), outbox, Pulse(), inbox)),
        threading.Thread(target=produce),
    ]
    for thread in threads:
        thread.start()

    def stopped() -> bool:
        before = len(produced)
        time.sleep(0.1)
        return outbox.full and len(produced) == before

    eventually(stopped)
    assert len(produced) < steps
    assert outbox.size <= limit + len(encode(delta(steps)))
    seen: list[int] = []
    with theirs.makefile("rb") as stream:
        while len(seen) < steps:
            (length,) = struct.unpack(">I", stream.read(4))
            message = msgspec.msgpack.decode(stream.read(length), type=FromEngine)
            if isinstance(message, Deltas):
                seen.append(message.items[0].step)
    assert seen == list(range(steps))
    outbox.close()
    for thread in threads:
        thread.join(20)
    assert inbox.closed
    ours.close()
    theirs.close()


def test_a_client_that_takes_nothing_for_too_long_counts_as_gone() -> None:
    outbox = Outbox(10)
    outbox.put(delta(0))
    assert outbox.full
    assert not outbox.room(0.01)


def test_what_waits_when_it_closes_can_still_be_taken() -> None:
    outbox = Outbox()
    outbox.put(delta(0))
    outbox.close()
    assert outbox.take(0) == encode(delta(0))
    assert outbox.take(0) is None
    assert outbox.size == 0


def test_an_answer_that_no_frame_holds_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100)
    outbox = Outbox()
    with pytest.raises(RequestError, match="fewer log probabilities"):
        outbox.put(PromptLogprobs("a" * 200, ()))
    with pytest.raises(
        RequestError, match=r"cannot be sent: a Reply of [\d,]+ bytes is above 100\.$"
    ):
        outbox.put(Reply(1, "a" * 200))
    assert outbox.size == 0


def test_heartbeats_do_not_depend_on_the_loop() -> None:
    outbox, pulse, inbox = Outbox(), Pulse(), Inbox(1)
    ours, theirs = socket.socketpair()
    writer = threading.Thread(target=write, args=(Connection(ours), outbox, pulse, inbox))
    pulse.begin(7)
    writer.start()
    found: list[Heartbeat] = []
    with theirs.makefile("rb") as stream:
        while len(found) < 3:
            (length,) = struct.unpack(">I", stream.read(4))
            found.append(msgspec.msgpack.decode(stream.read(length), type=Heartbeat))
    times = [beat.step_ms for beat in found]
    assert [beat.step for beat in found] == [7, 7, 7]
    assert None not in times
    assert times == sorted(times, key=lambda ms: ms or 0.0)
    pulse.rest()
    assert pulse.read() == Heartbeat(7, None)
    outbox.close()
    writer.join(20)
    ours.close()
    theirs.close()


def test_the_inbox_holds_its_reader_back_and_wakes_a_loop_when_the_client_goes() -> None:
    inbox = Inbox(2)
    reader = threading.Thread(target=lambda: [inbox.put(Cancel(str(i))) for i in range(5)])
    reader.start()
    got = [inbox.get(20) for _ in range(5)]
    reader.join(20)
    assert got == [Cancel(str(i)) for i in range(5)]
    woken: queue.Queue[object] = queue.Queue()
    waiting = threading.Thread(target=lambda: woken.put(inbox.get(600)))
    waiting.start()
    inbox.close()
    assert woken.get(timeout=20) is None
    assert inbox.closed


def received(*raw: bytes) -> tuple[Connection, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"".join(raw))
    theirs.shutdown(socket.SHUT_WR)
    return Connection(ours), theirs


def framed(value: object) -> bytes:
    body = msgspec.msgpack.encode(value)
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ({"type": "submit", "id": "a", "sampling": {"top_k": "many"}}, Failed),
        ({"type": "call", "call": 3, "body": {"type": "unheard"}}, Reply),
        ({"type": "unheard"}, None),
        ([1, 2, 3], None),
        (17, None),
    ],
)
def test_a_malformed_message_is_answered_when_it_has_a_name_and_the_stream_goes_on(
    value: object, answer: type | None
) -> None:
    good = Submit("b", Sampling(), prompt="x")
    connection, _ = received(framed(value), encode(good), encode(Call(1, GetReport())))
    with pytest.raises(BadFrame) as caught:
        connection.receive()
    assert type(caught.value.answer) is (answer or type(None))
    assert connection.receive() == good
    assert connection.receive() == Call(1, GetReport())
    assert connection.receive() is None


@pytest.mark.parametrize("raw", [b"", b"\x00\x00", b"\x00\x00\x00\x09abc"])
def test_half_a_frame_is_the_end(raw: bytes) -> None:
    connection, _ = received(raw)
    assert connection.receive() is None


def test_an_oversize_frame_is_refused_before_it_is_read() -> None:
    connection, _ = received(b"\xff\xff\xff\xff")
    with pytest.raises(ConnectionError, match="4294967295 bytes"):
        connection.receive()


def test_a_number_that_msgpack_cannot_hold_is_an_error_of_its_sender() -> None:
    with pytest.raises(ValueError, match="ints"):
        encode(Submit("a", Sampling(seed=2**70), prompt="x"))


def test_closing_ends_a_reader_and_tells_the_other_side() -> None:
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    got: queue.Queue[object] = queue.Queue()
    reader = threading.Thread(target=lambda: got.put(connection.receive()))
    reader.start()
    time.sleep(0.05)
    connection.close()
    theirs.settimeout(20)
    assert theirs.recv(1) == b""
    assert got.get(timeout=20) is None
    theirs.close()
