"""GET /v1/models: the one model this server serves."""

from __future__ import annotations

from typing import Any

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath

from app.service import Service


@get("/v1/models", opt={"scope": "inference"}, operation_id="ListModels", tags=["inference"])
async def list_models(service: NamedDependency[Service]) -> dict[str, Any]:
    """The served model with its context length."""
    return {"object": "list", "data": [_model(service)]}


@get(
    "/v1/models/{model:path}",
    opt={"scope": "inference"},
    operation_id="GetModel",
    tags=["inference"],
)
async def get_model(model: FromPath[str], service: NamedDependency[Service]) -> dict[str, Any]:
    """One model by id; hub ids contain a slash."""
    service.check_model(model.lstrip("/"))
    return _model(service)


def _model(service: Service) -> dict[str, Any]:
    hello = service.engine.hello
    return {
        "id": service.model,
        "object": "model",
        "created": int(service.started_at),
        "owned_by": "paceline",
        "max_model_len": hello.context_length if hello else None,
    }
