"""The second being filled: snapshots become one set of aggregate rows per second."""

from __future__ import annotations

from app.db.tables import engine_aggregates, step_aggregates
from app.telemetry.merge import merge_rows
from app.telemetry.records import Row, engine_row, line, step_rows
from engine.wire import Snapshot


class OpenSecond:
    """Holds a second back until a snapshot of another second comes.

    Stored aggregates are replaced, never added to, so that writing them twice is harmless; two
    snapshots that fall into one second (timer jitter, an engine restart) meet here instead."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._bucket: int | None = None
        self._engine: list[Row] = []
        self._steps: list[Row] = []

    @property
    def bucket(self) -> int | None:
        return self._bucket

    def add(self, snapshot: Snapshot) -> list[bytes]:
        """Takes a snapshot in and returns the lines of the second that it completes, if any."""
        bucket = int(snapshot.time)
        done: list[bytes] = []
        if self._bucket is not None and bucket not in (self._bucket, self._bucket - 1):
            done = self.close()
        if self._bucket is None:
            self._bucket = bucket
        self._engine.append(engine_row(snapshot, self._model, self._bucket))
        self._steps.extend(step_rows(snapshot, self._model, self._bucket))
        return done

    def close(self) -> list[bytes]:
        """The lines of the second held back, if any; then none is held."""
        if self._bucket is None:
            return []
        lines = [
            line(table, row)
            for table, rows in (
                (engine_aggregates["1s"], self._engine),
                (step_aggregates["1s"], self._steps),
            )
            for row in merge_rows(table, rows, self._bucket)
        ]
        self._bucket = None
        self._engine = []
        self._steps = []
        return lines
