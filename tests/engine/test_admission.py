"""The reader's side of the engine: no request and no library's failure ends it or is lost."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.admission import Admission
from engine.build import Target
from engine.compiler import MAX_TRIALS, Compiler
from engine.errors import RequestError
from engine.frames import Connection, encode
from engine.grammar_trial import Trial
from engine.intake import Intake, Limits
from engine.outbox import Outbox
from engine.request import Request
from engine.traffic import Inbox, read, reply
from engine.wire import (
    Call,
    Cancel,
    Failed,
    FromEngine,
    GetReport,
    Grammar,
    Reply,
    Sampling,
    Submit,
    Tokenize,
)
from tests.engine.test_grammar import DEFINITION, ENDS, SIZE
from tests.engine.test_grammar import encode as byte_ids

WORD = Grammar("regex", "[a-z]+")


class PanicException(BaseException):
    """What pyo3 makes of a panic of a Rust library: no Exception."""


def panic(*given: object) -> Any:
    raise PanicException("index out of bounds")


class Door:
    """An Admission over the real Intake; `constrain` stands for the compiler."""

    def __init__(self, target: Target, constrain: Callable[[Sampling], None]) -> None:
        limits = Limits(1024, 1024, 8, 49_152)
        intake = Intake(target.text, limits, frozenset({0}), lambda name: True, constrain)
        self.taken: list[Request | Cancel | Failed] = []
        self._changed = threading.Condition()
        self.admission = Admission(intake, self._take, self._take)

    def submit(self, name: str, grammar: Grammar | None = WORD) -> None:
        self.admission.submit(Submit(name, Sampling(max_tokens=4, grammar=grammar), prompt="Hi"))

    def await_taken(self, count: int) -> list[Request | Cancel | Failed]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.taken) >= count, 30)
            return list(self.taken)

    def _take(self, message: Request | Cancel | Failed) -> None:
        with self._changed:
            self.taken.append(message)
            self._changed.notify_all()


class Gap:
    """A lock; whenever a grammar thread has let go of it, the reader gets its turn at once."""

    def __init__(self, reader: Callable[[], None]) -> None:
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()
        self._reader = reader
        self._busy = threading.local()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *given: object) -> None:
        self._lock.release()
        worker = threading.current_thread().name.startswith("grammar-")
        if not worker or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            self._reader()
        except BaseException as error:
            self.errors.append(error)
        finally:
            self._busy.now = False


def test_a_cancel_may_come_between_any_two_steps_of_a_grammar_thread(target: Target) -> None:
    door = Door(target, lambda sampling: None)
    gap: Any = Gap(lambda: door.admission.cancel(Cancel("a")))
    door.admission._lock = gap
    door.submit("a")
    taken = door.await_taken(3)
    assert gap.errors == []
    assert [type(message) for message in taken[:2]] == [Request, Cancel]
    door.submit("b")
    door.await_taken(len(taken) + 1)
    assert gap.errors == []


@pytest.mark.parametrize("grammar", [None, WORD])
def test_a_panic_of_a_library_fails_its_request_and_the_next_one_is_served(
    target: Target, grammar: Grammar | None
) -> None:
    panics = [True] * 3  # more than there are grammar threads

    def constrain(sampling: Sampling) -> None:
        if panics and panics.pop():
            panic()

    door = Door(target, constrain)
    for name in ("a", "b", "c"):
        door.submit(name, grammar)
    failed = [m for m in door.await_taken(3) if isinstance(m, Failed)]
    assert {(m.id, m.code) for m in failed} == {(name, "internal") for name in "abc"}
    door.submit("a", grammar)  # the id is free again
    assert isinstance(door.await_taken(4)[3], Request)


def answers(outbox: Outbox) -> list[FromEngine]:
    outbox.close()
    found: list[FromEngine] = []
    while frame := outbox.take(0):
        found.append(msgspec.msgpack.decode(frame[4:], type=FromEngine))
    return found


@pytest.mark.parametrize("body", [Tokenize("x"), GetReport()])
def test_a_call_that_panics_is_answered(body: Tokenize | GetReport) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            return panic()

    broken: Any = Broken()
    outbox = Outbox()
    reply(Call(7, body), broken, broken, outbox)
    assert answers(outbox) == [Reply(7, None, "internal", "the engine failed to answer.")]


def test_whatever_ends_the_reader_closes_the_inbox() -> None:
    class Broken:
        def receive(self) -> None:
            panic()

    broken: Any = Broken()
    unused: Any = None
    inbox = Inbox(2)
    with pytest.raises(PanicException):
        read(broken, unused, unused, unused, inbox, Outbox())
    assert inbox.closed


def test_a_reader_serves_on_after_a_panic(target: Target) -> None:
    limits = Limits(1024, 1024, 8, 49_152)
    intake = Intake(target.text, limits, frozenset(), lambda name: True, panic)
    ours, theirs = socket.socketpair()
    inbox, outbox, engine = Inbox(8), Outbox(), None
    with ours:
        ours.sendall(encode(Submit("a", Sampling(), prompt="Hi")) + encode(Cancel("a")))
        ours.shutdown(socket.SHUT_WR)
        read(Connection(theirs), intake, target.text, engine, inbox, outbox)  # pyright: ignore[reportArgumentType]
    assert answers(outbox) == [Failed("a", "internal", "the request could not be read.")]
    assert inbox.get(0) == Cancel("a")


# --- trials of grammars -------------------------------------------------------------------------


def squeeze(trial: Trial) -> None:
    """Leave a trial process no more memory, as if earlier grammars had taken it."""
    resource.prlimit(trial._process.pid, resource.RLIMIT_DATA, (0, 0))


def test_a_sound_grammar_is_not_refused_for_the_memory_that_earlier_ones_took() -> None:
    compiler = Compiler(lambda: DEFINITION, byte_ids, SIZE, ENDS)
    big = Grammar("regex", "|".join(f"w{i}.*x{i}" for i in range(9000)))
    try:
        for source in "abcd"[:MAX_TRIALS]:
            compiler.constraint(Sampling(grammar=Grammar("regex", source)))
        for _ in range(MAX_TRIALS):
            trial = compiler._trials.get()
            assert trial is not None
            squeeze(trial)
            compiler._trials.put(trial)
        assert compiler.constraint(Sampling(grammar=big)) is not None
        hostile = Grammar("regex", "(" * 50_000 + "a" + ")" * 50_000)
        with pytest.raises(RequestError, match="regex"):
            compiler.constraint(Sampling(grammar=hostile))
    finally:
        compiler.close()
