"""The API's side of the engine: requests as streams, calls, and restarts when the child dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from engine.config import EngineConfig
from engine.supervisor import EngineProcess
from engine.wire import (
    Call,
    CallBody,
    Cancel,
    Delta,
    Deltas,
    Failed,
    Finished,
    Hello,
    Progress,
    PromptLogprobs,
    Reply,
    SetController,
    SetDrafter,
    Snapshot,
    StartFailed,
    Submit,
)

State = Literal["starting", "ready", "restarting", "failed", "stopped"]
Event = Delta | PromptLogprobs | Finished | Failed

BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 30.0
HEALTHY_S = 60.0
CALL_TIMEOUT_S = 30.0
LINGER_S = 5.0

log = logging.getLogger(__name__)


class EngineStartError(Exception):
    """The engine cannot start and trying again will not help."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class EngineCallError(Exception):
    """A call was refused (code of the call), or the engine is away (engine_restarting)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Stream(AsyncIterator[Event]):
    """Events of one request; Finished or Failed is the last. Leaving early must `cancel`."""

    def __init__(self, submit: Submit, cancel: Callable[[str], None]) -> None:
        self.request = submit
        self._cancel = cancel
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ended = False

    def put(self, event: Event) -> None:
        self._events.put_nowait(event)

    async def __anext__(self) -> Event:
        if self._ended:
            raise StopAsyncIteration
        event = await self._events.get()
        self._ended = isinstance(event, Finished | Failed)
        return event

    def cancel(self) -> None:
        """Ask the engine to end the request; Finished("cancelled") follows. Idempotent."""
        self._cancel(self.request.id)

    async def aclose(self) -> None:
        self.cancel()


class EngineClient:
    """Owns the engine child. Single event loop; nothing here blocks it."""

    def __init__(
        self,
        config: EngineConfig,
        log_path: Path,
        on_snapshot: Callable[[Snapshot], None],
        on_finished: Callable[[Submit, Finished | Failed], None] | None = None,
        command: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._log_path = log_path
        self._on_snapshot = on_snapshot
        self._on_finished = on_finished
        self._on_progress: Callable[[Progress], None] | None = None
        self._command = command
        self._process: EngineProcess | None = None
        self._running: asyncio.Task[None] | None = None
        self._streams: dict[str, Stream] = {}
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._next_call = 0
        # What the operator has set, given again to every new child.
        self._controller: SetController | None = None
        self._drafters: dict[str, SetDrafter] = {}
        self.hello: Hello | None = None
        self.progress: Progress | None = None
        self.state: State = "starting"
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def active(self) -> int:
        """Requests that the engine has not ended yet."""
        return len(self._streams)

    async def start(self, on_progress: Callable[[Progress], None] | None = None) -> Hello:
        """Spawn the engine and wait until it can serve. Raises EngineStartError."""
        self._on_progress = on_progress
        try:
            messages = await self._launch()
        except EngineStartError:
            if self.state != "stopped":
                self.state = "failed"
            raise
        self._running = asyncio.create_task(self._run(messages), name="engine-client")
        assert self.hello is not None
        return self.hello

    def submit(self, submit: Submit) -> Stream:
        """Start a request. When the engine is away the stream holds one Failed event."""
        stream = Stream(submit, self._cancel)
        if self.state != "ready" or self._process is None:
            self._finish(stream, _away(submit.id, self.state))
        else:
            self._streams[submit.id] = stream
            self._process.send(submit)
        return stream

    def cancel_all(self) -> None:
        """Cancel every running request."""
        for id in self._streams:
            self._cancel(id)

    async def call(self, body: CallBody) -> object:
        """The reply's result as plain values. Raises EngineCallError."""
        if self.state != "ready":
            raise EngineCallError(*_away_reason(self.state))
        result = await self._call(body)
        if isinstance(body, SetController):
            self._controller = body
        elif isinstance(body, SetDrafter):
            self._drafters[body.name] = body
        return result

    async def stop(self) -> None:
        """End the child and fail what still runs. Safe to call at any time and twice."""
        self.state = "stopped"
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
            self._running = None
        await self._drop_process()
        self._fail_all()

    # --- one child --------------------------------------------------------------------------

    async def _launch(self) -> AsyncIterator[object]:
        """Spawn a child and read up to Hello; the rest of its messages is returned."""
        try:
            self._process = await EngineProcess.spawn(self._config, self._log_path, self._command)
        except ChildProcessError as error:
            raise EngineStartError("engine_died", self._died(error.args[0])) from None
        except OSError as error:  # no memory for a process, no place for its log or socket
            raise EngineStartError(
                "engine_died", f"The engine process could not be started: {error}."
            ) from None
        messages = self._process.messages()
        while True:
            try:
                message = await anext(messages)
            except StopAsyncIteration:
                break
            except msgspec.MsgspecError as error:
                await self._drop_process()
                raise EngineStartError(
                    "engine_died", f"The engine process sent what is no message: {error}."
                ) from None
            match message:
                case Progress():
                    self.progress = message
                    if self._on_progress is not None:
                        self._on_progress(message)
                case StartFailed(code=code, message=text):
                    await self._drop_process()
                    raise EngineStartError(code, text)
                case Hello():
                    self.hello = message
                    self.progress = None
                    self.state = "ready"
                    return messages
                case _:
                    log.warning("the engine sent %s before hello", type(message).__name__)
        status = await self._process.wait(LINGER_S)
        self._process = None
        raise EngineStartError("engine_died", self._died(status))

    async def _run(self, messages: AsyncIterator[object]) -> None:
        """Serve one child after the other until `stop` or a failure that restarting keeps."""
        loop = asyncio.get_running_loop()
        backoff = BACKOFF_FIRST_S
        while True:
            since = loop.time()
            try:
                async for message in messages:
                    self._receive(message)
            except Exception:
                log.exception("the connection to the engine failed")
            self.state = "restarting"
            self._fail_all()
            if self._process is not None:
                log.error("%s", self._died(await self._process.wait(LINGER_S)))
                self._process = None
            if loop.time() - since >= HEALTHY_S:
                backoff = BACKOFF_FIRST_S
            self.restarts += 1
            while self.state == "restarting":
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, BACKOFF_MAX_S)
                try:
                    messages = await self._launch()
                except EngineStartError as error:
                    log.error("the engine did not restart: %s", error.message)
                    if error.code != "engine_died":
                        self.state = "failed"
                        return
            self._restore()

    def _restore(self) -> None:
        """Give the operator's settings to a new child. Replies to unknown calls are ignored."""
        assert self._process is not None
        for body in (*self._drafters.values(), self._controller):
            if body is not None:
                self._next_call += 1
                self._process.send(Call(self._next_call, body))

    async def _call(self, body: CallBody) -> object:
        assert self._process is not None
        self._next_call += 1
        call = self._next_call
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[call] = future
        try:
            self._process.send(Call(call, body))
            async with asyncio.timeout(CALL_TIMEOUT_S):
                reply = await future
        except TimeoutError:
            raise EngineCallError("internal", "The engine did not answer in time.") from None
        finally:
            self._calls.pop(call, None)
        if reply.error is not None:
            raise EngineCallError(reply.error, reply.message)
        return reply.result

    async def _drop_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.stop()

    # --- messages ---------------------------------------------------------------------------

    def _receive(self, message: object) -> None:
        match message:
            case Deltas(items=items):
                for delta in items:
                    if stream := self._streams.get(delta.id):
                        stream.put(delta)
            case PromptLogprobs():
                if stream := self._streams.get(message.id):
                    stream.put(message)
            case Finished() | Failed():
                if stream := self._streams.pop(message.id, None):
                    self._finish(stream, message)
            case Reply():
                future = self._calls.get(message.call)
                if future is not None and not future.done():
                    future.set_result(message)
            case Snapshot():
                with _logged("a snapshot"):
                    self._on_snapshot(message)
            case _:
                log.warning("unexpected message from the engine: %s", type(message).__name__)

    def _cancel(self, request: str) -> None:
        if request in self._streams and self._process is not None:
            self._process.send(Cancel(request))

    def _finish(self, stream: Stream, event: Finished | Failed) -> None:
        stream.put(event)
        if self._on_finished is not None:
            with _logged("a finished request"):
                self._on_finished(stream.request, event)

    def _fail_all(self) -> None:
        """End every running request and call, because their engine is gone."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            self._finish(stream, _away(stream.request.id, self.state))
        for future in self._calls.values():
            if not future.done():
                code, text = _away_reason(self.state)
                future.set_exception(EngineCallError(code, text))

    def _died(self, status: int) -> str:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"The engine process {how}. Its log is {self._log_path}."


@contextlib.contextmanager
def _logged(what: str) -> Generator[None]:
    """A listener's fault is logged and costs its record, never the connection."""
    try:
        yield
    except Exception:
        log.exception("a listener failed on %s", what)


def _away_reason(state: State) -> tuple[str, str]:
    match state:
        case "starting":
            return "engine_starting", "The engine is still loading. Try again shortly."
        case "failed":
            return "engine_failed", "The engine could not start. See the server's log."
        case "stopped":
            return "draining", "The server is shutting down."
        case _:
            return "engine_restarting", "The engine stopped and is restarting. Try again shortly."


def _away(request: str, state: State) -> Failed:
    code, message = _away_reason(state)
    return Failed(request, code, message)
