"""Running requests: where each came from, what was seen of it, and its record when it ends."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.errors import ENGINE_STATUS
from app.telemetry.metrics import Metrics
from app.telemetry.records import RequestRecord, Transport
from app.telemetry.writer import Writer
from controller.contract import Wish
from engine.wire import Failed, Finished, Submit

CLIENT_LEFT = 499


@dataclass(slots=True)
class Source:
    """Where a running request came from, and what has been streamed of it, for its record.

    Times are of the monotonic clock: the arrival, and the first output."""

    key_id: str
    endpoint: str
    transport: Transport
    started_at: float = field(default_factory=time.monotonic)
    first_at: float | None = None
    tokens: int = 0


class Running:
    """One Source per request from `begin` until the engine (or its client) has ended it."""

    def __init__(self, model: str, metrics: Metrics, writer: Writer) -> None:
        self._model = model
        self._metrics = metrics
        self._writer = writer
        self._sources: dict[str, Source] = {}

    def begin(self, id: str, source: Source) -> None:
        self._sources[id] = source

    def observe_tokens(self, id: str, tokens: int) -> None:
        if source := self._sources.get(id):
            source.tokens += tokens
            if source.first_at is None:
                source.first_at = time.monotonic()

    def observe_finished(self, submit: Submit, event: Finished | Failed) -> None:
        self._metrics.observe_finished(event)
        source = self._sources.pop(submit.id, None)
        if source is not None:
            self._writer.record_request(_record(submit, event, source, self._model))


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
        cached_tokens=event.cached_tokens,
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
