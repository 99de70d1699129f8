"""Fixtures of the browser tests: a server and its console, load on it, and a browser page."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, TimeoutError, sync_playwright

from tests.conftest import (
    ARTIFACTS,
    ROOT,
    clean_environment,
    free_port,
    start_server,
    stop_server,
    wait_ready,
)

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_S = 300.0
"""Longest wait for one condition; the model may be slow on a busy machine."""

PROMPTS = (
    "Write a Python class with getters and setters for name, age, city, email and phone.",
    "Repeat this list five times: red, green, blue, yellow, orange.",
    "List the numbers from one to forty as words, one per line.",
)


@dataclass(frozen=True)
class Live:
    """A server with its console. console: address of the console's pages."""

    url: str
    console: str
    admin_key: str

    def get(self, path: str) -> Any:
        return self._call("GET", path)

    def set_auto(self) -> None:
        self.set_controller({"mode": "auto"})

    def set_controller(self, setting: dict[str, Any]) -> None:
        self._call("PUT", "/api/controller", setting)

    def set_parameters(self, drafter: str, values: dict[str, Any]) -> None:
        self._call("PUT", f"/api/drafters/{drafter}", {"parameters": values})

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._call("POST", path, body)

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path)

    def until(self, path: str, true: Callable[[Any], bool]) -> Any:
        """The answer of a GET as soon as it fulfils the condition."""
        deadline = time.monotonic() + WAIT_S
        while not true(answer := self.get(path)) and time.monotonic() < deadline:
            time.sleep(0.2)
        if true(answer):
            return answer
        pytest.fail(f"{path} did not come to the expected state in {WAIT_S:.0f} s: {answer}")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self.admin_key}"}
        answer = httpx.request(
            method, f"{self.url}{path}", headers=headers, json=body, timeout=300, trust_env=False
        )
        answer.raise_for_status()
        return answer.json()


@pytest.fixture(scope="package")
def live(tmp_path_factory: pytest.TempPathFactory) -> Generator[Live]:
    """A server for the browser tests alone, since one of them kills its engine, and a console
    beside it. Tests put back what they change."""
    key = f"admin-{secrets.token_urlsafe(32)}"
    port = free_port()
    log = ARTIFACTS / "e2e-server.log"
    data = tmp_path_factory.mktemp("e2e")
    process, api_port = start_server(data, log, "--ui-port", str(port), admin_key=key)
    url, console = f"http://127.0.0.1:{api_port}", f"http://127.0.0.1:{port}"
    pages: subprocess.Popen[bytes] | None = None
    try:
        wait_ready(process, url, log)
        pages = start_console(port, url, key)
        wait_for_console(pages, console)
        yield Live(url, console, key)
    finally:
        if pages:
            stop_server(pages)
        stop_server(process)


def start_console(port: int, url: str, key: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "app.cli", "ui", "--port", str(port), "--api-url", url]
    with (ARTIFACTS / "e2e-console.log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=clean_environment(PACELINE_CONSOLE_KEY=key),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def wait_for_console(process: subprocess.Popen[bytes], console: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{console}/_stcore/health", trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    tail = (ARTIFACTS / "e2e-console.log").read_text("utf-8", errors="replace")[-2000:]
    pytest.fail(f"the console is not ready (exit code {process.poll()}); its log ends:\n{tail}")


@pytest.fixture
def load(live: Live) -> Generator[None]:
    """Three clients that ask for n-gram drafts, one question after the other."""
    with clients(live, {"drafter": "ngram"}):
        yield


@pytest.fixture
def plain_load(live: Live) -> Generator[None]:
    """Three clients without a wish of their own: the operator's setting decides."""
    with clients(live, {}):
        yield


@contextmanager
def clients(live: Live, speculation: dict[str, Any]) -> Generator[None]:
    over = threading.Event()
    faults: list[Exception] = []
    model = live.get("/v1/models")["data"][0]["id"]

    def client(prompt: str) -> None:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 64,
            "temperature": 0,
            "speculation": speculation,
        }
        while not over.is_set():
            try:
                live.post("/v1/chat/completions", body)
            except httpx.HTTPError as error:
                faults.append(error)
                return

    threads = [threading.Thread(target=client, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    try:
        live.until("/api/state", lambda state: (state["live"] or {}).get("tokens_per_s", 0) > 0)
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not faults


@pytest.fixture(scope="package")
def browser() -> Generator[Browser]:
    """Closed after these tests: its event loop must not run on in those that follow."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.fail(f"no browser: install one of {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Generator[Page]:
    """A page that fails the test on any uncaught error of a script."""
    opened = browser.new_page(viewport={"width": 1440, "height": 900})
    opened.set_default_timeout(1000 * WAIT_S)
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    opened.close()
    assert errors == []


def pick(page: Page, box: Locator, name: str | None = None) -> None:
    """Open the list of a box and pick the option of this name, or the first one. The list may close
    when the page scrolls or is drawn anew: then it is opened again."""
    option = page.get_by_role("option", name=name, exact=True).first
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if box.get_attribute("aria-expanded") != "true":
            box.click()
        try:
            option.wait_for(timeout=2_000)
            option.click(timeout=20_000)
        except TimeoutError:
            continue
        return
    pytest.fail(f"in {WAIT_S:.0f} s no option {name or ''} was offered")


def screenshot(page: Page, name: str) -> Path:
    """Store the whole page as tests/artifacts/NAME.png."""
    size = page.viewport_size or {"width": 1440, "height": 900}
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": size["width"], "height": max(size["height"], int(height))})
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 300)))")
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    path = ARTIFACTS / f"{name}.png"
    page.screenshot(path=path)
    page.set_viewport_size({"width": size["width"], "height": size["height"]})
    return path
