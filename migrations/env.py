"""Alembic environment: runs revisions on the connection that app.db.migrate hands over."""

from __future__ import annotations

from alembic import context

from app.db.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("Run migrations with `paceline db`; it opens and locks the database.")

context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    compare_type=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
