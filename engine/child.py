"""One engine process under watch, from its spawn to its death."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from engine.death import Death, ended
from engine.errors import EngineStartError
from engine.last_words import last_words, log_end
from engine.supervisor import EngineProcess
from engine.watch import Watch
from engine.wire import FromEngine, Heartbeat, Hello, Progress, StartFailed, ToEngine

LINGER_S = 5.0

log = logging.getLogger(__name__)


class Child:
    """Speaks with the process and ends it when it hangs or breaks the contract."""

    def __init__(
        self, process: EngineProcess, watch: Watch, log_path: Path, log_start: int
    ) -> None:
        """log_start: the byte of the log from which on it writes."""
        self._process = process
        self._watch = watch
        self._log_path = log_path
        self._log_start = log_start
        self._fault: Death | None = None
        self._messages = process.messages()
        self._watching = asyncio.create_task(self._keep_watch(), name="engine-watch")

    @classmethod
    async def spawn(
        cls, config: EngineConfig, log_path: Path, command: Sequence[str] = ()
    ) -> Child:
        """Raises EngineStartError."""
        start = log_end(log_path)
        try:
            process = await EngineProcess.spawn(config, log_path, command)
        except ChildProcessError as error:
            raise _died(ended(error.args[0], None), log_path) from None
        except TimeoutError:
            text = f"The engine process does not listen. Its log is {log_path}."
            raise EngineStartError("engine_died", text) from None
        except OSError as error:  # no memory for a process, no place for its log or socket
            text = f"The engine process could not be started: {error}."
            raise EngineStartError("engine_died", text) from None
        watch = Watch(config.silence_timeout_s, config.step_timeout_s)
        return cls(process, watch, log_path, start)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def clogged(self) -> bool:
        """True while the engine does not read what was sent to it."""
        return self._process.clogged

    def send(self, message: ToEngine) -> None:
        """Raises ValueError for a message above the frame limit."""
        self._process.send(message)

    async def hello(self, on_progress: Callable[[Progress], None]) -> Hello:
        """Wait until it can serve. Raises EngineStartError; the process has then ended."""
        async for message in self.messages():
            match message:
                case Progress():
                    on_progress(message)
                case StartFailed(code=code, message=text):
                    await self.stop()
                    raise EngineStartError(code, text)
                case Hello():
                    return message
                case _:
                    log.warning("the engine sent %s before hello", type(message).__name__)
        raise _died(await self.death(), self._log_path)

    async def messages(self) -> AsyncIterator[FromEngine]:
        """What it says, except heartbeats, until the connection ends. Anything that is not part of
        the contract ends it: what was lost with it cannot be known."""
        try:
            async for message in self._messages:
                self._watch.heard(message)
                if not isinstance(message, Heartbeat):
                    yield message
        except msgspec.MsgspecError as error:
            reason = f"The engine process sent what is no message: {error}."
            self._fault = Death(time.time(), "protocol", reason, self._last_words())
            log.error("%s It is ended.", reason)

    async def death(self) -> Death:
        """Why it ended, once `messages` has. Ends a process that lingers."""
        if self._fault is not None:
            await self.stop()
            return self._fault
        self._watching.cancel()
        status = await self._process.wait(LINGER_S)
        return ended(status, self._last_words())

    async def stop(self) -> None:
        """End the process. Safe at any time."""
        if self._fault is None or self._fault.kind != "hang":
            self._watching.cancel()
            await self._process.stop()
        else:
            await asyncio.wait([self._watching])  # it is being ended

    async def _keep_watch(self) -> None:
        while (what := self._watch.tick()) is None:
            await asyncio.sleep(self._watch.period_s)
        reason = f"The engine process hung: it {what}."
        self._fault = Death(time.time(), "hang", reason, self._last_words())
        log.error(
            "%s It is killed; its stacks are in %s if it could still write them.",
            reason,
            self._log_path,
        )
        await self._process.stop_hung()

    def _last_words(self) -> str | None:
        return last_words(self._log_path, self._log_start)


def _died(death: Death, log_path: Path) -> EngineStartError:
    return EngineStartError("engine_died", f"{death.reason} Its log is {log_path}.")
