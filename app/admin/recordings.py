"""Recordings of the running engine, to be replayed by the simulator: no text is in them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Annotated, Any, BinaryIO

import msgspec
from litestar import Request, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from litestar.response import Stream
from msgspec import Meta

from app.service import Service
from engine.wire import MAX_RECORDING_BYTES, MAX_RECORDING_S

MB = 2**20
CHUNK_BYTES = 256 * 1024


class RecordingStart(msgspec.Struct, forbid_unknown_fields=True):
    """When it ends by itself: after so many seconds or megabytes (2^20 bytes) of lines."""

    seconds: Annotated[float, Meta(ge=1, le=MAX_RECORDING_S)] = 60.0
    megabytes: Annotated[int, Meta(ge=1, le=MAX_RECORDING_BYTES // MB)] = 64


@get(
    "/api/recordings",
    opt={"scope": "admin:read"},
    operation_id="ListRecordings",
    tags=["admin"],
)
async def list_recordings(service: NamedDependency[Service]) -> dict[str, Any]:
    """The newest first, the one that runs included."""
    return {"recordings": [msgspec.to_builtins(one) for one in await service.recordings.list()]}


@post(
    "/api/recordings",
    status_code=201,
    opt={"scope": "operate"},
    operation_id="StartRecording",
    tags=["admin"],
)
async def start_recording(
    request: Request[Any, Any, Any],
    data: JSONBody[RecordingStart],
    service: NamedDependency[Service],
) -> dict[str, Any]:
    """Record arrivals, lengths, and what every step's drafts and shadow scores gave, of all
    requests. Counts and times only: no text, no token, no key."""
    found = await service.recordings.start(service.describe(), data.seconds, data.megabytes * MB)
    service.audit(request, "start_recording", found.name, None, msgspec.to_builtins(data))
    return msgspec.to_builtins(found)


@post(
    "/api/recordings/stop",
    status_code=200,
    opt={"scope": "operate"},
    operation_id="StopRecording",
    tags=["admin"],
)
async def stop_recording(
    request: Request[Any, Any, Any], service: NamedDependency[Service]
) -> dict[str, Any]:
    """End the one that runs; answers when its file is whole."""
    found = msgspec.to_builtins(await service.recordings.stop())
    service.audit(request, "stop_recording", found["name"], None, found)
    return found


@get(
    "/api/recordings/{name:str}",
    opt={"scope": "admin:read"},
    operation_id="GetRecording",
    tags=["admin"],
)
async def get_recording(name: FromPath[str], service: NamedDependency[Service]) -> Stream:
    """The file of one that has ended, as JSON lines. It is read to its end, also when it is removed
    meanwhile."""
    file = await service.recordings.read(name)
    headers = {
        "Content-Length": str(os.fstat(file.fileno()).st_size),
        "Content-Disposition": f'attachment; filename="{name}.jsonl"',
    }
    return Stream(_chunks(file), media_type="application/x-ndjson", headers=headers)


async def _chunks(file: BinaryIO) -> AsyncGenerator[bytes]:
    with file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk


@delete(
    "/api/recordings/{name:str}",
    status_code=200,
    opt={"scope": "operate"},
    operation_id="RemoveRecording",
    tags=["admin"],
)
async def remove_recording(
    request: Request[Any, Any, Any], name: FromPath[str], service: NamedDependency[Service]
) -> dict[str, Any]:
    """Remove the file of one that has ended."""
    await service.recordings.remove(name)
    service.audit(request, "remove_recording", name[:64], {"name": name}, None)
    return {"name": name, "removed": True}
