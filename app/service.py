"""Everything one API process holds, wired together: engine, keys, writer, live views, metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from litestar import Request

from app.admin.ledger import Ledger
from app.admin.live import Live
from app.db.engine import create_engine
from app.db.errors import DatabaseError
from app.db.keys import KeyStore, load_pepper
from app.db.migrate import has_keys
from app.errors import ENGINE_STATUS, ApiError, engine_error
from app.failures import StartError
from app.inference.generation import Generation
from app.inference.limits import check_draft_length
from app.inference.response_store import ResponseStore
from app.security.auth import SCOPES, Principal
from app.security.tickets import Tickets
from app.settings import Settings, schedule
from app.telemetry.metrics import Metrics
from app.telemetry.records import AuditRecord, RequestRecord
from app.telemetry.writer import Writer
from controller.contract import Wish
from engine.client import EngineCallError, EngineClient, EngineStartError
from engine.wire import (
    CallBody,
    ControllerState,
    DrafterState,
    Failed,
    Finished,
    Hello,
    Progress,
    SetController,
    Snapshot,
    Submit,
)

CLIENT_LEFT = 499
DRAIN_S = 10.0
CANCEL_S = 2.0
OPERATOR_SCOPES = ("inference", "metrics:read", "admin:read", "operate")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Source:
    """Where a running request came from, and what has been streamed of it, for its record.

    Times are of the monotonic clock: the arrival, and the first output."""

    key_id: str
    endpoint: str
    transport: str
    started_at: float = field(default_factory=time.monotonic)
    first_at: float | None = None
    tokens: int = 0


class Service:
    """Started and stopped by the app's lifespan. Single event loop. Raises StartError when the key
    pepper cannot be read."""

    def __init__(self, settings: Settings, engine_command: Sequence[str] = ()) -> None:
        self.settings = settings
        self.model = settings.served_name
        self.started_at = time.time()
        self.draining = False
        self.drain_s = DRAIN_S
        self.database = create_engine(settings.database_url)
        self.writer = Writer(self.database, settings.data_path / "spill", model=self.model)
        self.keys = KeyStore(
            self.database,
            read_pepper(settings),
            on_use=self.writer.record_key_use,
        )
        self.engine = EngineClient(
            settings.engine_config(),
            settings.data_path / "logs" / "engine.log",
            self.observe_snapshot,
            self.observe_finished,
            engine_command,
        )
        self.live = Live()
        self.ledger = Ledger()
        self.metrics = Metrics(
            self.model, lambda: (self.engine.restarts, self.writer.status()["dropped"])
        )
        self.responses = ResponseStore()
        self.tickets = Tickets()
        # As last heard of from the engine; None and () until it is ready for the first time.
        self.controller: ControllerState | None = None
        self.drafters: tuple[DrafterState, ...] = ()
        self.set_by, self.set_at = "start", self.started_at
        self._sources: dict[str, Source] = {}
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

        async def start_engine() -> None:
            try:
                hello = await self.engine.start(on_progress)
                self.controller, self.drafters = hello.controller, hello.drafters
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
        ]

    async def _apply_mode(self) -> None:
        """Give the engine the controller's setting of the start. Stops it and raises
        EngineStartError when it refuses."""
        settings = self.settings
        if settings.mode == "auto" and settings.max_drafting_requests is None:
            return
        body = SetController(
            settings.mode,
            settings.drafter,
            settings.draft_length,
            schedule(settings),
            settings.max_drafting_requests,
        )
        try:
            state = await self.engine.call(body)
            self.controller = msgspec.convert(state, ControllerState)
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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engine.stop()
        await self.writer.stop()
        await self.database.dispose()

    # --- inference --------------------------------------------------------------------------

    @property
    def max_draft_length(self) -> int:
        """The largest D that may be asked for."""
        state = self.controller
        return self.settings.max_draft_length if state is None else state.max_draft_length

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
        transport: str,
        names: Mapping[str, str] | None = None,
    ) -> Generation:
        """Start engine requests for one answer. Raises ApiError when none may start now.

        names: the engine's name of a field -> the client's, for the errors of the engine."""
        if self.draining:
            raise engine_error("draining", "The server is shutting down.")
        for submit in submits:
            length = submit.speculation.draft_length
            check_draft_length(length, self.max_draft_length, "speculation.draft_length")
        streams = []
        for submit in submits:
            self._sources[submit.id] = Source(principal.id, endpoint, transport)
            submit = msgspec.structs.replace(submit, tenant=principal.id)
            streams.append(self.engine.submit(submit))
        return Generation(streams, self.metrics.observe_gap, self._observe_tokens, names or {})

    async def call(self, body: CallBody) -> Any:
        """The engine's reply as plain values. Raises ApiError."""
        try:
            return await self.engine.call(body)
        except EngineCallError as error:
            raise engine_error(error.code, error.message, error.param) from None

    # --- what the engine tells --------------------------------------------------------------

    def observe_snapshot(self, snapshot: Snapshot) -> None:
        self.controller, self.drafters = snapshot.controller, snapshot.drafters
        self.live.add(snapshot)
        self.ledger.add(snapshot.decisions)
        self.metrics.observe_snapshot(snapshot)
        self.writer.record_snapshot(snapshot)

    def observe_finished(self, submit: Submit, event: Finished | Failed) -> None:
        self.metrics.observe_finished(event)
        source = self._sources.pop(submit.id, None)
        if source is not None:
            self.writer.record_request(_record(submit, event, source, self.model))

    def _observe_tokens(self, id: str, tokens: int) -> None:
        if source := self._sources.get(id):
            source.tokens += tokens
            if source.first_at is None:
                source.first_at = time.monotonic()

    def controller_changed(self, state: dict[str, Any], by: str, at: float) -> None:
        """Take over the engine's reply to an operator's change, before the next snapshot."""
        self.controller = msgspec.convert(state, ControllerState)
        self.set_by, self.set_at = by, at

    def drafter_changed(self, state: dict[str, Any]) -> None:
        changed = msgspec.convert(state, DrafterState)
        self.drafters = tuple(
            changed if drafter.name == changed.name else drafter for drafter in self.drafters
        )

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


def read_pepper(settings: Settings) -> bytes:
    """The pepper of the data directory, made at the first start. Raises StartError when it is
    damaged, unreadable, or missing although the (migrated) database holds keys."""
    path = settings.data_path / "pepper"
    try:
        if not path.exists() and has_keys(settings.database_url):
            raise StartError(
                f"The key pepper {path} is missing, but the database holds API keys that cannot be "
                "checked without it. Restore it from a backup, or delete the keys (the rows of the "
                "table api_keys) to start with new ones."
            )
        return load_pepper(path)
    except OSError as error:
        raise StartError(f"Cannot read {path}: {error.strerror}. Check its owner.") from None
    except (DatabaseError, ValueError) as error:
        raise StartError(str(error)) from None


def _record(submit: Submit, event: Finished | Failed, source: Source, model: str) -> RequestRecord:
    wish = None if submit.speculation == Wish() else msgspec.to_builtins(submit.speculation)
    common: dict[str, Any] = {
        "id": submit.id,
        "key_id": source.key_id,
        "tenant": submit.tenant,
        "model": model,
        "endpoint": source.endpoint,
        "transport": source.transport,
        "speculation": wish,
    }
    if isinstance(event, Failed):
        status, _ = ENGINE_STATUS.get(event.code, (500, None))
        # The engine counts nothing for a request that failed: what was seen of it from here.
        first = source.first_at
        return RequestRecord(
            **common,
            status=status,
            error_code=event.code,
            finish_reason="error",
            completion_tokens=source.tokens,
            ttft_ms=None if first is None else 1000 * (first - source.started_at),
            e2e_ms=1000 * (time.monotonic() - source.started_at),
        )
    counts, timing = event.speculation, event.timing
    return RequestRecord(
        **common,
        status=CLIENT_LEFT if event.finish_reason == "cancelled" else 200,
        finish_reason=event.finish_reason,
        prompt_tokens=event.prompt_tokens,
        completion_tokens=event.completion_tokens,
        queue_ms=timing.queue_ms,
        ttft_ms=timing.ttft_ms if event.completion_tokens else None,
        tpot_ms=timing.tpot_ms,
        e2e_ms=timing.e2e_ms,
        steps=counts.steps,
        drafted=counts.drafted,
        accepted=counts.accepted,
        histogram=counts.histogram,
        drafters=counts.drafters,
    )
