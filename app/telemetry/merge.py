"""Merging aggregate rows: counts add up, position lists add up element by element."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa

from app.telemetry.records import Row


def merge_rows(table: sa.Table, rows: Iterable[Row], bucket: int) -> list[Row]:
    """One row per distinct key, the bucket aside, with the given bucket; in order of first use.

    Columns combine as their info["merge"] says (app.db.tables)."""
    rules = [(column.name, column.info["merge"]) for column in table.columns if column.info]
    keys = [column.name for column in table.primary_key if column.name != "bucket"]
    merged: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        total = merged.get(key)
        if total is None:
            merged[key] = {**row, "bucket": bucket}
            continue
        for name, rule in rules:
            total[name] = _combine(rule, total[name], row[name])
    return list(merged.values())


def _combine(rule: str, left: Any, right: Any) -> Any:
    if rule == "sum":
        return left + right
    if rule == "positions":
        return [a + b for a, b in zip_longest(left, right, fillvalue=0)]
    if left is None or right is None:
        return right if left is None else left
    return max(left, right) if rule == "max" else min(left, right)
