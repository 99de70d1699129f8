"""Liveness, readiness, version and metrics."""

from __future__ import annotations

import platform
from typing import Any

from litestar import Response, get, head
from litestar.di import NamedDependency

from app import package_version
from app.errors import clean
from app.service import Service
from app.telemetry.metrics import CONTENT_TYPE


@get("/health/live", opt={"scope": "open"}, operation_id="Live", tags=["health"])
async def live() -> dict[str, str]:
    """Always 200 while the process answers, also while the engine loads or restarts."""
    return {"status": "live"}


@get("/health/ready", opt={"scope": "open"}, operation_id="Ready", tags=["health"])
async def ready(service: NamedDependency[Service]) -> Response[dict[str, Any]]:
    """200 when requests are served, else 503 with a detail that says why. A database that is away
    only degrades."""
    engine = service.engine
    status = _status(service)
    progress = engine.progress
    body = {
        "status": status,
        "database": "degraded" if service.writer.status()["degraded"] else "ok",
        "engine": {
            "state": engine.state,
            "restarts": engine.restarts,
            "progress": None
            if progress is None
            else {
                "stage": progress.stage,
                "fraction": progress.fraction,
                "message": progress.message,
            },
        },
    }
    if status != "ready":
        body["detail"] = _detail(service, status)
    return Response(body, status_code=200 if status == "ready" else 503)


@head("/health/live", opt={"scope": "open"}, include_in_schema=False)
async def live_head() -> None:
    """The status of GET without its body."""


@head("/health/ready", opt={"scope": "open"}, include_in_schema=False)
async def ready_head(service: NamedDependency[Service]) -> Response[None]:
    """The status of GET without its body."""
    return Response(None, status_code=200 if _status(service) == "ready" else 503)


def _detail(service: Service, status: str) -> str:
    """Why nothing is served, for anyone to read: without paths and lines of the log."""
    if status in ("restarting", "failed") and service.engine.death is not None:
        return clean(service.engine.death.reason)
    return _DETAILS[status]


_DETAILS = {
    "starting": "The engine is still loading.",
    "restarting": "The engine stopped and is restarting.",
    "failed": "The engine could not start.",
    "draining": "The server is shutting down.",
    "stopped": "The server is shutting down.",
}


def _status(service: Service) -> str:
    return "draining" if service.draining else service.engine.state


@get("/version", opt={"scope": "open"}, operation_id="Version", tags=["health"])
async def version(service: NamedDependency[Service]) -> dict[str, str]:
    """Versions of the server and of Python, and the served model's name."""
    return {
        "version": package_version(),
        "model": service.model,
        "python": platform.python_version(),
    }


@get("/metrics", opt={"scope": "metrics:read"}, operation_id="Metrics", tags=["health"])
async def metrics(service: NamedDependency[Service]) -> Response[bytes]:
    """Prometheus text format."""
    return Response(service.views.metrics.render(), media_type=CONTENT_TYPE)
