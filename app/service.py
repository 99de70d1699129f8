"""One API process from start to stop: engine, keys, writer and views, and who may use them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from litestar import Request

from app.corpora.library import Library
from app.corpora.shipped import find_shipped
from app.db.benchmarks import BenchmarkStore
from app.db.corpora import CorpusStore
from app.db.engine import create_engine
from app.db.keys import KeyStore
from app.errors import ApiError, bad_request, engine_error
from app.inference.generation import Generation
from app.inference.limits import check_draft_length
from app.inference.response_store import ResponseStore
from app.recordings.shelf import Recordings
from app.security.auth import OPERATOR_SCOPES, SCOPES, Principal
from app.security.pepper import read_pepper
from app.security.tickets import Tickets
from app.settings import Settings, schedule
from app.telemetry.metrics import Metrics
from app.telemetry.records import AuditRecord, Transport
from app.telemetry.running import Running, Source
from app.telemetry.writer import Writer
from app.views import Views
from engine.client import EngineCallError, EngineClient, EngineStartError, Setting
from engine.wire import CallBody, Hello, Progress, SetController, Submit

DRAIN_S = 10.0
CANCEL_S = 2.0
RESTART = "engine restart"
"""Who made the setting when a restarted engine did not take the operator's."""
NO_PRIORITY = (
    "priority must be 0 or left out: this server runs requests in the order of their arrival. Its "
    "operator can allow priorities with --scheduling-policy priority."
)

log = logging.getLogger(__name__)


class Service:
    """Started and stopped by the app's lifespan. Single event loop. Raises StartError when the key
    pepper cannot be read."""

    def __init__(self, settings: Settings, engine_command: Sequence[str] = ()) -> None:
        self.settings = settings
        self.model = model = settings.served_name
        self.started_at = time.time()
        self.draining = False
        self.drain_s = DRAIN_S
        self.database = create_engine(settings.database_url)
        self.writer = Writer(self.database, settings.data_path / "spill", model=model)
        self.keys = KeyStore(
            self.database,
            read_pepper(settings),
            on_use=self.writer.record_key_use,
        )
        metrics = Metrics(model, lambda: (self.engine.restarts, self.writer.status()["dropped"]))
        self.views = Views(metrics, self.writer, self.started_at, settings.max_draft_length)
        self._running = Running(model, metrics, self.writer)
        self.engine = EngineClient(
            settings.engine_config(),
            settings.data_path / "logs" / "engine.log",
            self.views.observe_snapshot,
            self._running.observe_finished,
            engine_command,
            lambda recorded: self.recordings.receive(recorded),
            self._setting_refused,
        )
        self.recordings = Recordings(settings.data_path / "recordings", self.call)
        self.corpora = Library(
            CorpusStore(self.database),
            self.engine,
            settings.corpus_tokens,
            find_shipped if settings.warm_corpus == "auto" else None,
        )
        self.benchmarks = BenchmarkStore(self.database)
        self.responses = ResponseStore()
        self.tickets = Tickets()
        self._tasks: list[asyncio.Task[None]] = []

    # --- life -------------------------------------------------------------------------------

    async def start(
        self,
        on_failed: Callable[[EngineStartError], None] | None = None,
        on_ready: Callable[[Hello], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Load the keys, start the writer, and start the engine in the background.

        on_failed hears of an engine that cannot start, or not with the setting that was asked for;
        the API then stays up and not ready."""
        await self.keys.load()
        if self.settings.admin_key:
            await self.keys.bootstrap(self.settings.admin_key, "bootstrap", SCOPES)
        if self.settings.console_key:
            await self.keys.bootstrap(self.settings.console_key, "console", OPERATOR_SCOPES)
        await self.writer.start()
        await self.recordings.open()

        async def start_engine() -> None:
            try:
                hello = await self.engine.start(on_progress)
                self.views.observe_hello(hello)
                await self._apply_mode()
            except EngineStartError as error:
                log.error("%s", error.message)
                if on_failed is not None:
                    on_failed(error)
                return
            if on_ready is not None:
                on_ready(hello)

        self._tasks = [
            asyncio.create_task(self.keys.keep_fresh(), name="keys"),
            asyncio.create_task(start_engine(), name="engine-start"),
            asyncio.create_task(self.corpora.run(), name="corpora"),
        ]

    async def _apply_mode(self) -> None:
        """Give the engine the controller's setting of the start. Stops it and raises
        EngineStartError when it refuses."""
        settings = self.settings
        limited = (
            settings.max_drafting_requests is not None
            or settings.tpot_target_ms
            or settings.draft_budget
        )
        if settings.mode == "auto" and not limited:
            return
        body = SetController(
            settings.mode,
            settings.drafter,
            settings.draft_length,
            schedule(settings),
            settings.max_drafting_requests,
            settings.tpot_target_ms,
            settings.draft_budget,
        )
        try:
            state = await self.engine.call(body)
            self.views.controller_changed(state, self.views.set_by, self.views.set_at)
        except EngineCallError as error:
            await self.engine.stop()
            message = f"The engine refused --mode {settings.mode}: {error.message}"
            raise EngineStartError(error.code, message) from None

    async def drain(self, hurry: Callable[[], bool] = bool) -> None:
        """Refuse new requests, give running ones drain_s (or until hurry), then cancel them."""
        self.draining = True
        deadline = time.monotonic() + self.drain_s
        while self.engine.active and time.monotonic() < deadline and not hurry():
            await asyncio.sleep(0.05)
        self.engine.cancel_all()
        deadline = time.monotonic() + CANCEL_S
        while self.engine.active and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Drain, then stop everything in reverse order."""
        await self.drain()
        await self.recordings.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engine.stop()
        await self.writer.stop()
        await self.database.dispose()

    # --- inference --------------------------------------------------------------------------

    def check_model(self, name: str) -> None:
        if name != self.model:
            raise ApiError(
                404,
                "model_not_found",
                f"The model '{name[:128]}' does not exist. This server serves '{self.model}'.",
                "model",
            )

    def generate(
        self,
        submits: list[Submit],
        principal: Principal,
        endpoint: str,
        transport: Transport,
        names: Mapping[str, str] | None = None,
    ) -> Generation:
        """Start engine requests for one answer. Raises ApiError when none may start now.

        names: the engine's name of a field -> the client's, for the errors of the engine."""
        if self.draining:
            raise engine_error("draining", "The server is shutting down.")
        for submit in submits:
            if submit.priority and self.settings.scheduling_policy == "fcfs":
                raise bad_request(NO_PRIORITY, "priority")
            length = submit.speculation.draft_length
            check_draft_length(length, self.views.max_draft_length, "speculation.draft_length")
        streams = []
        for submit in submits:
            self._running.begin(submit.id, Source(principal.id, endpoint, transport))
            submit = msgspec.structs.replace(submit, tenant=principal.id)
            streams.append(self.engine.submit(submit))
        on_gap, on_tokens = self.views.metrics.observe_gap, self._running.observe_tokens
        return Generation(streams, on_gap, on_tokens, names or {})

    async def call(self, body: CallBody) -> Any:
        """The engine's reply as plain values. Raises ApiError."""
        try:
            return await self.engine.call(body)
        except EngineCallError as error:
            raise engine_error(error.code, error.message, error.param) from None

    def _setting_refused(self, setting: Setting, error: EngineCallError) -> None:
        """A restarted engine did not take what an operator had set."""
        now = time.time()
        action, target = "set_controller", "controller"
        if isinstance(setting, SetController):
            self.views.set_by, self.views.set_at = RESTART, now
        else:
            action, target = "set_drafter", setting.name
        self.writer.record_audit(
            AuditRecord(
                actor_id="",
                actor_name=RESTART,
                action=action,
                target=target,
                after=msgspec.to_builtins(setting),
                result=error.code,
                ts=now,
            )
        )

    def describe(self) -> dict[str, Any]:
        """What a recording says of the server that it is of."""
        hello, state = self.engine.hello, self.views.controller
        found: dict[str, Any] = {"model": self.model}
        if hello is not None:
            names = ("architecture", "dtype", "device", "threads", "max_batch", "max_draft_length")
            found |= {name: getattr(hello, name) for name in names}
        if state is not None:
            found |= {"mode": state.mode, "policy": state.policy}
        drafters = [one for one in self.views.drafters if one.max_draft_length and one.enabled]
        return {**found, "drafters": {one.name: one.kind for one in drafters}}

    # --- keys and audit ---------------------------------------------------------------------

    def find_key(self, secret: str) -> Principal | None:
        record = self.keys.find(secret)
        if record is None:
            return None
        return Principal(record.id, record.name, frozenset(record.scopes))

    def redeem_ticket(self, ticket: str) -> Principal | None:
        """Whom the ticket was issued to, if it is good and their key still is."""
        principal = self.tickets.redeem(ticket)
        return principal if principal is not None and self.keys.valid(principal.id) else None

    def audit(
        self,
        request: Request[Any, Any, Any],
        action: str,
        target: str,
        before: object,
        after: object,
        result: str = "ok",
    ) -> None:
        """Record an act of an operator."""
        principal: Principal = request.user
        self.writer.record_audit(
            AuditRecord(
                actor_id=principal.id,
                actor_name=principal.name,
                action=action,
                target=target,
                before=before,
                after=after,
                ip=request.client.host if request.client else "",
                result=result,
            )
        )
