"""The reader's side of the engine: no request and no library's failure ends it or is lost."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.admission import MOST_PER_TENANT, THREADS, THREADS_PER_TENANT, Admission
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

    def __init__(
        self,
        target: Target,
        constrain: Callable[[Sampling], None],
        knows: Callable[[Grammar], bool] = lambda grammar: False,
    ) -> None:
        limits = Limits(1024, 1024, 8, 49_152)
        intake = Intake(target.text, limits, frozenset({0}), lambda name: True, constrain, knows)
        self.taken: list[Request | Cancel | Failed] = []
        self._changed = threading.Condition()
        self.admission = Admission(intake, self._take, self._take)

    def submit(self, name: str, grammar: Grammar | None = WORD, tenant: str = "t") -> None:
        sampling = Sampling(max_tokens=4, grammar=grammar)
        self.admission.submit(Submit(name, sampling, prompt="Hi", tenant=tenant))

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


# --- whose turn it is ---------------------------------------------------------------------------

SLOW = Grammar("regex", "slow")


class Gate:
    """Stands for the compiler: what is slow takes until the gate opens."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun: list[str] = []

    def __call__(self, sampling: Sampling) -> None:
        if sampling.grammar is None:
            return
        self.begun.append(sampling.grammar.source)
        if sampling.grammar.source.startswith("slow"):
            assert self.open.wait(30)


def names(messages: list[Request | Cancel | Failed]) -> list[str]:
    return [message.name for message in messages if isinstance(message, Request)]


def test_slow_grammars_of_one_tenant_keep_no_other_waiting(target: Target) -> None:
    gate = Gate()
    door = Door(target, gate)
    for number in range(6):
        door.submit(f"bomb-{number}", SLOW, "greedy")
    door.submit("innocent", WORD, "other")
    door.submit("innocent too", WORD, "third")
    assert names(door.await_taken(2)) == ["innocent", "innocent too"]
    assert gate.begun.count("slow") <= THREADS_PER_TENANT
    gate.open.set()
    assert len(names(door.await_taken(8))) == 8


def test_tenants_are_served_in_turn(target: Target) -> None:
    gate = Gate()
    door = Door(target, gate)
    for number in range(THREADS):
        door.submit(f"hold-{number}", SLOW, f"holder-{number}")
    for tenant in "abc":
        for number in range(3):
            door.submit(f"{tenant}{number}", Grammar("regex", f"slow {tenant}{number}"), tenant)
    gate.open.set()
    door.await_taken(THREADS + 9)
    order = [source[-2:] for source in gate.begun if source != "slow"]
    assert {tenant for tenant, _ in order[:3]} == set("abc")
    assert [name for name in order if name[0] == "b"] == ["b0", "b1", "b2"]


def test_a_tenant_with_too_many_waiting_grammars_is_refused_and_others_are_not(
    target: Target,
) -> None:
    gate = Gate()
    door = Door(target, gate)
    for number in range(MOST_PER_TENANT + THREADS_PER_TENANT + 3):
        door.submit(f"bomb-{number}", SLOW, "greedy")
    refused = [m for m in door.await_taken(1) if isinstance(m, Failed)]
    assert {message.code for message in refused} == {"queue_full"}
    assert f"{MOST_PER_TENANT} of your requests" in refused[0].message
    door.submit("innocent", WORD, "other")
    door.submit("plain", None, "greedy")
    assert set(names(door.await_taken(len(refused) + 2))) == {"innocent", "plain"}
    gate.open.set()
    door.await_taken(MOST_PER_TENANT + THREADS_PER_TENANT + 5)


def test_a_grammar_that_is_known_waits_for_no_thread(target: Target) -> None:
    gate = Gate()
    door = Door(target, gate, lambda grammar: grammar == WORD)
    for number in range(6):
        door.submit(f"bomb-{number}", SLOW, f"tenant-{number}")
    door.submit("known", WORD, "tenant-0")
    assert names(list(door.taken)) == ["known"]
    gate.open.set()
    door.await_taken(7)


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


def test_a_refused_call_names_the_field_at_fault() -> None:
    class Refusing:
        def __getattr__(self, name: str) -> Any:
            raise RequestError("bad_setting", "not so.", "drafter")

    refusing: Any = Refusing()
    outbox = Outbox()
    reply(Call(7, GetReport()), refusing, refusing, outbox)
    assert answers(outbox) == [Reply(7, None, "bad_setting", "not so.", "drafter")]


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


def test_a_source_that_took_too_long_is_refused_at_once_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler = Compiler(lambda: DEFINITION, byte_ids, SIZE, ENDS, seconds=1.0)
    bomb = Grammar("regex", "b+")
    try:
        compiler.constraint(Sampling(grammar=WORD))
        trials = [compiler._trials.get() for _ in range(MAX_TRIALS)]
        for trial in trials:
            if trial is not None:
                os.kill(trial._process.pid, signal.SIGSTOP)  # it answers no more
        for trial in sorted(trials, key=lambda trial: trial is None):
            compiler._trials.put(trial)
        with pytest.raises(RequestError, match="takes more than"):
            compiler.constraint(Sampling(grammar=bomb))
        assert compiler.knows(bomb)
        tried: list[Grammar] = []
        monkeypatch.setattr(compiler, "_try", lambda grammar: tried.append(grammar) or panic())
        with pytest.raises(RequestError, match="less than 5 minutes ago"):
            compiler.constraint(Sampling(grammar=bomb))
        assert tried == []
        monkeypatch.setattr("engine.compiler.time.monotonic", lambda: 1e12)
        assert not compiler.knows(bomb)
    finally:
        compiler.close()


def test_a_grammar_that_is_only_wrong_is_not_remembered_and_a_compiled_one_is_known() -> None:
    compiler = Compiler(lambda: DEFINITION, byte_ids, SIZE, ENDS)
    try:
        with pytest.raises(RequestError):
            compiler.constraint(Sampling(grammar=Grammar("regex", "(((")))
        assert not compiler.knows(Grammar("regex", "((("))
        assert not compiler.knows(WORD)
        assert compiler.constraint(Sampling(grammar=WORD)) is not None
        assert compiler.knows(WORD)
    finally:
        compiler.close()
