"""Speed of the engine without a server: a benchmark, not a test; no timed assertion.

`python -m tests.engine.speed WHAT --prompts FILE` prints one JSON line. WHAT:
generate     plain decoding against transformers `generate`, prompt by prompt in turn
bare         decode steps against the same weights run in a loop without any serving
batch        tokens/s of plain decoding at batch 1, 8 and 32, in turn
overhead     milliseconds of a step that are not the model's, with a model that is instant
detokenise   microseconds per token at token 10 and at token 10,000"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor

from controller.contract import CostPoint
from engine.batch import Chunk
from engine.build import Target, adaptive, open_engine, open_target
from engine.config import EngineConfig
from engine.executor import Executor, Step
from engine.frames import encode
from engine.loop import Engine
from engine.request import Request
from engine.shape import Attend, Shape
from engine.wire import Deltas, Failed, Finished, Message, PromptLogprobs, Sampling, Submit
from tests.engine.exactness import PLAIN, read_prompts

CONTEXT = 256
"""Tokens before the steps that `bare` measures."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("generate", "bare", "batch", "overhead", "detokenise"))
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL with turns, category")
    parser.add_argument("--limit", type=int, default=13)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    config = EngineConfig(
        dtype=arguments.dtype, device="cpu", kv_tokens=65536, threads=arguments.threads
    )
    target = open_target(config, lambda stage, fraction, message: None)
    prompts = read_prompts(arguments.prompts, arguments.limit)
    measure: dict[str, Callable[[], dict[str, Any]]] = {
        "generate": lambda: against_generate(target, config, prompts, arguments.max_tokens),
        "bare": lambda: against_bare(target, arguments.repeats),
        "batch": lambda: batches(target, config, prompts, arguments.max_tokens, arguments.repeats),
        "overhead": lambda: overhead(target, config, prompts),
        "detokenise": lambda: detokenising(target, prompts),
    }
    machine = {
        "what": arguments.what,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "dtype": arguments.dtype,
        "attention": target.executor.attention.name,
    }
    print(json.dumps(machine | measure[arguments.what]()))
    return 0


# --- against transformers -------------------------------------------------------------------------


def against_generate(
    target: Target, config: EngineConfig, prompts: list[str], max_tokens: int
) -> dict[str, Any]:
    """Seconds per token of generate over ours, prefill included: median and totals."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(target.loaded.path, dtype=target.device.dtype)
    reference.eval()
    ratios: list[float] = []
    ours_s = theirs_s = 0.0
    for number, prompt in enumerate([prompts[0], *prompts]):
        ids = target.text.render([Message("user", prompt)])
        mine = decode(target, config, [prompt], max_tokens) / max_tokens
        theirs = generate(reference, ids, max_tokens)
        if number == 0:
            continue  # the first run of each warms up
        ours_s += mine
        theirs_s += theirs
        ratios.append(theirs / mine)
        print(f"{number:3} {len(ids):5} prompt tokens: ratio {ratios[-1]:.2f}", file=sys.stderr)
    return {
        "prompts": len(prompts),
        "max_tokens": max_tokens,
        "median_ratio": round(statistics.median(ratios), 3),
        "total_ratio": round(theirs_s / ours_s, 3),
        "tokens_per_s": round(len(prompts) / ours_s, 1),
    }


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


def decode(target: Target, config: EngineConfig, prompts: list[str], max_tokens: int) -> float:
    """Seconds that plain decoding of all prompts at once takes, prefill included."""
    engine, requests = submitted(target, config, prompts, max_tokens)
    begin = time.perf_counter()
    while engine.step():
        pass
    elapsed = time.perf_counter() - begin
    assert all(request.produced == max_tokens for request in requests)
    return elapsed


def send(message: Deltas | PromptLogprobs | Finished | Failed) -> None:
    encode(message)


def submitted(
    target: Target, config: EngineConfig, prompts: list[str], max_tokens: int
) -> tuple[Engine, list[Request]]:
    """A fresh engine with the prompts waiting; what it sends is encoded, as the worker does."""
    config = msgspec.structs.replace(
        config, max_batch=max(config.max_batch, len(prompts)), prefix_cache="off"
    )
    engine, intake = open_engine(config, target, PLAIN.controller(config), send)
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    requests: list[Request] = []
    for number, prompt in enumerate(prompts):
        messages = (Message("user", prompt),)
        request = intake.request(Submit(id=f"{number}", sampling=sampling, messages=messages))
        requests.append(request)
        engine.submit(request)
    return engine, requests


# --- against a bare loop --------------------------------------------------------------------------


def against_bare(target: Target, repeats: int) -> dict[str, Any]:
    """Decode steps per second of one request, over those of a loop that only multiplies."""
    ratios: list[float] = []
    steps = 64
    config = EngineConfig(device="cpu", kv_tokens=65536)
    prompt = "word " * (CONTEXT - 40)
    for _ in range(repeats + 1):
        engine, (request,) = submitted(target, config, [prompt], steps + 1)
        while not request.produced:
            engine.step()
        begin = time.perf_counter()
        for _ in range(steps):
            engine.step()
        served = (time.perf_counter() - begin) / steps
        ratios.append(bare(target, steps, request.prompt_length) / served)
    return {"ratio_to_bare": round(statistics.median(ratios[1:]), 3)}


def bare(target: Target, steps: int, length: int) -> float:
    """Seconds per step of greedy decoding with contiguous keys and values, batch 1.

    The layers are the served model's own, so that only what serving adds is compared."""
    decoder: Any = target.loaded.decoder
    shape: Shape = decoder.shape
    dim, kv_heads, heads = shape.head_dim, shape.kv_heads, shape.heads
    size = (shape.layers, 2, 1, kv_heads, length + steps, dim)
    store = torch.randn(size, dtype=target.device.dtype)
    token = torch.tensor([1])

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, /):
        store[layer, 0, 0, :, here] = k[0]
        store[layer, 1, 0, :, here] = v[0]
        keys, values = store[layer, :, :, :, : here + 1]
        query = q.view(1, kv_heads, heads // kv_heads, dim)
        return F.scaled_dot_product_attention(query, keys, values).reshape(1, heads * dim)

    begin = time.perf_counter()
    for here in range(length, length + steps):
        hidden = decoder.forward(token, torch.tensor([here]), attend)
        token = decoder.logits(hidden).argmax(dim=-1)
        int(token)
    return (time.perf_counter() - begin) / steps


# --- batches --------------------------------------------------------------------------------------


def batches(
    target: Target, config: EngineConfig, prompts: list[str], max_tokens: int, repeats: int
) -> dict[str, Any]:
    """Tokens per second at each batch size, in turn, prompts cut to one size: of everything, and of
    decoding alone, from the step on in which every request has its first token."""
    whole: dict[int, list[float]] = {1: [], 8: [], 32: []}
    decoding: dict[int, list[float]] = {1: [], 8: [], 32: []}
    for repeat in range(repeats + 1):
        for batch in whole:
            chosen = [prompts[(repeat + n) % len(prompts)][:600] for n in range(batch)]
            engine, requests = submitted(target, config, chosen, max_tokens)
            begin = time.perf_counter()
            while any(not request.produced for request in requests):
                engine.step()
            middle = time.perf_counter()
            left = sum(max_tokens - request.produced for request in requests)
            while engine.step():
                pass
            end = time.perf_counter()
            if repeat:
                whole[batch].append(batch * max_tokens / (end - begin))
                decoding[batch].append(left / (end - middle))
    return {"with_prefill": ratios(whole), "decoding": ratios(decoding)}


def ratios(speeds: dict[int, list[float]]) -> dict[str, Any]:
    median = {batch: round(statistics.median(found), 1) for batch, found in speeds.items()}
    return {
        "tokens_per_s": median,
        "batch_8_over_1": round(median[8] / median[1], 2),
        "batch_32_over_8": round(median[32] / median[8], 2),
    }


# --- what the engine adds -------------------------------------------------------------------------


class InstantModel:
    """A model whose forward costs nothing: it says the same token every time."""

    def __init__(self, shape: Shape, token: int) -> None:
        self.shape = replace(shape, vocabulary=64 + token)
        self._logits = torch.zeros(2048, self.shape.vocabulary)
        self._logits[:, token] = 1.0

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend, /) -> Tensor:
        return torch.zeros(len(ids), 1)

    def logits(self, hidden: Tensor, /) -> Tensor:
        return self._logits[: len(hidden)]


def overhead(target: Target, config: EngineConfig, prompts: list[str]) -> dict[str, Any]:
    """Per batch: milliseconds of a step outside `Executor.verify` (scheduler, controller,
    drafters, bookkeeping, detokenising, telemetry, encoding), and with it (packing, choice). Plain
    decoding still teaches the drafters and scores them in the shadow."""
    token = target.text.encode("a")[0]
    model = InstantModel(target.loaded.decoder.shape, token)
    executor = Executor(model, target.executor.attention, target.device, target.pool.page_size)
    instant = replace(target, executor=executor)
    found: dict[str, Any] = {}
    for batch in (8, 64):
        chosen = [prompts[n % len(prompts)][:600] for n in range(batch)]
        for mode, controller in (
            ("without drafters", PLAIN.controller(config)),
            ("plain", PLAIN.controller(config)),
            ("auto", adaptive(config, [CostPoint(1, rows, 256, 30 + rows) for rows in (1, 8, 17)])),
        ):
            engine, requests = submitted(instant, config, chosen, 600)
            engine.controller = engine.drafting.controller = controller
            if mode == "without drafters":
                engine.drafting.drafters.clear()
            while any(not request.produced for request in requests):
                engine.step()
            inside = timed(executor)
            whole: list[float] = []
            for _ in range(30):
                begin = time.thread_time()
                engine.step()
                whole.append(1e3 * (time.thread_time() - begin))
            del executor.verify  # the instance's own, put there by timed()
            outside = [a - b for a, b in zip(whole, inside, strict=True)]
            found[f"batch {batch} {mode}"] = {
                "outside_ms": round(statistics.median(outside), 3),
                "whole_ms": round(statistics.median(whole), 3),
            }
    return found


def timed(executor: Executor) -> list[float]:
    """Milliseconds of CPU of each call of `verify` from now on."""
    times: list[float] = []
    verify = executor.verify

    def measured(chunks: Sequence[Chunk]) -> Step:
        begin = time.thread_time()
        step = verify(chunks)
        times.append(1e3 * (time.thread_time() - begin))
        return step

    executor.verify = measured
    return times


def detokenising(target: Target, prompts: list[str]) -> dict[str, Any]:
    """Microseconds of CPU per token of one growing output, around two lengths."""
    ids = target.text.encode("\n".join(prompts))
    ids = (ids * (1 + 11_000 // len(ids)))[:11_000]
    stream = target.text.stream()
    times: list[float] = []
    for token in ids:
        begin = time.thread_time()
        stream.add(token)
        times.append(1e6 * (time.thread_time() - begin))
    early, late = times[10:1010], times[10_000:]
    return {
        "us_per_token_at_10": round(statistics.mean(early), 2),
        "us_per_token_at_10000": round(statistics.mean(late), 2),
    }


if __name__ == "__main__":
    sys.exit(main())
