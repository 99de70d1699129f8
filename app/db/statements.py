"""Inserts that survive being repeated, for SQLite and PostgreSQL alike."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import Insert


def insert_new(table: sa.Table, dialect: str) -> Insert:
    """INSERT that leaves a row of the same key as it is."""
    if dialect == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


def upsert(table: sa.Table, dialect: str, *, not_below: str | None = None) -> Insert:
    """INSERT that replaces a row of the same key.

    not_below: a column that must not shrink; a row that would shrink it is left as it is."""
    insert: Any = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    keys = [column.name for column in table.primary_key]
    values = {c.name: insert.excluded[c.name] for c in table.columns if c.name not in keys}
    where = None if not_below is None else insert.excluded[not_below] >= table.c[not_below]
    return insert.on_conflict_do_update(index_elements=keys, set_=values, where=where)
