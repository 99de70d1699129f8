"""Runs the API: claims the port first, migrates the database, then serves until a signal."""

from __future__ import annotations

import argparse
import logging
import socket

from app.failures import StartError
from app.schema import migrate_to_newest
from app.settings import Settings, settings_of
from engine.client import EngineStartError
from engine.wire import Hello

SHUTDOWN_S = 5
WS_MESSAGE_BYTES = 4 * 1024 * 1024

log = logging.getLogger(__name__)


def main(options: argparse.Namespace) -> int:
    return serve(settings_of(options))


def serve(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM; the exit code. Raises StartError and SettingsError for what
    the operator can put right."""
    listener = claim_port(settings.host, settings.port)
    try:
        migrate_to_newest(settings)
        return run(settings, listener)
    finally:
        listener.close()


def claim_port(host: str, port: int, what: str = "--port") -> socket.socket:
    """A bound listening socket. Raises StartError, before anything slow has started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise StartError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}. "
            f"Stop what uses it, or choose another with {what}."
        ) from None
    return listener


def run(settings: Settings, listener: socket.socket) -> int:
    import uvicorn

    from app.asgi import create_app
    from app.draining import DrainingServer

    failed: list[EngineStartError] = []

    def on_failed(error: EngineStartError) -> None:
        failed.append(error)
        server.should_exit = True

    def on_ready(hello: Hello) -> None:
        log.info(
            "%s is ready at %s: %s, %s, %s attention, %d threads",
            settings.served_name,
            settings.url,
            hello.device,
            hello.dtype,
            hello.attention,
            hello.threads,
        )

    app = create_app(settings, on_failed=on_failed, on_ready=on_ready)
    config = uvicorn.Config(
        app,
        log_config=log_config(settings.log_level),
        lifespan="on",
        ws_max_size=WS_MESSAGE_BYTES,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    server = DrainingServer(config, app.state.service)
    server.run(sockets=[listener])
    if failed:
        raise StartError(failed[0].message)
    if not server.started:
        raise StartError("The API could not start; the lines above say why.")
    return 0


def log_config(level: str) -> dict[str, object]:
    """One line an event on standard error; access lines only at level debug."""
    name = level.upper()
    access = name if level == "debug" else "WARNING"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": "%(asctime)s %(levelname)-7s %(name)s: %(message)s"}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "line",
                "stream": "ext://sys.stderr",
            }
        },
        "root": {"handlers": ["stderr"], "level": name},
        "loggers": {
            "uvicorn.access": {"level": access},
            "httpx": {"level": "WARNING"},
            "alembic": {"level": "WARNING"},
        },
    }
