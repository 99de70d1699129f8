"""Tries a new grammar in a process of its own: `python -m engine.grammar_trial FD`.

A hostile source can make a compiler hang, fill the memory or overflow its stack. Here that ends a
process that serves nobody: it works at low priority, on a quarter of the stack that the engine's
threads have, with bounded memory, and it is killed when its time is over. It imports neither
torch nor transformers."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from engine.notation import (
    GrammarError,
    TokenBytes,
    open_vocabulary,
    token_bytes,
    translate,
    walk,
)
from engine.wire import Grammar

START_SECONDS = 60.0
"""To import the library and to read a vocabulary."""

EXTRA_BYTES = 512 * 1024 * 1024
"""Address space that trials may take beyond the vocabulary."""

STACK_BYTES = 2 * 1024 * 1024
NICENESS = 5


class TooCostly(GrammarError):
    """Trying a grammar took too much: it is not to be tried again at once."""


class TrialEnded(TooCostly):
    """The process ended over a grammar: out of memory or of stack. What it had taken for earlier
    grammars may have had a part in it."""


class Setup(msgspec.Struct, frozen=True):
    """The vocabulary, and the seconds one trial may take."""

    definition: str
    size: int
    end_ids: tuple[int, ...]
    seconds: float


class Verdict(msgspec.Struct, frozen=True):
    """error: why the tokenizer or the grammar is refused, None when it is fit for use. token_bytes:
    what the tokenizer's tokens are. translated: the grammar in the library's notation."""

    error: str | None = None
    token_bytes: TokenBytes | None = None
    translated: str = ""


class Trial:
    """The parent's end of one such process. Not thread-safe; start again after a GrammarError
    that left it dead (`alive`)."""

    def __init__(self, setup: Setup) -> None:
        """Start the process and give it the vocabulary. Raises GrammarError, OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=Path(__file__).resolve().parents[1],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())
        self._seconds = setup.seconds
        try:
            known = self._ask(setup, START_SECONDS).token_bytes
            assert known is not None
            self.token_bytes = known
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, grammar: Grammar) -> str:
        """Try a grammar and give it in the library's notation. Raises GrammarError when it is
        refused, takes too long or takes too much."""
        return self._ask(grammar, self._seconds).translated

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _ask(self, question: Setup | Grammar, seconds: float) -> Verdict:
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(question))
            answered = self._connection.poll(seconds)
            answer = self._connection.recv_bytes() if answered else None
        except (EOFError, OSError) as error:
            self.close()
            if isinstance(question, Setup):
                raise OSError("the process for grammars ended while it started") from error
            raise TrialEnded("it takes too much memory or is nested too deeply") from error
        if answer is None:
            self.close()
            if isinstance(question, Setup):
                raise TimeoutError(f"the process for grammars did not start within {seconds:g} s")
            raise TooCostly(f"compiling it takes more than {seconds:g} s")
        verdict = msgspec.msgpack.decode(answer, type=Verdict)
        if verdict.error is not None:
            raise GrammarError(verdict.error)
        return verdict


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(connection,))
    thread.start()
    thread.join()


def _serve(connection: Connection) -> None:
    """Answer until the parent goes. The alarm ends a trial that outlives its parent."""
    setup = msgspec.msgpack.decode(connection.recv_bytes(), type=Setup)
    seconds = setup.seconds
    try:
        known = token_bytes(setup.definition, setup.size, setup.end_ids)
    except GrammarError as error:
        connection.send_bytes(msgspec.msgpack.encode(Verdict(str(error))))
        return
    vocabulary = open_vocabulary(known)
    _bound_memory()
    connection.send_bytes(msgspec.msgpack.encode(Verdict(token_bytes=known)))
    del setup, known
    while True:
        try:
            grammar = msgspec.msgpack.decode(connection.recv_bytes(), type=Grammar)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, 2 * seconds)
        try:
            translated = translate(grammar)
            walk(vocabulary, translated)
        except GrammarError as error:
            verdict = Verdict(str(error))
        else:
            verdict = Verdict(translated=translated)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(msgspec.msgpack.encode(verdict))


def _bound_memory() -> None:
    """Where the system tells how much address space is in use (Linux), bound what is added."""
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + EXTRA_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
