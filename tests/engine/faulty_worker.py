"""The real engine process, with faults on demand: a request's tenant says which.

`sleep`: the step that meets it never ends. `raise`: every step that meets it fails."""

from __future__ import annotations

import time
from unittest import mock

from engine import worker
from engine.executor import Executor
from engine.loop import Engine

honest = Engine.step


def step(self: Engine) -> bool:
    scheduler = self.scheduler
    tenants = {request.tenant for request in (*scheduler.running, *scheduler.waiting)}
    if "sleep" in tenants:
        time.sleep(3600)
    if "raise" in tenants:
        with mock.patch.object(Executor, "verify", side_effect=RuntimeError("injected fault")):
            return honest(self)
    return honest(self)


if __name__ == "__main__":
    with mock.patch.object(Engine, "step", step):
        worker.run()
