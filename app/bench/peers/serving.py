"""What the peers' scripts share: one JSON request a line in, one answer marked "@@ " out.

The first line is the setup: {"model", "dtype", "threads", "variant", "gguf",
"assistant"}. Its answer is
{"ready": what it is, "batches": whether it serves several prompts at once} or {"missing": why}.
Then {"prompts": [[id, ...], ...], "max_tokens": n} is answered with {"seconds", "tokens": [[id,
...], ...]}. Runs with any Python 3.10 in which the peer is installed; needs nothing else."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

MARK = "@@ "
Generate = Callable[[list[list[int]], int], list[list[int]]]
"""Greedy continuations of exactly so many tokens, in the order of the prompts."""


def serve(load: Callable[[dict[str, Any]], tuple[str, bool, Generate]]) -> None:
    """load: makes the engine from the setup: its description, whether it batches, its generate."""
    setup = json.loads(sys.stdin.readline())
    if setup["threads"]:
        os.environ["OMP_NUM_THREADS"] = str(setup["threads"])
    # Threads of a peer that waits for its turn must not spin while another is measured.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        described, batches, generate = load(setup)
    except ImportError as error:
        answer({"missing": str(error)})
        return
    answer({"ready": described, "batches": batches})
    for line in sys.stdin:
        request = json.loads(line)
        begin = time.perf_counter()
        tokens = generate(request["prompts"], request["max_tokens"])
        answer({"seconds": time.perf_counter() - begin, "tokens": tokens})


def answer(content: dict[str, Any]) -> None:
    print(MARK + json.dumps(content), flush=True)
