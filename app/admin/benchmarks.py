"""Benchmarks for the console: record the rows of one, list them, read and remove one."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec
from litestar import MediaType, Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta

from app.admin.stored import stored
from app.bench.page import page
from app.bench.report import Row
from app.bench.result import Result
from app.db.benchmarks import BenchmarkRecord
from app.errors import ApiError, bad_request
from app.inference.limits import MAX_BODY_BYTES
from app.service import Service

Word = Annotated[str, Meta(max_length=2000)]
MOST_ROWS = 5000
MOST_ABOUT = 64 * 1024
"""Bytes of command, machine and settings as JSON: the list holds these of every benchmark."""


class Benchmark(msgspec.Struct):
    """What `paceline bench --record` sends: a result without its requests. command, machine and
    settings have 64 KiB together, as JSON."""

    kind: Literal["bench", "compare"]
    time: Annotated[float, Meta(ge=0, le=4e9)]
    base: Annotated[str, Meta(min_length=1, max_length=64)]
    command: Annotated[list[Word], Meta(max_length=500)]
    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: Annotated[list[Row], Meta(max_length=MOST_ROWS)]


@post(
    "/api/benchmarks",
    status_code=201,
    opt={"scope": "operate"},
    operation_id="RecordBenchmark",
    tags=["admin"],
    request_max_body_size=MAX_BODY_BYTES,
)
async def record_benchmark(
    request: Request[Any, Any, Any],
    data: JSONBody[Benchmark],
    service: NamedDependency[Service],
) -> dict[str, str]:
    """Store the rows of a benchmark; the oldest go when there are many."""
    if b"\\u0000" in msgspec.json.encode(data):
        raise bad_request("A text holds the character NUL, which databases do not store.")
    _check_about(data)
    record = BenchmarkRecord(
        id=f"bench-{secrets.token_hex(8)}",
        ts=time.time(),
        began=data.time,
        created_by=request.user.name,
        model=service.model,
        kind=data.kind,
        base=data.base,
        command=data.command,
        machine=data.machine,
        settings=data.settings,
        rows=msgspec.to_builtins(data.rows),
    )
    await stored(service.benchmarks.put(record))
    told = {"kind": data.kind, "rows": len(data.rows)}
    service.audit(request, "record_benchmark", record.id, None, told)
    return {"id": record.id}


@get(
    "/api/benchmarks",
    opt={"scope": "admin:read"},
    operation_id="ListBenchmarks",
    tags=["admin"],
)
async def list_benchmarks(service: NamedDependency[Service]) -> dict[str, Any]:
    """The newest first, without their rows."""
    return {"benchmarks": await stored(service.benchmarks.list())}


@get(
    "/api/benchmarks/{name:str}",
    opt={"scope": "admin:read"},
    operation_id="GetBenchmark",
    tags=["admin"],
)
async def get_benchmark(
    name: FromPath[str],
    service: NamedDependency[Service],
    form: Annotated[Literal["json", "html"], QueryParameter(name="format")] = "json",
) -> Response[Any]:
    """One with its rows; with `format=html` as the page that `paceline bench --html` writes."""
    found = await stored(service.benchmarks.get(name))
    if found is None:
        raise _unknown(name)
    if form == "json":
        return Response(asdict(found))
    # Charts of thousands of rows take a while.
    text = await asyncio.to_thread(_page, found)
    return Response(text, media_type=MediaType.HTML)


@delete(
    "/api/benchmarks/{name:str}",
    status_code=200,
    opt={"scope": "operate"},
    operation_id="RemoveBenchmark",
    tags=["admin"],
)
async def remove_benchmark(
    request: Request[Any, Any, Any], name: FromPath[str], service: NamedDependency[Service]
) -> dict[str, Any]:
    """Forget one."""
    if not await stored(service.benchmarks.delete(name)):
        raise _unknown(name)
    service.audit(request, "remove_benchmark", name[:64], {"id": name}, None)
    return {"id": name, "removed": True}


def _check_about(data: Benchmark) -> None:
    """Raises ApiError, which names the largest of the fields that are too large together."""
    names = ("command", "machine", "settings")
    sizes = {name: len(msgspec.json.encode(getattr(data, name))) for name in names}
    if (total := sum(sizes.values())) > MOST_ABOUT:
        largest = max(names, key=lambda name: sizes[name])
        raise bad_request(
            f"command, machine and settings have {total:,} bytes as JSON, {largest} the most of "
            f"them ({sizes[largest]:,}); together they may have {MOST_ABOUT:,}.",
            largest,
        )


def _page(record: BenchmarkRecord) -> str:
    try:
        rows = msgspec.convert(record.rows, list[Row])
    except msgspec.ValidationError as error:
        message = f"The rows are not those of this version's paceline bench: {error}"
        raise ApiError(409, "unreadable_rows", message) from None
    settings, base = record.settings, record.base
    return page(
        Result(
            record.kind,
            record.command,
            record.began,
            record.machine,
            None,
            settings,
            base,
            rows,
            [],
        )
    )


def _unknown(name: str) -> ApiError:
    return ApiError(404, "unknown_benchmark", f"There is no benchmark '{name[:64]}'.", "name")
