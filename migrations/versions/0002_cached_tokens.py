"""requests.cached_tokens: prompt tokens that the prefix cache held; null where it is not known."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("requests", sa.Column("cached_tokens", sa.BigInteger))


def downgrade() -> None:
    op.drop_column("requests", "cached_tokens")
