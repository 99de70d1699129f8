"""Plain decoding against transformers `generate`, in one process, prompt by prompt in turn.

`python -m tests.engine.speed --prompts FILE` prints the median ratio and the totals. It is a
benchmark, not a test: no timed assertion."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from engine.build import Target, open_engine, open_target
from engine.config import EngineConfig
from engine.wire import Message, Sampling, Submit
from tests.engine.exactness import PLAIN, read_prompts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL with turns, category")
    parser.add_argument("--limit", type=int, default=13)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    config = EngineConfig(
        dtype=arguments.dtype, device="cpu", kv_tokens=16384, threads=arguments.threads
    )
    target = open_target(config, lambda stage, fraction, message: None)
    reference = AutoModelForCausalLM.from_pretrained(target.loaded.path, dtype=target.device.dtype)
    reference.eval()
    ratios: list[float] = []
    totals = {"ours": 0.0, "generate": 0.0}
    prompts = read_prompts(arguments.prompts, arguments.limit)
    for number, prompt in enumerate([prompts[0], *prompts]):
        ids = target.text.render([Message("user", prompt)])
        mine = ours(target, config, prompt, arguments.max_tokens)
        theirs = generate(reference, ids, arguments.max_tokens)
        if number == 0:
            continue  # the first run of each warms up
        totals["ours"] += mine
        totals["generate"] += theirs
        ratios.append(theirs / mine)
        print(f"{number:3} {len(ids):5} prompt tokens: ratio {ratios[-1]:.2f}", flush=True)
    summary = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "dtype": arguments.dtype,
        "prompts": len(prompts),
        "max_tokens": arguments.max_tokens,
        "median_ratio": round(statistics.median(ratios), 3),
        "total_ratio": round(totals["generate"] / totals["ours"], 3),
    }
    print(json.dumps(summary))
    return 0


def ours(target: Target, config: EngineConfig, prompt: str, max_tokens: int) -> float:
    """Seconds per output token of plain decoding, prefill included."""
    engine, intake = open_engine(config, target, PLAIN.controller(config), lambda event: None)
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    request = intake.request(Submit(id="a", sampling=sampling, messages=(Message("user", prompt),)))
    begin = time.perf_counter()
    engine.submit(request)
    while engine.step():
        pass
    return (time.perf_counter() - begin) / request.produced


def generate(model: torch.nn.Module, ids: list[int], max_tokens: int) -> float:
    """Seconds per output token of greedy `generate`, prefill included."""
    begin = time.perf_counter()
    out = model.generate(  # type: ignore[operator]  # a transformers model
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=max_tokens,
        min_new_tokens=max_tokens,
        do_sample=False,
    )
    return (time.perf_counter() - begin) / (out.shape[1] - len(ids))


if __name__ == "__main__":
    sys.exit(main())
