"""What the engine tells, as the API shows it: the last seconds, decisions, metrics, setting."""

from __future__ import annotations

from typing import Any

import msgspec

from app.admin.ledger import Ledger
from app.admin.live import Live
from app.telemetry.metrics import Metrics
from app.telemetry.writer import Writer
from engine.wire import ControllerState, DrafterState, Hello, Snapshot


class Views:
    """controller is None and drafters are () until the engine is ready for the first time; both
    are then as last heard of from it. set_by, set_at: who made the setting, in seconds since the
    epoch."""

    def __init__(
        self, metrics: Metrics, writer: Writer, started_at: float, max_draft_length: int
    ) -> None:
        """started_at: seconds since the epoch. max_draft_length: the server's own setting, which
        holds until the engine tells its limit."""
        self.metrics = metrics
        self.live = Live()
        self.ledger = Ledger()
        self.controller: ControllerState | None = None
        self.drafters: tuple[DrafterState, ...] = ()
        self.set_by, self.set_at = "start", started_at
        self._writer = writer
        self._max_draft_length = max_draft_length

    @property
    def max_draft_length(self) -> int:
        """The largest D that may be asked for."""
        state = self.controller
        return self._max_draft_length if state is None else state.max_draft_length

    def observe_hello(self, hello: Hello) -> None:
        self.controller, self.drafters = hello.controller, hello.drafters

    def observe_snapshot(self, snapshot: Snapshot) -> None:
        self.controller, self.drafters = snapshot.controller, snapshot.drafters
        self.live.add(snapshot)
        self.ledger.add(snapshot.decisions)
        self.metrics.observe_snapshot(snapshot)
        self._writer.record_snapshot(snapshot)

    def controller_changed(self, state: Any, by: str, at: float) -> None:
        """Take over the engine's reply to an operator's change, before the next snapshot."""
        self.controller = msgspec.convert(state, ControllerState)
        self.set_by, self.set_at = by, at

    def drafter_changed(self, state: Any) -> None:
        """Likewise for one drafter."""
        changed = msgspec.convert(state, DrafterState)
        self.drafters = tuple(
            changed if drafter.name == changed.name else drafter for drafter in self.drafters
        )
