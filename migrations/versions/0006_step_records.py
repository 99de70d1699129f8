"""Sampled steps of the engine: as predicted when planned, and as measured."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "step_records",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("ts", sa.Double, nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("context", sa.Double, nullable=False),
        sa.Column("prefill_rows", sa.BigInteger, nullable=False),
        sa.Column("drafts", JSON, nullable=False),
        sa.Column("predicted_tokens", sa.Double),
        sa.Column("predicted_ms", sa.Double),
        sa.Column("realised_tokens", sa.BigInteger, nullable=False),
        sa.Column("realised_ms", sa.Double, nullable=False),
        sa.Column("price", sa.Double),
        sa.Column("probe", sa.Boolean, nullable=False),
        sa.Column("guard", sa.String(64)),
        sa.Column("decision", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_step_records"),
    )
    op.create_index("ix_step_records_ts_id", "step_records", ["ts", "id"])


def downgrade() -> None:
    op.drop_table("step_records")
