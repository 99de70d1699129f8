"""The last five minutes of the engine in memory, for the live view."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from engine.wire import Snapshot

HISTORY_S = 300.0
ACCEPTANCE_S = 60.0


class Live:
    """Snapshots of the last 300 s and what is read off them."""

    def __init__(self) -> None:
        self._snapshots: deque[Snapshot] = deque(maxlen=int(HISTORY_S))

    @property
    def last(self) -> Snapshot | None:
        return self._snapshots[-1] if self._snapshots else None

    def add(self, snapshot: Snapshot) -> None:
        self._snapshots.append(snapshot)

    def now(self) -> dict[str, Any] | None:
        """The last snapshot's numbers, with acceptance by position over the last 60 s."""
        last = self.last
        if last is None:
            return None
        return {
            **point(last),
            "interval_s": last.interval_s,
            "steps": last.steps,
            "forwards": last.forwards,
            "tokens": last.tokens,
            "drafted_tokens": last.drafted_tokens,
            "prefill_tokens": last.prefill_tokens,
            "batch_max": last.batch_max,
            "free_pages": last.free_pages,
            "total_pages": last.total_pages,
            "step_ms_p50": last.step_ms_p50,
            "step_ms_p99": last.step_ms_p99,
            "acceptance_by_position": self.acceptance(),
        }

    def history(self) -> list[dict[str, Any]]:
        """One point per second of the last 300 s, oldest first."""
        if not self._snapshots:
            return []
        since = self._snapshots[-1].time - HISTORY_S
        return [point(snapshot) for snapshot in self._snapshots if snapshot.time > since]

    def acceptance(self) -> list[dict[str, Any]]:
        """By drafter and position (1 is the first drafted token): how often it was reached,
        accepted, and the share of it, P(accepted | reached), over the last 60 s."""
        if not self._snapshots:
            return []
        since = self._snapshots[-1].time - ACCEPTANCE_S
        reached: Counter[tuple[str, int]] = Counter()
        accepted: Counter[tuple[str, int]] = Counter()
        for snapshot in self._snapshots:
            if snapshot.time <= since:
                continue
            for cell in snapshot.cells:
                for index, count in enumerate(cell.reached):
                    reached[cell.drafter, index + 1] += count
                for index, count in enumerate(cell.accepted_at):
                    accepted[cell.drafter, index + 1] += count
        return [
            {
                "drafter": drafter,
                "position": position,
                "reached": count,
                "accepted": accepted[drafter, position],
                "rate": accepted[drafter, position] / count,
            }
            for (drafter, position), count in sorted(reached.items())
            if count
        ]


def point(snapshot: Snapshot) -> dict[str, Any]:
    """One second as a point of the live charts. Shares are 0..1, None when nothing ran."""
    steps: Counter[str] = Counter()
    length_sum = 0
    for cell in snapshot.cells:
        steps[cell.drafter] += cell.request_steps
        length_sum += cell.draft_length * cell.request_steps
    total = steps.total()
    return {
        "time": snapshot.time,
        "tokens_per_s": snapshot.tokens / snapshot.interval_s if snapshot.interval_s > 0 else 0.0,
        "tpot_ms": snapshot.tpot_ms,
        "batch_mean": snapshot.batch_mean,
        "running": snapshot.running,
        "waiting": snapshot.waiting,
        "drafted_share": snapshot.drafted_tokens / snapshot.tokens if snapshot.tokens else None,
        "draft_length_mean": length_sum / total if total else None,
        "drafters": {name: count / total for name, count in sorted(steps.items())} if total else {},
    }
