"""An engine that is none, as a peer's script: what it does is its variant."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "app" / "bench" / "peers"))
serving: Any = import_module("serving")  # as the real scripts find it: beside them

Generate = Callable[[list[list[int]], int], list[list[int]]]


def load(setup: dict[str, Any]) -> tuple[str, bool, Generate]:
    what = setup["variant"]
    if what == "missing":
        raise ModuleNotFoundError("No module named 'fast_engine'")
    if what == "broken":
        print("it cannot load that", file=sys.stderr)
        sys.exit(4)
    if what == "mute":
        time.sleep(60)
    print("a banner of the engine")  # before its answer, as engines do

    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        if what == "dies" and max_tokens > 8:
            print("out of memory", file=sys.stderr, flush=True)
            os._exit(9)
        if what == "short":
            return []
        if what == "garbage":
            print("@@ {nonsense", flush=True)
        time.sleep(0.01 * len(prompts))
        return [[sum(prompt) % 1000] * max_tokens for prompt in prompts]

    return f"fake 1.0 ({setup['model']})", what == "batching", generate


if __name__ == "__main__":
    serving.serve(load)
