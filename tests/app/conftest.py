"""A real uvicorn server over the scripted engine, for tests of the protocol."""

from __future__ import annotations

import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from litestar import Litestar
from openai import OpenAI

from app.asgi import create_app
from app.db.migrate import upgrade
from app.draining import DrainingServer
from app.serve import WS_MESSAGE_BYTES
from app.service import Service
from app.settings import load_settings, prepare_data_dir
from engine.client import EngineStartError
from tests.conftest import Server

MODEL = "scripted"
PROGRAM = (sys.executable, "-m", "tests.app.scripted_engine")


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first truthy value of condition; fails when there is none within the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail("the condition did not come true")


@dataclass
class Api:
    """A running API. `service` may be read from the test's thread, not changed."""

    app: Litestar
    server: DrainingServer
    service: Service
    thread: threading.Thread
    url: str
    admin_key: str
    failed: list[EngineStartError]

    def shut_down(self) -> None:
        """As by a signal; does not wait."""
        self.server.handle_exit(signal.SIGTERM, None)

    @property
    def client(self) -> httpx.Client:
        """A client with all scopes."""
        return self.client_for(self.admin_key)

    def client_for(self, key: str | None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=30)

    def openai(self, key: str | None = None) -> OpenAI:
        return OpenAI(
            base_url=f"{self.url}/v1", api_key=key or self.admin_key, max_retries=0, timeout=30
        )

    def key(self, *scopes: str) -> str:
        body = {"name": "test", "scopes": list(scopes)}
        return self.client.post("/api/keys", json=body).json()["secret"]

    def ready(self) -> None:
        eventually(lambda: self.client.get("/health/ready").status_code == 200)

    def idle(self) -> None:
        """Wait until the engine runs nothing."""
        eventually(lambda: not self.service.engine.active)


@contextmanager
def running_api(data_dir: Path, **options: Any) -> Generator[Api]:
    """An API over the scripted engine in a thread; stopped as by a signal."""
    admin_key = f"admin-{secrets.token_urlsafe(32)}"
    given = {"data_dir": str(data_dir), "cache_dir": str(data_dir), "model": MODEL, **options}
    settings = load_settings({**given, "served_name": MODEL}, environ={})
    settings = msgspec.structs.replace(settings, admin_key=admin_key)
    prepare_data_dir(settings)
    upgrade(settings.database_url)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        failed: list[EngineStartError] = []
        app = create_app(settings, engine_command=PROGRAM, on_failed=failed.append)
        service: Service = app.state.service
        config = uvicorn.Config(app, ws_max_size=WS_MESSAGE_BYTES, timeout_graceful_shutdown=5)
        server = DrainingServer(config, service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        api = Api(app, server, service, thread, url, admin_key, failed)
        try:
            eventually(lambda: server.started or not thread.is_alive())
            yield api
        finally:
            api.shut_down()
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def admin(server: Server) -> Generator[httpx.Client]:
    """The operator of the real server; the setting is put back."""
    with httpx.Client(
        base_url=server.url, headers=server.admin, trust_env=False, timeout=120
    ) as http:
        yield http
        http.put("/api/controller", json={"mode": "auto"})


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Generator[Api]:
    """One API for the tests that leave it as they found it."""
    with running_api(tmp_path_factory.mktemp("api")) as running:
        running.ready()
        yield running
