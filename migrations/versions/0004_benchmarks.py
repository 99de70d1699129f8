"""Benchmarks that were recorded, for the console: where and how, and the rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "benchmarks",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("ts", sa.Double, nullable=False),
        sa.Column("began", sa.Double, nullable=False),
        sa.Column("created_by", sa.String(200), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("base", sa.String(64), nullable=False),
        sa.Column("command", JSON, nullable=False),
        sa.Column("machine", JSON, nullable=False),
        sa.Column("settings", JSON, nullable=False),
        sa.Column("rows", JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_benchmarks"),
    )
    op.create_index("ix_benchmarks_ts_id", "benchmarks", ["ts", "id"])


def downgrade() -> None:
    op.drop_table("benchmarks")
