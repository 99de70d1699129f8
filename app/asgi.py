"""create_app: the Litestar application with its routes, auth, errors and lifespan."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from litestar import Litestar, Router
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from app import package_version
from app.admin import benchmarks, control, corpora, health, keys, recordings, records, state
from app.errors import handle
from app.inference import chat, completions, models, response_socket, responses, tokenize
from app.inference.limits import MAX_BODY_BYTES
from app.security.auth import ANY_KEY, Auth, check_routes
from app.security.origin import console_origins
from app.service import Service
from app.settings import Settings
from app.strict_body import StrictRequest
from engine.client import EngineStartError
from engine.wire import Hello, Progress

ROUTES = (
    health.live,
    health.live_head,
    health.ready,
    health.ready_head,
    health.version,
    health.metrics,
    models.list_models,
    models.get_model,
    chat.chat_completions,
    completions.completions,
    responses.responses,
    response_socket.responses_socket,
    tokenize.tokenize,
    tokenize.detokenize,
    state.state,
    control.list_drafters,
    control.set_drafter,
    control.load_drafter,
    control.unload_drafter,
    control.get_controller,
    control.set_controller,
    control.set_policy,
    control.what_if,
    corpora.list_corpora,
    corpora.put_corpus,
    corpora.remove_corpus,
    benchmarks.record_benchmark,
    benchmarks.list_benchmarks,
    benchmarks.get_benchmark,
    benchmarks.remove_benchmark,
    recordings.list_recordings,
    recordings.start_recording,
    recordings.stop_recording,
    recordings.get_recording,
    recordings.remove_recording,
    records.decisions,
    records.step_records,
    records.requests,
    records.series,
    records.audit,
    keys.list_keys,
    keys.create_key,
    keys.revoke_key,
    keys.create_ticket,
)


def create_app(
    settings: Settings,
    *,
    engine_command: Sequence[str] = (),
    on_failed: Callable[[EngineStartError], None] | None = None,
    on_ready: Callable[[Hello], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Litestar:
    """The application; its Service is `app.state.service`. The database must be migrated.

    The engine starts in the background of the lifespan, so that /health/live answers while it
    loads: on_progress, on_ready and on_failed tell how that goes. engine_command: another program
    that speaks the engine's protocol (see engine.supervisor). Raises ValueError when a route
    declares no scope, StartError when the key pepper cannot be read."""
    service = Service(settings, engine_command)

    @asynccontextmanager
    async def lifespan(_app: Litestar) -> AsyncGenerator[None]:
        try:
            await service.start(on_failed, on_ready, on_progress)
            yield
        finally:
            await service.stop()

    async def provide_service() -> Service:
        return service

    origins = console_origins(settings.ui_port, settings.host)
    if settings.ui_origin:
        origins.append(settings.ui_origin.rstrip("/").lower())
    app = Litestar(
        route_handlers=list(ROUTES),
        dependencies={"service": Provide(provide_service)},
        middleware=[Auth(service.find_key, service.redeem_ticket, origins)],
        exception_handlers={Exception: handle},
        request_class=StrictRequest,
        lifespan=[lifespan],
        request_max_body_size=MAX_BODY_BYTES,
        openapi_config=OpenAPIConfig(
            title="Paceline",
            version=package_version(),
            render_plugins=[JsonRenderPlugin()],
            openapi_router=Router(path="/schema", route_handlers=[], opt={"scope": ANY_KEY}),
        ),
        logging_config=None,
    )
    app.state.service = service
    check_routes(app)
    return app
