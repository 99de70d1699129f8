"""The tables: SQLAlchemy Core, the same on SQLite and PostgreSQL.

Times are seconds since the epoch (UTC) as doubles; buckets are the integer second at which the
interval starts. A column's info["merge"] says how roll-ups combine it: sum, max, min or positions
(element-wise sum of lists of different lengths). No prompt or answer text is stored anywhere; the
text of corpora is, which an operator loads.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

metadata = sa.MetaData(naming_convention=NAMING)

# none_as_null: an absent value is SQL NULL, not the JSON text null.
JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
SECONDS = {"1s": 1, "1m": 60, "1h": 3600}


def _text(name: str, length: int, *, null: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=null)


def _number(name: str, *, null: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=null)


def _count(name: str, *, null: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=null)


def _merged(name: str, kind: Any, how: str) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=how in ("max", "min"), info={"merge": how})


requests = sa.Table(
    "requests",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    _number("ts"),
    _text("key_id", 100),
    _text("tenant", 200),
    _text("model", 200),
    _text("endpoint", 100),
    _text("transport", 16),
    _count("prompt_tokens"),
    _count("completion_tokens"),
    _number("queue_ms", null=True),
    _number("ttft_ms", null=True),
    _number("tpot_ms", null=True),
    _number("e2e_ms", null=True),
    _text("finish_reason", 32, null=True),
    sa.Column("status", sa.Integer, nullable=False),
    _text("error_code", 64, null=True),
    _count("steps"),
    _count("drafted"),
    _count("accepted"),
    sa.Column("histogram", JSON, nullable=False),
    sa.Column("drafters", JSON, nullable=False),
    sa.Column("speculation", JSON, nullable=True),
    _count("cached_tokens", null=True),
    sa.Index(None, "ts", "id"),
    sa.Index(None, "key_id", "ts"),
    sa.Index(
        "ix_requests_failed_ts",
        "ts",
        sqlite_where=sa.text("status >= 400"),
        postgresql_where=sa.text("status >= 400"),
    ),
)


def _step_aggregates(level: str) -> sa.Table:
    """Request-steps by what they ran with; one row per (bucket, model, drafter, draft_length)."""
    return sa.Table(
        f"step_aggregates_{level}",
        metadata,
        sa.Column("bucket", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("model", sa.String(200), primary_key=True),
        sa.Column("drafter", sa.String(64), primary_key=True),
        sa.Column("draft_length", sa.Integer, primary_key=True, autoincrement=False),
        _merged("request_steps", sa.BigInteger, "sum"),
        _merged("tokens", sa.BigInteger, "sum"),
        _merged("drafted", sa.BigInteger, "sum"),
        _merged("accepted", sa.BigInteger, "sum"),
        _merged("reached", JSON, "positions"),
        _merged("accepted_at", JSON, "positions"),
        _merged("verify_ms", sa.Double, "sum"),
        _merged("draft_ms", sa.Double, "sum"),
        _merged("overhead_ms", sa.Double, "sum"),
    )


def _engine_aggregates(level: str) -> sa.Table:
    """The engine as a whole, also while idle; one row per (bucket, model).

    Means are kept as sums with their weights, so that roll-ups are exact: running and waiting
    are sums over `samples` snapshots, batch_requests counts decoding requests over all steps,
    tpot_ms_tokens = tpot_ms x tpot_tokens."""
    return sa.Table(
        f"engine_aggregates_{level}",
        metadata,
        sa.Column("bucket", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("model", sa.String(200), primary_key=True),
        _merged("samples", sa.BigInteger, "sum"),
        _merged("interval_s", sa.Double, "sum"),
        _merged("steps", sa.BigInteger, "sum"),
        _merged("forwards", sa.BigInteger, "sum"),
        _merged("tokens", sa.BigInteger, "sum"),
        _merged("drafted_tokens", sa.BigInteger, "sum"),
        _merged("prefill_tokens", sa.BigInteger, "sum"),
        _merged("running", sa.BigInteger, "sum"),
        _merged("waiting", sa.BigInteger, "sum"),
        _merged("batch_requests", sa.Double, "sum"),
        _merged("batch_max", sa.BigInteger, "max"),
        _merged("free_pages_min", sa.BigInteger, "min"),
        _merged("total_pages", sa.BigInteger, "max"),
        _merged("tpot_ms_tokens", sa.Double, "sum"),
        _merged("tpot_tokens", sa.BigInteger, "sum"),
        _merged("step_ms_p99_max", sa.Double, "max"),
    )


step_aggregates = {level: _step_aggregates(level) for level in SECONDS}
engine_aggregates = {level: _engine_aggregates(level) for level in SECONDS}

decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    _number("ts"),
    _text("model", 200),
    _count("step"),
    _text("drafter", 64),
    _number("draft_length"),
    _text("previous_drafter", 64),
    _number("previous_draft_length"),
    sa.Column("inputs", JSON, nullable=False),
    sa.Column("candidates", JSON, nullable=False),
    sa.Column("runner_up", JSON, nullable=True),
    _number("margin", null=True),
    _text("reason", 64),
    sa.Column("sentence", sa.Text, nullable=False),
    _text("guard", 64, null=True),
    _number("predicted_goodput", null=True),
    sa.Column("requests", JSON, nullable=False),
    _count("realised_steps"),
    _count("realised_tokens"),
    _number("realised_ms"),
    sa.Column("closed", sa.Boolean, nullable=False),
    _number("predicted_tokens", null=True),
    _number("predicted_ms", null=True),
    sa.Index(None, "ts", "id"),
    sa.Index(None, "reason", "ts"),
    sa.Index(None, "drafter", "ts"),
)

step_records = sa.Table(
    "step_records",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    _number("ts"),
    _text("model", 200),
    _count("step"),
    _count("requests"),
    _number("context"),
    _count("prefill_rows"),
    sa.Column("drafts", JSON, nullable=False),
    _number("predicted_tokens", null=True),
    _number("predicted_ms", null=True),
    _count("realised_tokens"),
    _number("realised_ms"),
    _number("price", null=True),
    sa.Column("probe", sa.Boolean, nullable=False),
    _text("guard", 64, null=True),
    _text("decision", 64),
    sa.Index(None, "ts", "id"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.String(100), primary_key=True),
    _text("name", 200),
    _text("prefix", 16),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Column("scopes", JSON, nullable=False),
    _number("created_at"),
    _number("expires_at", null=True),
    _number("revoked_at", null=True),
    _number("last_used", null=True),
)

audit_log = sa.Table(
    "audit_log",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    _number("ts"),
    _text("actor_id", 100),
    _text("actor_name", 200),
    _text("action", 100),
    _text("target", 200),
    sa.Column("before", JSON, nullable=True),
    sa.Column("after", JSON, nullable=True),
    _text("ip", 64),
    _text("result", 32),
    sa.Index(None, "ts", "id"),
)

corpora = sa.Table(
    "corpora",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    _text("version", 32),
    _number("created_at"),
    _text("created_by", 200),
    _count("documents"),
    _count("bytes"),
    _count("token_ids"),
    _text("tokenizer", 64),
)

corpus_parts = sa.Table(
    "corpus_parts",
    metadata,
    sa.Column("version", sa.String(32), primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

benchmarks = sa.Table(
    "benchmarks",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    _number("ts"),
    _number("began"),
    _text("created_by", 200),
    _text("model", 200),
    _text("kind", 16),
    _text("base", 64),
    sa.Column("command", JSON, nullable=False),
    sa.Column("machine", JSON, nullable=False),
    sa.Column("settings", JSON, nullable=False),
    sa.Column("rows", JSON, nullable=False),
    sa.Index(None, "ts", "id"),
)
