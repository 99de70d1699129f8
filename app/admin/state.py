"""GET /api/state: what the console's live page shows, in one call."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from litestar import get
from litestar.di import NamedDependency

from app.admin.control import controller_state
from app.service import Service


@get("/api/state", opt={"scope": "admin:read"}, operation_id="State", tags=["admin"])
async def state(service: NamedDependency[Service]) -> dict[str, Any]:
    """Model, engine, controller, the last second, five minutes of history, and storage."""
    now = time.time()
    engine = service.engine
    model = msgspec.to_builtins(engine.hello) if engine.hello else {}
    # These change while the engine runs and have their own places.
    for name in ("pid", "drafters", "controller", "type"):
        model.pop(name, None)
    return {
        "time": now,
        "uptime_s": now - service.started_at,
        "model": {"name": service.model, **model} if model else None,
        "engine": {
            "state": engine.state,
            "restarts": engine.restarts,
            "pid": engine.pid,
            "last_death": msgspec.to_builtins(engine.death),
        },
        "controller": controller_state(service),
        "live": service.views.live.now(),
        "history": service.views.live.history(),
        "storage": service.writer.status(),
    }
