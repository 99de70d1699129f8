"""CPU time of drafters, measured around every call that the engine makes."""

from __future__ import annotations

import time
from typing import Any

CALLS = ("admit", "offer", "propose", "commit", "forget", "work")


class Timed:
    """A drafter whose calls are timed. seconds: CPU time of the calling thread in them."""

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._drafter, name)
        if name not in CALLS:
            return found

        def call(*arguments: Any) -> Any:
            begin = time.thread_time()
            try:
                return found(*arguments)
            finally:
                self.seconds += time.thread_time() - begin

        return call
