"""Errors as their client expects them: an OpenAI error object or an RFC 9457 problem."""

from __future__ import annotations

import logging
import re
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import (
    HTTPException,
    MethodNotAllowedException,
    SerializationException,
    ValidationException,
)

from app.malformed import explain

OPENAI_PATHS = ("/v1", "/tokenize", "/detokenize")
MAX_MESSAGE_CHARS = 500
MAX_BODY_BYTES = 2 * 1024 * 1024

log = logging.getLogger(__name__)

# Engine code -> (status, seconds after which to try again).
ENGINE_STATUS: dict[str, tuple[int, int | None]] = {
    "invalid_request": (400, None),
    "context_length_exceeded": (400, None),
    "unknown_drafter": (400, None),
    "draft_length_out_of_range": (400, None),
    "drafter_disabled": (400, None),
    "bad_setting": (400, None),
    "unknown_parameter": (400, None),
    "parameter_out_of_range": (400, None),
    "drafter_not_loadable": (400, None),
    "drafter_unfit": (400, None),
    "drafter_loaded": (409, None),
    "drafter_loading": (409, 5),
    "drafter_not_loaded": (409, None),
    "drafter_pinned": (409, None),
    "memory_too_small": (409, None),
    "recording_running": (409, None),
    "queue_full": (503, 2),
    "out_of_memory": (503, 5),
    "engine_starting": (503, 5),
    "engine_restarting": (503, 5),
    "engine_failed": (503, None),
    "draining": (503, 5),
    "internal": (500, None),
}

_STATUS_CODE = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "insufficient_scope",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    503: "overloaded",
}
_STATUS_TYPE = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# File paths, but not the API's own routes.
_PATHS = re.compile(
    r"(?<![\w:/.])/(?!(?:api|v1|health|metrics|tokenize|detokenize|schema)\b)(?:[\w.@+-]+/)+[\w.@+-]*"
)
_MODEL_FILE = re.compile(r"/([\w.@+-]+\.(?:json|safetensors|gguf|jinja|model)[.]?)$")
_ADDRESSES = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_VALIDATION_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")


class ApiError(Exception):
    """An answer other than success. param names the offending field; retry_after in seconds;
    allow: the methods that the path has."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        retry_after: int | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = clean(message)
        self.param = param
        self.retry_after = retry_after
        self.allow = allow

    @property
    def type(self) -> str:
        default = "invalid_request_error" if self.status < 500 else "server_error"
        return _STATUS_TYPE.get(self.status, default)

    def openai(self) -> dict[str, Any]:
        """The value of the `error` field."""
        return {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }

    def problem(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.message,
            "code": self.code,
        }
        return body | ({"field": self.param} if self.param else {})

    def response(self, path: str) -> Response[bytes]:
        """The HTTP answer in the shape of the path's clients."""
        openai = is_openai(path)
        headers: dict[str, str] = {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.allow is not None:
            headers["Allow"] = self.allow
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        elif openai and self.status >= 500:
            headers["x-should-retry"] = "false"
        return Response(
            msgspec.json.encode({"error": self.openai()} if openai else self.problem()),
            status_code=self.status,
            media_type="application/json" if openai else "application/problem+json",
            headers=headers,
        )


class ClientGone(Exception):
    """The client closed the connection; nobody reads the answer."""


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, code, message, param)


def unsupported(param: str) -> ApiError:
    return ApiError(
        400, "unsupported_parameter", f"'{param}' is not supported by this server.", param
    )


def engine_error(code: str, message: str, param: str | None = None) -> ApiError:
    """The API's answer to an error code of the engine."""
    status, retry_after = ENGINE_STATUS.get(code, (500, None))
    return ApiError(status, code, message, param, retry_after)


def is_openai(path: str) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in OPENAI_PATHS)


def clean(message: str) -> str:
    """The message without file paths, addresses and control characters, at most 500 characters. Of
    a model's file its own name stays."""
    message = _CONTROL.sub(" ", message[: 4 * MAX_MESSAGE_CHARS])
    message = _ADDRESSES.sub("[address]", _PATHS.sub(_without_folder, message))
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[: MAX_MESSAGE_CHARS - 1] + "…"
    return message


def _without_folder(path: re.Match[str]) -> str:
    file = _MODEL_FILE.search(path[0])
    return "[path]" if file is None else f"[path]/{file[1]}"


def validation_error(text: str) -> ApiError:
    """msgspec's `Expected … - at `$.path`` as a 400 whose param is the path."""
    match = _VALIDATION_PATH.search(text)
    param = match[1] if match else ""
    if match:
        text = text[: match.start()] + text[match.end() :]
    return _invalid(text, param)


def invalid_json(what: str, detail: str, body: bytes | str) -> ApiError:
    """A 400 for a body or event that cannot be decoded. what: how its sender calls it. detail:
    what the decoder said."""
    reason, param = explain(detail.rstrip("."), body)
    return bad_request(f"{what} is not valid JSON: {reason}.", param, "invalid_json")


def _invalid(text: str, path: str) -> ApiError:
    """A 400 for the value at a path; "" is the whole body. A missing field is named itself, not
    the object that should have it."""
    path, inside, _ = path.partition("[...]")  # what stands for a key that is not told
    if inside and path:
        text = f"a value in it is wrong: {text}"
    if match := _MISSING.search(text):
        path = f"{path}.{match[1]}" if path else match[1]
    return bad_request(f"{path}: {text}" if path else text, path or None)


def handle(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The app's one exception handler."""
    answer = as_api_error(error)
    if isinstance(error, HTTPException) and isinstance(error.__cause__, SerializationException):
        answer = invalid_json("The request body", error.detail, _body(request))
    if isinstance(error, ValidationException):
        answer = _with_query_name(answer, request)
    return answer.response(request.scope["path"])


def _body(request: Request[Any, Any, Any]) -> bytes:
    """The body that was read before; empty when none was."""
    reading = request.body()
    try:
        reading.send(None)  # a body that was read is there without waiting
    except StopIteration as done:
        return done.value
    except Exception:
        return b""
    reading.close()
    return b""


def _with_query_name(error: ApiError, request: Request[Any, Any, Any]) -> ApiError:
    """The error with the name of the query parameter as clients send it."""
    signature = request.scope["route_handler"].parsed_fn_signature
    field = signature.parameters.get(error.param or "")
    name = getattr(field.kwarg_definition, "name", None) if field else None
    if not name or not error.param or name == error.param:
        return error
    return bad_request(name + error.message.removeprefix(error.param), name, error.code)


def as_api_error(error: Exception) -> ApiError:
    """Any exception as the answer to give; unexpected ones are logged and say nothing."""
    match error:
        case ApiError():
            return error
        case ClientGone():
            return ApiError(408, "client_gone", "The client closed the connection.")
        case msgspec.ValidationError():
            return validation_error(str(error))
        case ValidationException(extra=[{"message": "'data'"}, *_]):
            return bad_request("The request body is missing.")
        case ValidationException(__cause__=KeyError(args=[str(name)])):
            return bad_request(f"The query parameter '{name}' is missing.", name)
        case ValidationException(extra=[{"message": str(text), **rest}, *_]):
            key = rest.get("key")
            # Litestar calls the whole body "data"; the client does not know that name.
            path = str(key).removeprefix("data").removeprefix(".") if key else ""
            return _invalid(str(text), path)
        case MethodNotAllowedException(headers={"allow": str(allow)}):
            allow = ", ".join(method for method in allow.split(", ") if method.isupper())
            message = f"This path does not take the method; it takes {allow or 'WebSockets'}."
            return ApiError(405, "method_not_allowed", message, allow=allow)
        case HTTPException(status_code=413):
            message = f"The request body is larger than {MAX_BODY_BYTES} bytes (2 MiB)."
            return ApiError(413, "request_too_large", message)
        case HTTPException(__cause__=SerializationException()):
            return invalid_json("The request body", error.detail, b"")
        case HTTPException(status_code=status) if status < 500:
            return ApiError(status, _STATUS_CODE.get(status, "invalid_request"), error.detail)
        case RecursionError():
            return bad_request("The request body is nested too deeply.")
        case _:
            log.error("unexpected error", exc_info=error)
            return ApiError(500, "internal", "Something went wrong on the server. See its log.")
