"""The console's HTTP client of the API: one method per route, one kind of error."""

from __future__ import annotations

import threading
import time
from typing import Any
from urllib.parse import quote

import httpx

Json = dict[str, Any]

UPLOAD_S = 120.0
LOAD_S = 3600.0
REPORT_S = 9.0
"""How long one report of the controller serves every panel and tab: the engine makes it between two
steps, in milliseconds that no request gets."""


class ApiError(Exception):
    """The API answered with an error, or not at all (status 0).

    message is a sentence for the operator; code is the API's own error code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message

    @property
    def unreachable(self) -> bool:
        return self.status == 0

    @property
    def refused(self) -> bool:
        """The key is missing, wrong, expired or lacks the scope."""
        return self.status in (401, 403)


class Client:
    """Safe to share between sessions and threads. All methods raise ApiError."""

    def __init__(self, url: str, key: str, *, timeout_s: float = 5.0, fresh_s: float = 0.8) -> None:
        """fresh_s: how long one answer of /api/state serves every tab."""
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}", "User-Agent": "paceline-console"},
            timeout=httpx.Timeout(timeout_s, connect=2.0),
            trust_env=False,
        )
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._state: Json | ApiError | None = None
        self._report_lock = threading.Lock()
        self._report_at = 0.0
        self._report: Json | None = None

    def state(self) -> Json:
        """Live state, at most `fresh_s` old."""
        with self._lock:
            if self._state is None or time.monotonic() - self._read_at > self._fresh_s:
                try:
                    self._state = self._call("GET", "/api/state")
                except ApiError as error:
                    self._state = error
                self._read_at = time.monotonic()
            if isinstance(self._state, ApiError):
                raise self._state
            return self._state

    def forget_state(self) -> None:
        """Make the next `state` and `report` ask the API again, after a change."""
        with self._lock:
            self._state = None
        with self._report_lock:
            self._report = None

    def readiness(self) -> Json:
        """Body of /health/ready, which is not an error while the engine starts (503)."""
        return self._call("GET", "/health/ready", accept=(503,))

    def drafters(self) -> list[Json]:
        return self._call("GET", "/api/drafters")["drafters"]

    def set_drafter(
        self, name: str, enabled: bool | None = None, parameters: Json | None = None
    ) -> None:
        """Change what is given."""
        body: Json = {} if enabled is None else {"enabled": enabled}
        if parameters:
            body["parameters"] = parameters
        self._call("PUT", f"/api/drafters/{name}", body=body)
        self.forget_state()

    def load_drafter(self, name: str, source: str, *, dry_run: bool = False) -> Json:
        """The drafter once it is loaded, or with dry_run what it would take in memory. A model may
        be downloaded first."""
        body = {"source": source, "dry_run": dry_run}
        path = f"/api/drafters/{quote(name, safe='')}/load"
        answer = self._call("POST", path, body=body, timeout_s=LOAD_S)
        self.forget_state()
        return answer

    def unload_drafter(self, name: str) -> Json:
        answer = self._call("POST", f"/api/drafters/{quote(name, safe='')}/unload")
        self.forget_state()
        return answer

    def corpora(self) -> Json:
        """{"corpora": by name, "limits": {corpus_limit_mb, corpus_tokens}}."""
        return self._call("GET", "/api/corpora")

    def put_corpus(self, name: str, content: bytes, kind: str) -> Json:
        """Load a corpus, of the content type `kind`, in place of what the name held."""
        return self._call("PUT", f"/api/corpora/{quote(name, safe='')}", content=content, kind=kind)

    def remove_corpus(self, name: str) -> None:
        self._call("DELETE", f"/api/corpora/{quote(name, safe='')}")

    def report(self) -> Json:
        """What the controller knows, at most REPORT_S old, unless somebody changed a setting."""
        with self._report_lock:
            if self._report is None or time.monotonic() - self._report_at > REPORT_S:
                self._report = None
                found: Json = self._call("GET", "/api/controller").get("report") or {}
                self._report, self._report_at = found, time.monotonic()
            return self._report

    def set_controller(self, setting: Json) -> Json:
        """Replace the whole setting: what is left out of mode, drafter, draft_length, schedule,
        max_drafting_requests, tpot_target_ms and draft_budget is none."""
        answer = self._call("PUT", "/api/controller", body=setting)
        self.forget_state()
        return answer

    def set_policy(self, change: Json) -> Json:
        """Change who chooses: policy, policy_options, and for a second one beside it ab_policy,
        ab_options, ab_share."""
        answer = self._call("PUT", "/api/controller/policy", body=change)
        self.forget_state()
        return answer

    def benchmarks(self) -> list[Json]:
        """The newest first, without their rows."""
        return self._call("GET", "/api/benchmarks")["benchmarks"]

    def benchmark(self, name: str) -> Json:
        return self._call("GET", f"/api/benchmarks/{quote(name, safe='')}")

    def benchmark_page(self, name: str) -> str:
        """The HTML document of a benchmark."""
        path = f"/api/benchmarks/{quote(name, safe='')}"
        return self._send("GET", path, query={"format": "html"}, timeout_s=UPLOAD_S).text

    def remove_benchmark(self, name: str) -> None:
        self._call("DELETE", f"/api/benchmarks/{quote(name, safe='')}")

    def recordings(self) -> list[Json]:
        """The newest first, the one that runs included."""
        return self._call("GET", "/api/recordings")["recordings"]

    def start_recording(self, seconds: float, megabytes: int) -> Json:
        """It ends by itself after so many seconds, or megabytes (2^20 bytes) of its file."""
        body = {"seconds": seconds, "megabytes": megabytes}
        return self._call("POST", "/api/recordings", body=body)

    def stop_recording(self) -> Json:
        """The recording once its file is whole."""
        return self._call("POST", "/api/recordings/stop", timeout_s=UPLOAD_S)

    def recording_file(self, name: str) -> bytes:
        """The whole file of one that has ended."""
        path = f"/api/recordings/{quote(name, safe='')}"
        return self._send("GET", path, timeout_s=UPLOAD_S).content

    def remove_recording(self, name: str) -> None:
        self._call("DELETE", f"/api/recordings/{quote(name, safe='')}")

    def decisions(
        self,
        limit: int = 50,
        reason: str | None = None,
        drafter: str | None = None,
        before: str | None = None,
    ) -> Json:
        """{"decisions": newest first, "next": id for `before` or None}."""
        wanted = {"limit": limit, "reason": reason, "drafter": drafter, "before": before}
        query = {name: value for name, value in wanted.items() if value is not None}
        return self._call("GET", "/api/decisions", query=query)

    def step_records(self, limit: int = 50, before: str | None = None) -> Json:
        """{"step_records": newest first, "next": id for `before` or None, "calibration": errors of
        their predictions}."""
        query: Json = {"limit": limit} if before is None else {"limit": limit, "before": before}
        return self._call("GET", "/api/step-records", query=query)

    def what_if(self, batch_size: int, context_len: int) -> Json:
        query = {"batch_size": batch_size, "context_len": context_len}
        return self._call("GET", "/api/what-if", query=query)

    def ticket(self) -> str:
        """One-use ticket with which a browser opens the WebSocket."""
        return self._call("POST", "/api/tickets")["ticket"]

    def _call(self, method: str, path: str, **options: Any) -> Json:
        """The JSON that `_send` is answered with."""
        response = self._send(method, path, **options)
        try:
            return response.json()
        except ValueError as error:
            message = f"{self.url} does not answer like the API of Paceline."
            raise ApiError(response.status_code, "not_json", message) from error

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Json | None = None,
        body: Json | None = None,
        content: bytes | None = None,
        kind: str = "",
        accept: tuple[int, ...] = (),
        timeout_s: float | None = None,
    ) -> httpx.Response:
        """content, of content type `kind`, in place of a JSON body; it may take longer."""
        more: Json = {} if timeout_s is None else {"timeout": timeout_s}
        if content is not None:
            more = {"content": content, "headers": {"Content-Type": kind}, "timeout": UPLOAD_S}
        try:
            response = self._http.request(method, path, params=query, json=body, **more)
        except httpx.TimeoutException as error:
            message = f"The API at {self.url} did not answer in time."
            raise ApiError(0, "timeout", message) from error
        except httpx.HTTPError as error:
            message = f"No API answers at {self.url}."
            raise ApiError(0, "unreachable", message) from error
        if response.is_success or response.status_code in accept:
            return response
        raise _error(response)


def _error(response: httpx.Response) -> ApiError:
    """Reads both error shapes: problem+json of the admin routes, the error object of /v1."""
    try:
        body = response.json()
    except ValueError:
        body = None
    body = body if isinstance(body, dict) else {}
    inner = body["error"] if isinstance(body.get("error"), dict) else body
    message = inner.get("detail") or inner.get("message") or inner.get("title")
    code = inner.get("code") or response.reason_phrase
    return ApiError(
        response.status_code, str(code), str(message or f"HTTP {response.status_code}.")
    )
