"""The events of one response, the same over HTTP and WebSocket."""

from __future__ import annotations

import time
import uuid
from typing import Any

from app.errors import ApiError
from app.inference import logprobs, numbers
from app.inference.response_schema import ResponseRequest
from engine.wire import Delta, Finished

Event = dict[str, Any]


class ResponseEvents:
    """Builds events in order; `response` is the object as it stands."""

    def __init__(self, id: str, request: ResponseRequest) -> None:
        self._request = request
        self._item = f"msg_{uuid.uuid4().hex}"
        self._text: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._sequence = 0
        self.response: dict[str, Any] = {
            "id": id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": request.model,
            "output": [],
            "parallel_tool_calls": False,
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "store": request.store is not False,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": {"format": _format(request)},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": None,
            "metadata": request.metadata or {},
            "metrics": None,
        }

    @property
    def text(self) -> str:
        return "".join(self._text)

    def start(self) -> list[Event]:
        """created, and the message with its empty text part."""
        return [
            self._event("response.created", response=dict(self.response)),
            self._event(
                "response.output_item.added", output_index=0, item=self._message("in_progress", [])
            ),
            self._event("response.content_part.added", **self._place(), part=_part("", [])),
        ]

    def delta(self, delta: Delta) -> list[Event]:
        """The text of one step with its logprobs; nothing when it has none and x_spec was not
        asked for."""
        self._text.append(delta.text)
        spec = {"x_spec": numbers.provenance(delta)} if self._request.x_spec else {}
        found = logprobs.contents(delta.pieces)
        self._logprobs += found
        if not (delta.text or found or spec):
            return []
        place = self._place()
        return [
            self._event(
                "response.output_text.delta", **place, delta=delta.text, logprobs=found, **spec
            )
        ]

    def finish(self, finished: Finished) -> list[Event]:
        """The closing events; incomplete when a limit or response.cancel ended the answer."""
        reason = {"length": "max_output_tokens", "cancelled": "cancelled"}.get(
            finished.finish_reason
        )
        status = "incomplete" if reason else "completed"
        text, found, place = self.text, self._logprobs, self._place()
        part = _part(text, found)
        item = self._message(status, [part])
        self.response |= {
            "status": status,
            "incomplete_details": {"reason": reason} if reason else None,
            "output": [item],
            "usage": _usage(finished),
            "metrics": numbers.metrics(finished),
        }
        return [
            self._event("response.output_text.done", **place, text=text, logprobs=found),
            self._event("response.content_part.done", **place, part=part),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event(f"response.{status}", response=dict(self.response)),
        ]

    def fail(self, error: ApiError) -> list[Event]:
        """The one closing event of an answer that broke after its start."""
        item = self._message("incomplete", [_part(self.text, self._logprobs)])
        self.response |= {
            "status": "failed",
            "output": [item],
            "error": {"code": error.code, "message": error.message},
        }
        return [self._event("response.failed", response=dict(self.response))]

    def _event(self, type: str, **fields: Any) -> Event:
        event = {"type": type, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._item,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }


def error_event(error: ApiError) -> Event:
    """An error that belongs to no response, such as a refused response.create."""
    return {
        "type": "error",
        "sequence_number": 0,
        "status": error.status,
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "error": error.openai(),
    }


def _part(text: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": found}


def _format(request: ResponseRequest) -> Any:
    """text.format as the request had it."""
    found = request.text.format if request.text else None
    if found is None or found.schema is None:
        return {"type": found.type if found else "text"}
    return {"type": found.type, "name": found.name, "strict": found.strict, "schema": found.schema}


def _usage(finished: Finished) -> dict[str, Any]:
    prompt, completion = finished.prompt_tokens, finished.completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": finished.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
