"""External corpora: list, load, remove."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from litestar import Request, delete, get, put
from litestar.di import NamedDependency
from litestar.exceptions import InternalServerException
from litestar.params import FromPath

from app.admin.stored import database_away
from app.corpora.shelf import NoRoom
from app.corpora.upload import NAME, BadUpload, Upload, read_upload
from app.db.errors import DatabaseError
from app.errors import ApiError, ClientGone, bad_request, engine_error
from app.service import Service

T = TypeVar("T")

MEGABYTE = 1024 * 1024
PATIENCE_S = 30.0
LEAST_RATE = 128 * 1024
"""Bytes a second. An upload may be so slow, and PATIENCE_S behind that: two may run at a time."""


@get("/api/corpora", opt={"scope": "admin:read"}, operation_id="ListCorpora", tags=["corpora"])
async def list_corpora(service: NamedDependency[Service]) -> dict[str, Any]:
    """Every corpus, and how far the engine has it."""
    return {"corpora": service.corpora.list(), "limits": _limits(service)}


@put(
    "/api/corpora/{name:str}",
    opt={"scope": "operate"},
    operation_id="PutCorpus",
    tags=["corpora"],
    request_max_body_size=None,  # its limit is a setting
)
async def put_corpus(
    request: Request[Any, Any, Any], name: FromPath[str], service: NamedDependency[Service]
) -> dict[str, Any]:
    """Store a corpus, in place of what the name held; the engine takes it up in the background.

    The body is `{"documents": [{"text": …} | {"token_ids": […]}]}`, one such document a line
    (application/x-ndjson), or one text (text/plain)."""
    if not NAME.fullmatch(name):
        raise bad_request("name must be 1 to 64 of the characters A-Z a-z 0-9 . _ -", "name")
    before = service.corpora.find(name)

    async def change() -> dict[str, Any]:
        async with service.corpora.uploads:
            upload = await _read(request, service)
            limit = service.settings.corpus_limit_mb * MEGABYTE
            await service.corpora.put(name, upload, request.user.name, limit)
        return service.corpora.find(name) or {}

    return await _audited(request, service, "put_corpus", name, before, change)


@delete(
    "/api/corpora/{name:str}",
    status_code=200,
    opt={"scope": "operate"},
    operation_id="RemoveCorpus",
    tags=["corpora"],
)
async def remove_corpus(
    request: Request[Any, Any, Any], name: FromPath[str], service: NamedDependency[Service]
) -> dict[str, Any]:
    """Forget a corpus."""
    before = service.corpora.find(name)

    async def change() -> dict[str, Any]:
        if not await service.corpora.remove(name):
            raise ApiError(404, "unknown_corpus", f"There is no corpus '{name[:64]}'.", "name")
        return {}

    await _audited(request, service, "remove_corpus", name[:64], before, change)
    return {"name": name, "removed": True}


async def _read(request: Request[Any, Any, Any], service: Service) -> Upload:
    """The uploaded documents, read while other requests go on."""
    _check_coding(request)
    hello = service.engine.hello
    body = await _body(request, service.settings.corpus_limit_mb)
    kind = request.content_type[0] or "application/json"
    vocabulary = hello.vocabulary if hello else None
    try:
        upload = await asyncio.to_thread(read_upload, body, kind, vocabulary)
    except BadUpload as error:
        raise bad_request(error.message, error.param) from None
    if upload.token_ids and hello is None:
        raise engine_error(
            "engine_starting",
            "Token ids are checked against the model, which is still loading. Send them again "
            "when the server is ready, or send text.",
        )
    most = service.settings.corpus_tokens
    if upload.token_ids > most:
        raise _too_large(
            f"The corpus has {upload.token_ids:,} token ids; all corpora together may have "
            f"{most:,} (--corpus-tokens)."
        )
    return upload


def _check_coding(request: Request[Any, Any, Any]) -> None:
    """Raises a 415 for a body that would have to be unpacked or converted."""
    packed = request.headers.get("content-encoding", "").strip().lower()
    if packed not in ("", "identity"):
        raise _unsupported(f"Content-Encoding {packed[:64]} is not taken. Send the body unpacked.")
    charset = request.content_type[1].get("charset", "utf-8").strip("\"' ").lower()
    if charset not in ("utf-8", "utf8"):
        raise _unsupported(f"The charset {charset[:64]} is not taken. Send UTF-8.")


def _unsupported(message: str) -> ApiError:
    return ApiError(415, "unsupported_media_type", message)


async def _body(request: Request[Any, Any, Any], limit_mb: int) -> bytearray:
    message = (
        f"The corpus is larger than {limit_mb:,} MiB. Load it in parts under several names, or "
        "raise --corpus-limit-mb (PACELINE_CORPUS_LIMIT_MB)."
    )
    limit = limit_mb * MEGABYTE
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limit:
        raise _too_large(message)
    body = bytearray()
    stream = aiter(request.stream())
    began = asyncio.get_running_loop().time()
    try:
        while True:
            async with asyncio.timeout_at(began + PATIENCE_S + len(body) / LEAST_RATE):
                chunk = await anext(stream, None)
            if chunk is None:
                return body
            body += chunk
            if len(body) > limit:
                raise _too_large(message)
    except TimeoutError:
        raise ApiError(
            408,
            "upload_too_slow",
            f"The upload has been slower than {LEAST_RATE // 1024} KiB a second for "
            f"{PATIENCE_S:.0f} seconds, and others wait for its turn. Send it again over a faster "
            "connection, or in parts under several names.",
        ) from None
    except InternalServerException:
        raise ClientGone from None  # all that it stands for here


def _too_large(message: str) -> ApiError:
    return ApiError(413, "request_too_large", message)


def _limits(service: Service) -> dict[str, int]:
    settings = service.settings
    return {"corpus_limit_mb": settings.corpus_limit_mb, "corpus_tokens": settings.corpus_tokens}


async def _audited(
    request: Request[Any, Any, Any],
    service: Service,
    action: str,
    name: str,
    before: object,
    change: Callable[[], Awaitable[T]],
) -> T:
    """Make the change, and record it whether or not it could be made."""
    try:
        after = await change()
    except (ApiError, NoRoom, DatabaseError) as error:
        match error:
            case NoRoom():
                error = _too_large(str(error))
            case DatabaseError():
                error = database_away(error)
        service.audit(request, action, name, before, None, error.code)
        raise error from None
    service.audit(request, action, name, before, after or None)
    return after
