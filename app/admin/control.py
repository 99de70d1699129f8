"""Drafters, the controller's setting, and what-if: what an operator can change while serving."""

from __future__ import annotations

import math
import time
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta

from app.errors import ApiError, bad_request
from app.inference.limits import check_draft_length
from app.service import Service
from controller.contract import (
    MAX_DRAFT_BUDGET,
    MAX_SCHEDULE_ENTRIES,
    MAX_SCHEDULE_REQUESTS,
    MAX_TPOT_TARGET_MS,
    NONE,
    Mode,
)
from engine.wire import (
    CallBody,
    GetReport,
    GetWhatIf,
    LoadDrafter,
    SetController,
    SetDrafter,
    SetPolicy,
    UnloadDrafter,
)


class DrafterChange(msgspec.Struct, forbid_unknown_fields=True):
    """What is left out stays as it is. parameters: values by name, all of them taken or none."""

    enabled: bool | None = None
    parameters: Annotated[dict[str, Any], Meta(max_length=64)] = {}

    def numbers(self) -> dict[str, bool | int | float]:
        """The parameters, of whatever size. Raises ApiError for any that is no number."""
        for name, value in self.parameters.items():
            if not isinstance(value, bool | int | float):
                field = f"parameters.{name[:64]}"
                raise bad_request(f"{field} must be a number, true or false.", field)
        return {
            name: value if abs(value) < 2**63 else math.copysign(math.inf, value)
            for name, value in self.parameters.items()
        }


class DrafterLoad(msgspec.Struct, forbid_unknown_fields=True):
    """source: "auto" is what ships for the served model or its own checkpoint holds; else a folder
    on the server, or for draft_model a Hugging Face id. dry_run: only tell what it would take."""

    source: Annotated[str, Meta(min_length=1, max_length=4096)] = "auto"
    dry_run: bool = False


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """D for batches of up to so many decoding requests."""

    max_requests: Annotated[int, Meta(ge=1, le=MAX_SCHEDULE_REQUESTS)]
    draft_length: int


class ControllerChange(msgspec.Struct, forbid_unknown_fields=True):
    """mode pinned needs a drafter; without draft_length the controller picks D for it, or
    schedule gives D by batch size, and none above its last entry. max_drafting_requests: nobody
    drafts while more requests decode. tpot_target_ms: the time per output token that no request of
    a step should exceed, as predicted; draft_budget: drafted tokens of a step, over all requests;
    0 is none of either."""

    mode: Mode
    drafter: Annotated[str, Meta(max_length=64)] | None = None
    draft_length: int | None = None
    schedule: Annotated[list[Entry], Meta(max_length=MAX_SCHEDULE_ENTRIES)] = []
    max_drafting_requests: Annotated[int, Meta(ge=0, le=MAX_SCHEDULE_REQUESTS)] | None = None
    tpot_target_ms: Annotated[float, Meta(ge=0, le=MAX_TPOT_TARGET_MS)] | None = None
    draft_budget: Annotated[int, Meta(ge=0, le=MAX_DRAFT_BUDGET)] | None = None


class PolicyChange(msgspec.Struct, forbid_unknown_fields=True):
    """Options as `KEY=VALUE KEY=VALUE`. With ab_policy the share ab_share of the requests, by a
    hash of their ids, has that policy instead, and the report compares the two."""

    policy: Annotated[str, Meta(min_length=1, max_length=64)]
    policy_options: Annotated[str, Meta(max_length=4096)] = ""
    ab_policy: Annotated[str, Meta(max_length=64)] = ""
    ab_options: Annotated[str, Meta(max_length=4096)] = ""
    ab_share: Annotated[float, Meta(ge=0, le=1)] = 0.5


@get("/api/drafters", opt={"scope": "admin:read"}, operation_id="ListDrafters", tags=["admin"])
async def list_drafters(service: NamedDependency[Service]) -> dict[str, Any]:
    """Every drafter this server has, with whether it may be used."""
    return {"drafters": [msgspec.to_builtins(drafter) for drafter in service.views.drafters]}


@put(
    "/api/drafters/{name:str}",
    opt={"scope": "operate"},
    operation_id="SetDrafter",
    tags=["admin"],
)
async def set_drafter(
    request: Request[Any, Any, Any],
    name: FromPath[str],
    data: JSONBody[DrafterChange],
    service: NamedDependency[Service],
) -> dict[str, Any]:
    """Enable or disable a drafter or change its parameters, from the next step on; requests that
    name a disabled one get a 400."""
    if data.enabled is None and not data.parameters:
        raise bad_request("Give enabled, parameters, or both.", "enabled")
    before = _known(service, name)
    if name == NONE:
        if data.parameters:
            raise bad_request("Plain decoding has no parameters.", "parameters")
        if not data.enabled:
            raise bad_request("Plain decoding cannot be disabled.", "enabled")
        if before is not None:
            return before
    after = await _audited(
        request,
        service,
        "set_drafter",
        name,
        before,
        SetDrafter(name, data.enabled, data.numbers()),
    )
    service.views.drafter_changed(after)
    return after


@post(
    "/api/drafters/{name:str}/load",
    status_code=200,
    opt={"scope": "operate"},
    operation_id="LoadDrafter",
    tags=["admin"],
)
async def load_drafter(
    request: Request[Any, Any, Any],
    name: FromPath[str],
    data: JSONBody[DrafterLoad],
    service: NamedDependency[Service],
) -> dict[str, Any]:
    """Load a drafter with a model of its own while requests run; it drafts from the next step on.
    Answers when it is loaded, which is also shown by `GET /api/drafters`; with `dry_run` with the
    memory that it would take, for which a Hugging Face id is downloaded."""
    before = _known(service, name)
    body = LoadDrafter(name, data.source, data.dry_run)
    if data.dry_run and data.source == "auto":
        return await service.call(body)
    if data.dry_run:  # has the server read a folder or download a model
        return await _audited(request, service, "plan_drafter", name, before, body)
    after = await _audited(request, service, "load_drafter", name, before, body)
    service.views.drafter_changed(after)
    return after


@post(
    "/api/drafters/{name:str}/unload",
    status_code=200,
    opt={"scope": "operate"},
    operation_id="UnloadDrafter",
    tags=["admin"],
)
async def unload_drafter(
    request: Request[Any, Any, Any], name: FromPath[str], service: NamedDependency[Service]
) -> dict[str, Any]:
    """Take a drafter with a model of its own out of the memory; requests that it drafted for go on
    without it."""
    before = _known(service, name)
    after = await _audited(request, service, "unload_drafter", name, before, UnloadDrafter(name))
    service.views.drafter_changed(after)
    return after


@get("/api/controller", opt={"scope": "admin:read"}, operation_id="GetController", tags=["admin"])
async def get_controller(service: NamedDependency[Service]) -> dict[str, Any]:
    """The setting, who made it, and the controller's own report of its live models."""
    return await _controller_with_report(service)


@put(
    "/api/controller",
    opt={"scope": "operate"},
    operation_id="SetController",
    tags=["admin"],
)
async def set_controller(
    request: Request[Any, Any, Any],
    data: JSONBody[ControllerChange],
    service: NamedDependency[Service],
) -> dict[str, Any]:
    """Change mode, drafter, D and limits, all of them; takes effect at the next step."""
    _check(data, service)
    # Plain decoding has no draft length: as in a request, one that comes with it has no effect.
    length = None if data.drafter == NONE and data.mode == "pinned" else data.draft_length
    schedule = tuple((entry.max_requests, entry.draft_length) for entry in data.schedule)
    body = SetController(
        data.mode,
        data.drafter,
        length,
        schedule,
        data.max_drafting_requests,
        data.tpot_target_ms,
        data.draft_budget,
    )
    before = controller_state(service)
    after = await _audited(request, service, "set_controller", "controller", before, body)
    service.views.controller_changed(after, request.user.name, time.time())
    return await _controller_with_report(service)


@put(
    "/api/controller/policy",
    opt={"scope": "operate"},
    operation_id="SetPolicy",
    tags=["admin"],
)
async def set_policy(
    request: Request[Any, Any, Any],
    data: JSONBody[PolicyChange],
    service: NamedDependency[Service],
) -> dict[str, Any]:
    """Change who chooses drafter and D, from the next step on; mode and limits stay."""
    body = SetPolicy(
        data.policy, data.policy_options, data.ab_policy, data.ab_options, data.ab_share
    )
    before = controller_state(service)
    after = await _audited(request, service, "set_policy", "controller", before, body)
    service.views.controller_changed(after, request.user.name, time.time())
    return await _controller_with_report(service)


@get("/api/what-if", opt={"scope": "admin:read"}, operation_id="WhatIf", tags=["admin"])
async def what_if(
    service: NamedDependency[Service],
    batch_size: Annotated[int, QueryParameter(ge=1, le=1024)],
    context_len: Annotated[int, QueryParameter(ge=1, le=2**20)],
) -> dict[str, Any]:
    """Predicted goodput of every candidate at a batch size and context, from live models."""
    return await service.call(GetWhatIf(batch_size, context_len))


def controller_state(service: Service) -> dict[str, Any] | None:
    """The setting with who made it and when; None before the engine is known."""
    state = service.views.controller
    if state is None:
        return None
    schedule = [
        {"max_requests": largest, "draft_length": length} for largest, length in state.schedule
    ]
    fields = {**msgspec.to_builtins(state), "schedule": schedule}
    return {**fields, "set_by": service.views.set_by, "set_at": service.views.set_at}


async def _controller_with_report(service: Service) -> dict[str, Any]:
    report = await service.call(GetReport())
    return {**(controller_state(service) or {}), "report": report}


def _check(data: ControllerChange, service: Service) -> None:
    known = {drafter.name: drafter for drafter in service.views.drafters}
    if data.mode == "pinned" and data.drafter is None:
        raise bad_request(f"mode 'pinned' needs a drafter. {_allowed(known)}", "drafter")
    if known and data.drafter is not None and data.drafter not in known:
        raise ApiError(
            400,
            "unknown_drafter",
            f"There is no drafter '{data.drafter}'. {_allowed(known)}",
            "drafter",
        )
    model = known[data.drafter].model if data.drafter in known else None
    if model is not None and model.state != "loaded":
        raise ApiError(
            409,
            "drafter_not_loaded",
            f"Drafter '{data.drafter}' is not loaded: POST /api/drafters/{data.drafter}/load.",
            "drafter",
        )
    limit = service.views.max_draft_length
    if data.drafter in known and data.drafter != NONE:
        limit = min(limit, known[data.drafter].max_draft_length)
    check_draft_length(data.draft_length, limit, "draft_length")
    for index, entry in enumerate(data.schedule):
        check_draft_length(entry.draft_length, limit, f"schedule[{index}].draft_length")


def _known(service: Service, name: str) -> dict[str, Any] | None:
    """The drafter as it is now; None before the engine is known. Raises ApiError."""
    known = {drafter.name: drafter for drafter in service.views.drafters}
    if known and name not in known:
        raise ApiError(
            404, "unknown_drafter", f"There is no drafter '{name[:64]}'. {_allowed(known)}", "name"
        )
    return msgspec.to_builtins(known[name]) if name in known else None


def _allowed(known: dict[str, Any]) -> str:
    return f"Known are: {', '.join(known) or 'none yet'}."


async def _audited(
    request: Request[Any, Any, Any],
    service: Service,
    action: str,
    target: str,
    before: object,
    body: CallBody,
) -> Any:
    """Make the change, and record it whether or not the engine took it."""
    try:
        after = await service.call(body)
    except ApiError as error:
        wanted = msgspec.to_builtins(body)
        service.audit(request, action, target, before, wanted, error.code)
        raise
    service.audit(request, action, target, before, after)
    return after
