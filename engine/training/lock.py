"""One writer for each output of training: a lock beside it, free again when its holder dies."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.errors import StartError

WAIT_S = 5.0
"""One that was just killed still ends."""
POLL_S = 0.1


@contextmanager
def only_writer(out: Path) -> Generator[None]:
    """Hold OUT.lock, with who holds it in it. Raises StartError when another process does, or it
    cannot be written."""
    path = out.with_name(out.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(path)
        if file is None:
            raise StartError("out_in_use", _refusal(out, path))
        told = f"{os.getpid()} {socket.gethostname()}\n".encode()
        with suppress(OSError):  # a full disk: it is held all the same
            os.ftruncate(file, 0)
            os.pwrite(file, told, 0)
    except OSError as error:
        raise StartError(
            "out_not_writable",
            f"cannot lock {path}: {error.strerror or error}. Give another place to write to.",
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held: who waits for it then makes a new one
        os.close(file)


def _locked(path: Path) -> int | None:
    """Its descriptor, locked; None when another process keeps it. Raises OSError."""
    until = time.monotonic() + WAIT_S
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(path, file):
                return file
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(file)
                return None
            time.sleep(POLL_S)
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _is(path: Path, file: int) -> bool:
    """Whether the path still names this file: its last holder may have removed it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _refusal(out: Path, path: Path) -> str:
    try:
        pid, host = path.read_text().split()
    except (OSError, ValueError):
        return f"{out} is being written by another process. Wait for it, or give another place."
    where = "" if host == socket.gethostname() else f" on {host}"
    return (
        f"{out} is being written by process {pid}{where}. Wait for it, end it with `kill {pid}`, "
        "or give another place."
    )
