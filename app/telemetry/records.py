"""Records that the writer stores, and their form on its queue: one JSON line per row.

A line is `["table", {column: value}]` in UTF-8 without a line end. The same bytes wait in memory
and in spill files, so a queue's size in bytes is known exactly.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from app.db.tables import api_keys, audit_log, decisions, metadata, requests, step_records
from controller.contract import Decision, StepRecord
from engine.wire import Snapshot

Row = dict[str, Any]
Transport = Literal["http", "sse", "websocket"]


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request; no text of prompt or answer. ts: seconds since the epoch at the end.

    status: HTTP status, 499 when the client left. cached_tokens: prompt tokens that the prefix
    cache held, None when that is not known. histogram[a]: steps that accepted a tokens. drafters:
    request-steps by drafter. speculation: the request's own wish as it was sent."""

    id: str
    key_id: str
    model: str
    endpoint: str
    transport: Transport
    ts: float = msgspec.field(default_factory=time.time)
    tenant: str = ""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    completion_tokens: int = 0
    queue_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    finish_reason: str | None = None
    status: int = 200
    error_code: str | None = None
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: tuple[int, ...] = ()
    drafters: dict[str, int] = {}
    speculation: dict[str, Any] | None = None


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One change made by a person or script. before and after: JSON values without secrets.
    result: "ok" or an error code."""

    actor_id: str
    actor_name: str
    action: str
    target: str = ""
    before: Any = None
    after: Any = None
    ip: str = ""
    result: str = "ok"
    ts: float = msgspec.field(default_factory=time.time)
    id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)


def request_line(record: RequestRecord) -> bytes:
    return line(requests, msgspec.structs.asdict(record))


def audit_line(record: AuditRecord) -> bytes:
    return line(audit_log, msgspec.structs.asdict(record))


def key_use_line(key_id: str, when: float) -> bytes:
    """Not a row to insert: sets last_used of an existing key."""
    return line(api_keys, {"id": key_id, "last_used": when})


def decision_line(decision: Decision, model: str) -> bytes:
    return line(
        decisions,
        {
            "id": decision.id,
            "ts": decision.time,
            "model": model,
            "step": decision.step,
            "drafter": decision.drafter,
            "draft_length": decision.draft_length,
            "previous_drafter": decision.previous_drafter,
            "previous_draft_length": decision.previous_draft_length,
            "inputs": decision.inputs,
            "candidates": decision.candidates,
            "runner_up": decision.runner_up,
            "margin": decision.margin,
            "reason": decision.reason,
            "sentence": decision.sentence,
            "guard": decision.guard,
            "predicted_goodput": decision.predicted_goodput,
            "requests": decision.requests,
            "realised_steps": decision.realised.steps,
            "realised_tokens": decision.realised.tokens,
            "realised_ms": decision.realised.ms,
            "closed": decision.closed,
            "predicted_tokens": decision.predicted_tokens,
            "predicted_ms": decision.predicted_ms,
        },
    )


def step_record_line(record: StepRecord, model: str) -> bytes:
    return line(
        step_records,
        {
            "id": record.id,
            "ts": record.time,
            "model": model,
            "step": record.step,
            "requests": record.requests,
            "context": record.context,
            "prefill_rows": record.prefill_rows,
            "drafts": {
                name: {"requests": requests, "tokens": tokens}
                for name, (requests, tokens) in record.drafts.items()
            },
            "predicted_tokens": record.predicted_tokens,
            "predicted_ms": record.predicted_ms,
            "realised_tokens": record.realised_tokens,
            "realised_ms": record.realised_ms,
            "price": record.price,
            "probe": record.probe,
            "guard": record.guard,
            "decision": record.decision,
        },
    )


def engine_row(snapshot: Snapshot, model: str, bucket: int) -> Row:
    """The snapshot's totals as a row of engine_aggregates_1s."""
    decoded = sum(cell.tokens for cell in snapshot.cells)  # first tokens have no TPOT
    return {
        "bucket": bucket,
        "model": model,
        "samples": 1,
        "interval_s": snapshot.interval_s,
        "steps": snapshot.steps,
        "forwards": snapshot.forwards,
        "tokens": snapshot.tokens,
        "drafted_tokens": snapshot.drafted_tokens,
        "prefill_tokens": snapshot.prefill_tokens,
        "running": snapshot.running,
        "waiting": snapshot.waiting,
        "batch_requests": sum(cell.request_steps for cell in snapshot.cells),
        "batch_max": snapshot.batch_max,
        "free_pages_min": snapshot.free_pages,
        "total_pages": snapshot.total_pages,
        "tpot_ms_tokens": (snapshot.tpot_ms or 0.0) * decoded,
        "tpot_tokens": decoded,
        "step_ms_p99_max": snapshot.step_ms_p99,
    }


def step_rows(snapshot: Snapshot, model: str, bucket: int) -> list[Row]:
    """The snapshot's cells as rows of step_aggregates_1s."""
    return [
        {
            "bucket": bucket,
            "model": model,
            "drafter": cell.drafter,
            "draft_length": cell.draft_length,
            "request_steps": cell.request_steps,
            "tokens": cell.tokens,
            "drafted": cell.drafted,
            "accepted": cell.accepted,
            "reached": list(cell.reached),
            "accepted_at": list(cell.accepted_at),
            "verify_ms": cell.verify_ms,
            "draft_ms": cell.draft_ms,
            "overhead_ms": cell.overhead_ms,
        }
        for cell in snapshot.cells
    ]


def line(table: sa.Table, row: Row) -> bytes:
    """The row as a queue line. Text is cut to its column's length; numbers that are not finite
    become null; characters that PostgreSQL cannot hold are replaced."""
    clipped = {name: _clip(table, name, value) for name, value in row.items()}
    try:
        encoded = _encode(table.name, clipped)
    except UnicodeEncodeError:
        return _encode(table.name, _scrub(clipped))
    if rb"\u0000" in encoded:
        return _encode(table.name, _scrub(msgspec.json.decode(encoded)[1]))
    return encoded


def parse(encoded: bytes) -> tuple[sa.Table, Row] | None:
    """The table and row of a line; None when the line is torn or names no known table."""
    try:
        name, row = msgspec.json.decode(encoded, type=tuple[str, dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    table = metadata.tables.get(name)
    if table is None:
        return None
    return table, {key: value for key, value in row.items() if key in table.c}


def _clip(table: sa.Table, name: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    kind = table.c[name].type
    limit = kind.length if isinstance(kind, sa.String) else None
    return value if limit is None else value[:limit]


def _encode(table: str, row: Row) -> bytes:
    return msgspec.json.encode((table, row), enc_hook=str)


def _scrub(value: Any) -> Any:
    """Replaces NUL and lone surrogates in every string inside."""
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_scrub(key): _scrub(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_scrub(item) for item in value]
    return value
