"""Signals inside a block: handled otherwise, and put back behind it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Generator, Sequence
from types import FrameType

ENDINGS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handled(
    numbers: Sequence[int], handler: Callable[[int, FrameType | None], None]
) -> Generator[None]:
    """The handler instead of those that are there, where signals are not ignored."""
    chosen = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in chosen}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def terminable() -> Generator[None]:
    """SIGTERM, and SIGHUP of a terminal that is gone, end us as Ctrl-C does: by default they would
    leave what we started running. Only the first one: shell and system may both send theirs, and
    what is ending then is let end. A SIGHUP that nohup has ignored stays so."""
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            return
        came = True
        # Where asyncio runs it takes a Ctrl-C itself: an exception raised here might come inside a
        # destructor, which swallows it.
        as_ctrl_c = signal.getsignal(signal.SIGINT)
        if callable(as_ctrl_c):
            as_ctrl_c(number, frame)
        else:
            raise KeyboardInterrupt

    with handled(ENDINGS, interrupt):
        yield
