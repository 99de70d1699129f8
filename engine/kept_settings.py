"""What an operator has set and loaded while the engine ran, for every new engine process."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from engine.config import EngineConfig
from engine.errors import EngineCallError
from engine.open_requests import logged
from engine.wire import (
    CallBody,
    LoadDrafter,
    SetController,
    SetDrafter,
    SetPolicy,
    Snapshot,
    UnloadDrafter,
)

Setting = SetController | SetDrafter
"""What a new engine is told once it runs; the rest is in the configuration that it starts with."""

log = logging.getLogger(__name__)


class KeptSettings:
    """on_refused: hears of a setting that a restarted engine does not take, and why; it is
    forgotten."""

    def __init__(self, on_refused: Callable[[Setting, EngineCallError], None] | None) -> None:
        self._on_refused = on_refused
        self._controller: SetController | None = None
        self._drafters: dict[str, SetDrafter] = {}
        self._sources: dict[str, str] = {}
        self._policy: dict[str, str | float] = {}

    def into(self, config: EngineConfig) -> EngineConfig:
        """With the drafters that were loaded and the policy that was chosen."""
        return msgspec.structs.replace(config, **self._sources, **self._policy)

    def took(self, body: CallBody) -> None:
        """Keep what the engine took from an operator."""
        if isinstance(body, SetController):
            self._controller = body
        elif isinstance(body, SetPolicy):
            self._policy = msgspec.structs.asdict(body)
        elif isinstance(body, SetDrafter):
            self._drafters[body.name] = body.after(self._drafters.get(body.name))
        elif isinstance(body, LoadDrafter) and not body.dry_run:
            self._sources[body.name] = body.source
        elif isinstance(body, UnloadDrafter):
            self._sources[body.name] = "off"
            self._drafters.pop(body.name, None)

    def saw(self, snapshot: Snapshot, config: EngineConfig) -> None:
        """What is loaded, also by a call whose answer came too late, is for the next engine too.
        config: that of the start."""
        for drafter in snapshot.drafters:
            name, model = drafter.name, drafter.model
            if model is None:
                continue
            asked = self._sources.get(name)
            if model.state == "loaded":
                if model.source != (getattr(config, name) if asked is None else asked):
                    self._sources[name] = model.source
            elif model.state == "unloaded" and asked is not None:
                self._sources[name] = "off"

    def forget_loaded(self) -> bool:
        """Start without the drafters that were loaded meanwhile. Whether there were some."""
        found, self._sources = bool(self._sources), {}
        return found

    async def restore(self, ask: Callable[[Setting], Awaitable[object]]) -> None:
        """Tell a new engine, by `ask`, which raises EngineCallError for what it refuses."""
        for name, drafter in list(self._drafters.items()):
            if not await self._takes(drafter, ask):
                del self._drafters[name]
        if self._controller is not None and not await self._takes(self._controller, ask):
            self._controller = await self._limits(self._controller, ask)

    async def _takes(self, setting: Setting, ask: Callable[[Setting], Awaitable[object]]) -> bool:
        """Whether the engine has the setting now, or may have it: a late answer is no refusal."""
        try:
            await ask(setting)
        except EngineCallError as error:
            log.error("the restarted engine did not take %s: %s", setting, error.message)
            if error.code == "internal":
                return True
            if self._on_refused is not None:
                with logged("a refused setting"):
                    self._on_refused(setting, error)
            return False
        return True

    async def _limits(
        self, refused: SetController, ask: Callable[[Setting], Awaitable[object]]
    ) -> SetController | None:
        """The limits without the pin that the engine did not take, if it takes them."""
        if refused.mode != "pinned":
            return None
        limits = msgspec.structs.replace(
            refused, mode="auto", drafter=None, draft_length=None, schedule=()
        )
        return limits if await self._takes(limits, ask) else None
