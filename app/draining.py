"""The uvicorn server with our shutdown: running answers end first, then the connections."""

from __future__ import annotations

import asyncio
from types import FrameType

import uvicorn

from app.service import Service


class DrainingServer(uvicorn.Server):
    """On the first signal new requests are refused and running ones may finish; on the second,
    or when their time is up, they are cancelled. Only then does uvicorn close: by itself it cuts
    a WebSocket in the middle of an answer."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._signals = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None

    async def startup(self, sockets: list | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._loop is None:
            super().handle_exit(sig, frame)
        elif self._signals == 1:
            self._loop.call_soon_threadsafe(self._start_drain)

    def _start_drain(self) -> None:
        self._drain = asyncio.create_task(self._drain_then_exit(), name="drain")

    async def _drain_then_exit(self) -> None:
        try:
            await self._service.drain(hurry=lambda: self._signals > 1)
        finally:
            self.should_exit = True
