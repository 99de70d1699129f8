"""First schema: requests, aggregates at three levels, decisions, keys and audit log.

Written out in full and free of imports from app/, so that it never changes with the tables there.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LEVELS = ("1s", "1m", "1h")
JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    _create_requests()
    for level in LEVELS:
        _create_aggregates(level)
    _create_decisions()
    _create_keys_and_audit()


def downgrade() -> None:
    op.drop_table("audit_log")
    op.drop_table("api_keys")
    op.drop_table("decisions")
    for level in LEVELS:
        op.drop_table(f"engine_aggregates_{level}")
        op.drop_table(f"step_aggregates_{level}")
    op.drop_table("requests")


def _create_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("ts", sa.Double, nullable=False),
        sa.Column("key_id", sa.String(100), nullable=False),
        sa.Column("tenant", sa.String(200), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("endpoint", sa.String(100), nullable=False),
        sa.Column("transport", sa.String(16), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("queue_ms", sa.Double),
        sa.Column("ttft_ms", sa.Double),
        sa.Column("tpot_ms", sa.Double),
        sa.Column("e2e_ms", sa.Double),
        sa.Column("finish_reason", sa.String(32)),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("error_code", sa.String(64)),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("drafted", sa.BigInteger, nullable=False),
        sa.Column("accepted", sa.BigInteger, nullable=False),
        sa.Column("histogram", JSON, nullable=False),
        sa.Column("drafters", JSON, nullable=False),
        sa.Column("speculation", JSON),
        sa.PrimaryKeyConstraint("id", name="pk_requests"),
    )
    op.create_index("ix_requests_ts_id", "requests", ["ts", "id"])
    op.create_index("ix_requests_key_id_ts", "requests", ["key_id", "ts"])
    failed = sa.text("status >= 400")
    op.create_index(
        "ix_requests_failed_ts", "requests", ["ts"], sqlite_where=failed, postgresql_where=failed
    )


def _create_aggregates(level: str) -> None:
    op.create_table(
        f"step_aggregates_{level}",
        sa.Column("bucket", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("drafter", sa.String(64), nullable=False),
        sa.Column("draft_length", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("request_steps", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("drafted", sa.BigInteger, nullable=False),
        sa.Column("accepted", sa.BigInteger, nullable=False),
        sa.Column("reached", JSON, nullable=False),
        sa.Column("accepted_at", JSON, nullable=False),
        sa.Column("verify_ms", sa.Double, nullable=False),
        sa.Column("draft_ms", sa.Double, nullable=False),
        sa.Column("overhead_ms", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint(
            "bucket", "model", "drafter", "draft_length", name=f"pk_step_aggregates_{level}"
        ),
    )
    op.create_table(
        f"engine_aggregates_{level}",
        sa.Column("bucket", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
        sa.Column("interval_s", sa.Double, nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("forwards", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("drafted_tokens", sa.BigInteger, nullable=False),
        sa.Column("prefill_tokens", sa.BigInteger, nullable=False),
        sa.Column("running", sa.BigInteger, nullable=False),
        sa.Column("waiting", sa.BigInteger, nullable=False),
        sa.Column("batch_requests", sa.Double, nullable=False),
        sa.Column("batch_max", sa.BigInteger),
        sa.Column("free_pages_min", sa.BigInteger),
        sa.Column("total_pages", sa.BigInteger),
        sa.Column("tpot_ms_tokens", sa.Double, nullable=False),
        sa.Column("tpot_tokens", sa.BigInteger, nullable=False),
        sa.Column("step_ms_p99_max", sa.Double),
        sa.PrimaryKeyConstraint("bucket", "model", name=f"pk_engine_aggregates_{level}"),
    )


def _create_decisions() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("ts", sa.Double, nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("drafter", sa.String(64), nullable=False),
        sa.Column("draft_length", sa.Double, nullable=False),
        sa.Column("previous_drafter", sa.String(64), nullable=False),
        sa.Column("previous_draft_length", sa.Double, nullable=False),
        sa.Column("inputs", JSON, nullable=False),
        sa.Column("candidates", JSON, nullable=False),
        sa.Column("runner_up", JSON),
        sa.Column("margin", sa.Double),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("sentence", sa.Text, nullable=False),
        sa.Column("guard", sa.String(64)),
        sa.Column("predicted_goodput", sa.Double),
        sa.Column("requests", JSON, nullable=False),
        sa.Column("realised_steps", sa.BigInteger, nullable=False),
        sa.Column("realised_tokens", sa.BigInteger, nullable=False),
        sa.Column("realised_ms", sa.Double, nullable=False),
        sa.Column("closed", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_decisions"),
    )
    op.create_index("ix_decisions_ts_id", "decisions", ["ts", "id"])
    op.create_index("ix_decisions_reason_ts", "decisions", ["reason", "ts"])
    op.create_index("ix_decisions_drafter_ts", "decisions", ["drafter", "ts"])


def _create_keys_and_audit() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(100), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("scopes", JSON, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("revoked_at", sa.Double),
        sa.Column("last_used", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("digest", name="uq_api_keys_digest"),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("ts", sa.Double, nullable=False),
        sa.Column("actor_id", sa.String(100), nullable=False),
        sa.Column("actor_name", sa.String(200), nullable=False),
        sa.Column("action", sa.String(100), nullable=False),
        sa.Column("target", sa.String(200), nullable=False),
        sa.Column("before", JSON),
        sa.Column("after", JSON),
        sa.Column("ip", sa.String(64), nullable=False),
        sa.Column("result", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_ts_id", "audit_log", ["ts", "id"])
