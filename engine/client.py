"""The API's side of the engine: requests as streams, calls, and restarts when the child dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from engine import log_files
from engine.child import Child
from engine.config import EngineConfig
from engine.death import Death
from engine.errors import EngineCallError, EngineStartError
from engine.kept_settings import KeptSettings, Setting
from engine.last_words import last_words, log_end
from engine.open_requests import OpenRequests, logged
from engine.recovery import CLOGGED, Backoff, State, away
from engine.replies import Replies
from engine.stream import Event, Stream
from engine.wire import (
    CallBody,
    Cancel,
    Deltas,
    Failed,
    Finished,
    Hello,
    Progress,
    PromptLogprobs,
    Recorded,
    Reply,
    Snapshot,
    Submit,
)

__all__ = [
    "Death",
    "EngineCallError",
    "EngineClient",
    "EngineStartError",
    "Event",
    "Setting",
    "Stream",
]

RETRY_S = 120.0
"""So long a request that was not begun waits for a new engine."""

MOST_STARTS = 2
"""So many starts may fail with what was loaded meanwhile."""

log = logging.getLogger(__name__)


class EngineClient:
    """Owns the engine child. Single event loop; nothing here blocks it.

    When a child dies, requests of which nobody has seen anything are given to the next one, in
    their order and with their priority; the others end with Failed("engine_restarting")."""

    def __init__(
        self,
        config: EngineConfig,
        log_path: Path,
        on_snapshot: Callable[[Snapshot], None],
        on_finished: Callable[[Submit, Finished | Failed], None] | None = None,
        command: Sequence[str] = (),
        on_recorded: Callable[[Recorded], None] | None = None,
        on_refused: Callable[[Setting, EngineCallError], None] | None = None,
    ) -> None:
        """on_recorded: hears the parts of recordings, and of the engine's death. on_refused: hears
        of an operator's setting that a restarted engine does not take, and why; it is forgotten."""
        self._config = config
        self._log_path = log_path
        self._on_snapshot = on_snapshot
        self._on_recorded = on_recorded
        self._on_progress: Callable[[Progress], None] | None = None
        self._command = command
        self._child: Child | None = None
        self._running: asyncio.Task[None] | None = None
        self._restoring: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._requests = OpenRequests(on_finished)
        self._replies = Replies()
        self._kept = KeptSettings(on_refused)
        self.hello: Hello | None = None
        self.progress: Progress | None = None
        self.state: State = "starting"
        self.restarts = 0
        self.death: Death | None = None
        """Why the last engine ended or did not start; stays when a new one serves. None while the
        process of one that is gone ends."""

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def active(self) -> int:
        """Requests that have not ended yet."""
        return len(self._requests)

    async def start(self, on_progress: Callable[[Progress], None] | None = None) -> Hello:
        """Spawn the engine and wait until it can serve. Raises EngineStartError."""
        self._on_progress = on_progress
        log_files.begin(self._log_path)
        try:
            child, hello = await self._launch()
        except EngineStartError:
            if self.state != "stopped":
                self.state = "failed"
            raise
        self.state = "ready"
        self._running = asyncio.create_task(self._run(child), name="engine-client")
        return hello

    def submit(self, submit: Submit) -> Stream:
        """Start a request. When the engine is away or takes nothing at the moment, the stream
        holds one Failed event."""
        stream = Stream(submit, self._cancel)
        if self.state != "ready" or self._child is None:
            self._requests.finish(stream, Failed(submit.id, *away(self.state)))
        elif self._child.clogged:
            self._requests.finish(stream, Failed(submit.id, *CLOGGED))
        else:
            self._send(stream)
        return stream

    def cancel_all(self) -> None:
        """Cancel every running request."""
        for stream in self._requests.all():
            stream.cancel()

    async def call(self, body: CallBody) -> object:
        """The reply's result as plain values. Raises EngineCallError."""
        if self.state != "ready" or self._child is None:
            raise EngineCallError(*away(self.state))
        if self._child.clogged:
            raise EngineCallError(*CLOGGED)
        result = await self._replies.ask(body, self._child.send)
        self._kept.took(body)
        return result

    async def stop(self) -> None:
        """End the child and fail what still runs. Safe to call at any time and twice."""
        self.state = "stopped"
        if self._restoring is not None:
            self._restoring.cancel()
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
            self._running = None
        child, self._child = self._child, None
        if child is not None:
            await child.stop()
        self._fail_all()

    # --- one child after the other ------------------------------------------------------------

    async def _launch(self) -> tuple[Child, Hello]:
        """A new child that can serve. Raises EngineStartError."""
        log_files.begin(self._log_path, log_files.MOST_BYTES)
        start = log_end(self._log_path)
        try:
            config = self._kept.into(self._config)
            self._child = child = await Child.spawn(config, self._log_path, self._command)
            hello = await child.hello(self._note_progress)
        except EngineStartError as error:
            self._child = None
            line = last_words(self._log_path, start)
            self.death = Death(time.time(), "start", error.message, line)
            raise
        self.hello, self.progress = hello, None
        return child, hello

    async def _run(self, child: Child) -> None:
        """Serve one child after the other until `stop` or a failure that restarting keeps."""
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        while True:
            since = loop.time()
            try:
                async for message in child.messages():
                    self._receive(message)
            except Exception:
                log.exception("the connection to the engine failed")
            if self._restoring is not None:
                self._restoring.cancel()
            served = self.state == "ready"
            self.state, self.death = "restarting", None
            self.death = death = await child.death()
            self._child = None
            log.error("%s Its log is %s. %s", death.reason, self._log_path, death.log_line or "")
            self._sort_out(death, served)
            backoff.lived(loop.time() - since)
            self.restarts += 1
            failed = 0
            while True:
                await asyncio.sleep(backoff.take())
                try:
                    child, _ = await self._launch()
                    break
                except EngineStartError as error:
                    log.error("the engine did not restart: %s", error.message)
                    failed += 1
                    refused = error.code != "engine_died"
                    if (refused or failed >= MOST_STARTS) and self._kept.forget_loaded():
                        log.error("it is tried again without the drafters loaded meanwhile")
                    elif refused:
                        self.state = "failed"
                        self._fail_all()
                        return
            # Its answers are among the messages that are received meanwhile.
            self._restoring = asyncio.create_task(self._restore(child), name="engine-restore")

    def _sort_out(self, death: Death, served: bool) -> None:
        """End the requests of a dead engine, or keep them for the next one. Not served: it died
        before it was given any, so none is to blame."""
        most = self.hello.max_batch if self.hello else None
        self._requests.outlive(death, most if served else 0)
        self._replies.fail(*away(self.state))
        self._note_recorded(Recorded("", b"", "engine_died"))
        if waiting := self.active:
            log.info("%d requests wait for the next engine", waiting)
            if self._patience is None:
                loop = asyncio.get_running_loop()
                self._patience = loop.call_later(RETRY_S, self._fail_all)

    async def _restore(self, child: Child) -> None:
        """Give the operator's settings to a new child, then the requests that wait; it serves only
        when it has them."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        await self._kept.restore(lambda setting: self._replies.ask(setting, child.send))
        self.state = "ready"
        for stream in self._requests.all():
            self._send(stream)

    # --- messages ---------------------------------------------------------------------------

    def _receive(self, message: object) -> None:
        match message:
            case Deltas() | PromptLogprobs() | Finished() | Failed():
                self._requests.deliver(message)
            case Reply():
                self._replies.deliver(message)
            case Recorded():
                self._note_recorded(message)
            case Snapshot():
                with logged("a snapshot"):
                    self._on_snapshot(message)
                self._kept.saw(message, self._config)
            case _:
                log.warning("unexpected message from the engine: %s", type(message).__name__)

    def _note_recorded(self, recorded: Recorded) -> None:
        if self._on_recorded is not None:
            with logged("a part of a recording"):
                self._on_recorded(recorded)

    def _note_progress(self, progress: Progress) -> None:
        self.progress = progress
        if self._on_progress is not None:
            self._on_progress(progress)

    def _send(self, stream: Stream) -> None:
        assert self._child is not None
        self._requests.add(stream)
        try:
            self._child.send(stream.request)
        except ValueError as error:
            text = f"The request cannot be given to the engine: {error}."
            self._requests.finish(stream, Failed(stream.request.id, "invalid_request", text))

    def _cancel(self, stream: Stream) -> None:
        if stream not in self._requests:
            return
        if self.state == "ready" and self._child is not None:
            self._child.send(Cancel(stream.request.id))
        else:  # it waits for a new engine
            self._requests.finish(stream, stream.cancelled_away())

    def _fail_all(self) -> None:
        """End every request and call, because no engine will take them."""
        self._patience = None
        self._requests.fail_all(*away(self.state))
        self._replies.fail(*away(self.state))
