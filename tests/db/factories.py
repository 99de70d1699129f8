"""Records as the engine and the service make them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from app.telemetry.records import RequestRecord
from controller.contract import Candidate, Decision, Realised, StepRecord
from engine.wire import Cell, ControllerState, Snapshot


@dataclass
class Make:
    """time: the moment, in seconds since the epoch, that all times count from."""

    time: float = 1_800_000_000.0

    def request(self, number: int, **changes: Any) -> RequestRecord:
        fields: dict[str, Any] = {
            "id": f"req_{number:06d}",
            "ts": self.time + number,
            "key_id": "key_1",
            "model": "m",
            "endpoint": "/v1/chat/completions",
            "transport": "http",
            "prompt_tokens": 5,
            "cached_tokens": 3,
            "completion_tokens": 9,
            "steps": 4,
            "drafted": 8,
            "accepted": 5,
            "histogram": (1, 1, 2),
            "drafters": {"ngram": 4},
            "speculation": {"enabled": True},
        }
        return RequestRecord(**{**fields, **changes})

    def decision(self, number: int, steps: int = 1, **changes: Any) -> Decision:
        best = Candidate("ngram", 4.0, 3.1, 20.0, 155.0, 150.0, 160.0)
        plain = Candidate("none", 0.0, 1.0, 10.0, 100.0, 99.0, 101.0)
        decision = Decision(
            id=f"dec_{number:06d}",
            step=number,
            time=self.time + number,
            drafter="ngram",
            draft_length=4.0,
            previous_drafter="none",
            previous_draft_length=0.0,
            inputs={"batch": 2, "acceptance": [0.8, 0.7]},
            candidates=(best, plain),
            runner_up=plain,
            margin=0.55,
            reason="better_goodput",
            sentence="ngram with D = 4 is expected to give 155 tokens/s.",
            guard=None,
            predicted_goodput=155.0,
            requests=(number, number + 1),
            realised=Realised(steps, 3 * steps, 20.0 * steps),
            predicted_tokens=3.1,
            predicted_ms=20.0,
        )
        return replace(decision, **changes)

    def step_record(self, number: int, **changes: Any) -> StepRecord:
        record = StepRecord(
            id=f"step_{number:06d}",
            step=number,
            time=self.time + number,
            requests=3,
            context=210.5,
            prefill_rows=0,
            drafts={"ngram": (2, 7)},
            predicted_tokens=5.0,
            predicted_ms=20.0,
            realised_tokens=4,
            realised_ms=21.0,
            price=0.06,
            probe=False,
            guard=None,
            decision="dec_000001",
        )
        return replace(record, **changes)

    def cell(self, drafter: str = "ngram", draft_length: int = 2, steps: int = 10) -> Cell:
        if drafter == "none":
            return Cell(drafter, 0, steps, steps, 0, 0, (), (), 1.5 * steps, 0.0, 0.25 * steps)
        reached = tuple(steps - k for k in range(draft_length))
        accepted = tuple(max(0, steps - 2 - k) for k in range(draft_length))
        tokens = steps + sum(accepted)
        drafted = steps * draft_length
        times = (2.0 * steps, 0.5 * steps, 0.25 * steps)
        return Cell(
            drafter, draft_length, steps, tokens, drafted, sum(accepted), reached, accepted, *times
        )

    def snapshot(self, second: float, *cells: Cell, **changes: Any) -> Snapshot:
        fields: dict[str, Any] = {
            "time": self.time + second,
            "interval_s": 1.0,
            "steps": sum(cell.request_steps for cell in cells),
            "forwards": sum(cell.request_steps for cell in cells),
            "tokens": sum(cell.tokens for cell in cells),
            "drafted_tokens": sum(cell.accepted for cell in cells),
            "prefill_tokens": 7,
            "running": 2,
            "waiting": 1,
            "batch_mean": 1.5,
            "batch_max": 2,
            "free_pages": 90,
            "total_pages": 100,
            "tpot_ms": 12.5 if cells else None,
            "step_ms_p50": 10.0,
            "step_ms_p99": 14.0,
            "cells": cells,
            "decisions": (),
            "controller": ControllerState("auto", None, None, 8),
            "drafters": (),
        }
        return Snapshot(**{**fields, **changes})
