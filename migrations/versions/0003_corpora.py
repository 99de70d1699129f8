"""Corpora that an operator loads for drafters to copy from: what they are, and their parts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "corpora",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("version", sa.String(32), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("created_by", sa.String(200), nullable=False),
        sa.Column("documents", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("token_ids", sa.BigInteger, nullable=False),
        sa.Column("tokenizer", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_corpora"),
    )
    op.create_table(
        "corpus_parts",
        sa.Column("version", sa.String(32), nullable=False),
        sa.Column("part", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("version", "part", name="pk_corpus_parts"),
    )


def downgrade() -> None:
    op.drop_table("corpus_parts")
    op.drop_table("corpora")
