"""Drafters with a model of their own, loaded and unloaded while the engine serves."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine.draft_models.opening import (
    LOAD_SHARE,
    Ready,
    find_folder,
    measure,
    open_weights,
    plan_load,
    with_pages,
)
from engine.draft_models.sources import NAMES, OFF
from engine.drafters.base import Weighty
from engine.errors import RequestError, StartError
from engine.host_memory import size_text
from engine.loop import Engine
from engine.wire import LoadDrafter, LoadPlan, ModelState, UnloadDrafter

if TYPE_CHECKING:
    from engine.build import Target
    from engine.config import EngineConfig

log = logging.getLogger(__name__)

MOST_MESSAGE = 2000
"""Characters of a refusal: each snapshot has the last one."""

Answer = Callable[[LoadPlan | str | RequestError], None]
"""Gets what was planned, the name of the drafter that was loaded, or why neither was possible."""


@dataclass(slots=True)
class Slot:
    """source: of the one that is loaded or is being loaded. message, progress: see ModelState."""

    source: str = ""
    loading: bool = False
    message: str = ""
    progress: float = 0.0

    def reach(self, progress: float, message: str) -> None:
        self.progress, self.message = progress, message


class LiveModels:
    """Which of them are loaded and from where. Its methods are called from the loop's thread; what
    takes long runs on one of its own, and what that has opened is attached between two steps."""

    def __init__(
        self,
        config: EngineConfig,
        target: Target,
        engine: Engine,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        """post(errand): has the loop run it between two steps; called from another thread."""
        self._config = config
        self._target = target
        self._engine = engine
        self._post = post
        self._slots = {name: Slot() for name in NAMES}
        self._busy = ""
        for name, ready in target.drafters.items():
            if name in engine.drafting.drafters:
                self._slots[name].source = ready.source
                self._slots[name].message = ready.note

    def state(self, name: str) -> ModelState | None:
        """None for a drafter without a model of its own."""
        slot = self._slots.get(name)
        if slot is None:
            return None
        drafter = self._engine.drafting.drafters.get(name)
        if not isinstance(drafter, Weighty):
            if not slot.loading:
                return ModelState(message=slot.message)
            return ModelState("loading", slot.source, message=slot.message, progress=slot.progress)
        memory = drafter.memory
        return ModelState(
            "loaded",
            slot.source,
            memory.weight_bytes,
            memory.kv_bytes,
            drafter.coverage,
            slot.message,
        )

    def names(self) -> list[str]:
        return list(self._slots)

    def load(self, body: LoadDrafter, answer: Answer) -> None:
        """Begin; the answer comes later. Raises RequestError for what can be told at once."""
        slot = self._slot(body.name)
        if body.source == OFF:
            raise RequestError("drafter_unfit", 'source is "off"; unload it instead.', "source")
        if self._busy:
            raise RequestError(
                "drafter_loading", f"drafter {self._busy} is being loaded; wait until it is done."
            )
        if body.name in self._engine.drafting.drafters and not body.dry_run:
            raise RequestError(
                "drafter_loaded", f"drafter {body.name} is loaded already; unload it first."
            )
        self._busy = body.name
        if not body.dry_run:
            slot.source, slot.loading = body.source, True
            slot.reach(0.0, "looking for its files")
        work = threading.Thread(
            target=self._open, args=(body, slot, answer), name=f"load-{body.name}", daemon=True
        )
        try:
            work.start()
        except RuntimeError as error:
            self._busy = ""
            if not body.dry_run:
                slot.source, slot.loading = "", False
            raise RequestError(
                "internal", f"drafter {body.name} cannot be loaded now: {error}."
            ) from error

    def unload(self, body: UnloadDrafter) -> None:
        """Take it out; its requests go on without it. Raises RequestError."""
        slot = self._slot(body.name)
        if slot.loading:
            raise RequestError(
                "drafter_loading", f"drafter {body.name} is being loaded; wait until it is done."
            )
        if body.name not in self._engine.drafting.drafters:
            raise RequestError("drafter_not_loaded", f"drafter {body.name} is not loaded.")
        try:
            drafter = self._engine.detach(body.name)
        except ValueError as error:
            raise RequestError(
                "drafter_pinned",
                f"drafter {body.name} is pinned; choose another setting of the controller first.",
            ) from error
        if isinstance(drafter, Weighty):
            drafter.close()
        self._target.drafters.pop(body.name, None)
        del drafter  # nothing else holds its memory
        self._target.device.release()
        slot.source = slot.message = ""

    def _slot(self, name: str) -> Slot:
        slot = self._slots.get(name)
        if slot is not None:
            return slot
        known = ", ".join(self._slots)
        if name in self._engine.drafting.drafters or name == "none":
            message = f"drafter {name} has no model to load or unload; {known} have."
            raise RequestError("drafter_not_loadable", message, "name")
        message = f"there is no drafter {name[:64]!r} with a model of its own; choose {known}."
        raise RequestError("unknown_drafter", message, "name")

    # --- on a thread of its own ---------------------------------------------------------------

    def _open(self, body: LoadDrafter, slot: Slot, answer: Answer) -> None:
        found = [self._tried(body, slot)]
        if isinstance(found[0], RequestError) and not body.dry_run:
            gc.collect()  # what was half opened may refer to itself
        self._post(lambda: self._done(body, slot, found.pop(), answer))  # and nothing else holds it

    def _tried(self, body: LoadDrafter, slot: Slot) -> LoadPlan | Ready | RequestError:
        try:
            return self._opened(body, slot)
        except StartError as error:
            code = "memory_too_small" if error.code == "memory_too_small" else "drafter_unfit"
            return RequestError(code, printable(error.message), "source")
        except OSError as error:
            message = f"{body.source} cannot be read: {error.strerror or error}."
            return RequestError("drafter_unfit", printable(message), "source")
        except (MemoryError, torch.OutOfMemoryError):
            message = f"the memory ran out while drafter {body.name} was loaded."
            return RequestError("memory_too_small", message, "source")
        except BaseException as error:  # a checkpoint of somebody else may break anything, and a
            # panic of a compiled library is no Exception
            log.exception("drafter %s cannot be loaded", body.name)
            message = f"{body.source} cannot be loaded ({type(error).__name__}: {error})."
            return RequestError("drafter_unfit", printable(message), "source")

    def _opened(self, body: LoadDrafter, slot: Slot) -> LoadPlan | Ready:
        target, config = self._target, self._config
        if body.dry_run:
            return plan_load(body.name, body.source, target, config)
        folder = find_folder(body.name, body.source, target)
        plan = measure(body.name, body.source, folder, target, config)
        if not plan.fits:
            raise too_large(plan, str(target.device.torch_device))
        slot.reach(0.2, "loading its weights")
        opened = open_weights(
            body.name,
            body.source,
            folder,
            target.loaded,
            target.device,
            config,
            target.cache_dir,
        )
        slot.reach(0.8, "making room for its keys and values")
        return Ready(body.source, with_pages(opened, target, config), opened.note)

    # --- between two steps --------------------------------------------------------------------

    def _done(
        self,
        body: LoadDrafter,
        slot: Slot,
        found: LoadPlan | Ready | RequestError,
        answer: Answer,
    ) -> None:
        self._busy = ""
        if isinstance(found, Ready):
            result = self._attached(found, slot)
            del found
        else:
            result = found
        if not body.dry_run:
            slot.loading = False
            if isinstance(result, RequestError):
                slot.source, slot.message = "", result.message
                self._target.device.release()
        answer(result)

    def _attached(self, ready: Ready, slot: Slot) -> str | RequestError:
        """The name of the drafter, which is closed when the engine does not take it."""
        drafter = ready.drafter
        try:
            self._engine.attach(drafter)
        except ValueError as error:
            refusal = RequestError("drafter_unfit", f"{error}.", "source")
        except Exception:
            log.exception("drafter %s cannot be attached", drafter.name)
            refusal = RequestError("internal", f"drafter {drafter.name} could not be attached.")
        else:
            slot.message = ready.note
            return drafter.name
        if isinstance(drafter, Weighty):
            drafter.close()
        return refusal


def printable(message: str) -> str:
    """A message that every frame can hold: the name of a file may be no text."""
    return message[:MOST_MESSAGE].encode("utf-8", "replace").decode("utf-8")


def too_large(plan: LoadPlan, device: str) -> StartError:
    both = plan.weights_bytes + plan.kv_bytes
    return StartError(
        "memory_too_small",
        f"drafter {plan.name} needs {size_text(plan.weights_bytes)} for its weights and "
        f"{size_text(plan.kv_bytes)} for keys and values in all pages, {size_text(both)} together; "
        f"{size_text(plan.free_bytes)} are free on {device}, of which it may take "
        f"{LOAD_SHARE:.0%}. Free memory, choose a smaller model, or serve with fewer --kv-tokens.",
    )
