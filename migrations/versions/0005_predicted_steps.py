"""decisions.predicted_tokens and predicted_ms of one step; null for decisions made before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decisions", sa.Column("predicted_tokens", sa.Double))
    op.add_column("decisions", sa.Column("predicted_ms", sa.Double))


def downgrade() -> None:
    op.drop_column("decisions", "predicted_ms")
    op.drop_column("decisions", "predicted_tokens")
