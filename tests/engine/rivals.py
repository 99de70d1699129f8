"""Our tokens/s beside other engines' on this machine, prompt by prompt in turn; a benchmark.

`python -m tests.engine.rivals --prompts FILE --rival llama=PYTHON --rival vllm=PYTHON` where PYTHON
is the interpreter of an environment in which that engine is installed (rival_llama.py and
rival_vllm.py say what it needs). `llama+lookup=PYTHON` adds its own speculation. Rivals that serve
several requests at once also run at batch 8. Prints one JSON line."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from controller.contract import Controller
from engine.build import Target, adaptive, calibrate, open_engine, open_target
from engine.config import EngineConfig
from engine.wire import Message, Sampling, Submit
from tests.engine.exactness import read_prompts
from tests.engine.speed import decode, send


class Rival:
    """Another engine in a process of its own, idle between requests."""

    def __init__(self, name: str, python: str, model: Path, threads: int) -> None:
        engine, _, lookup = name.partition("+")
        script = Path(__file__).with_name(f"rival_{engine}.py")
        self.batches = engine != "llama"
        arguments = [python, str(script), str(model), str(threads), *([lookup] if lookup else [])]
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, prompts: list[list[int]], max_tokens: int) -> float:
        """Seconds for max_tokens greedy tokens of every prompt. Raises when the rival died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"prompts": prompts, "max_tokens": max_tokens}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("@@ "):
                return float(json.loads(line[3:])["seconds"])
        raise RuntimeError(f"the rival ended with code {self._process.wait()}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL with turns, category")
    parser.add_argument("--rival", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--limit", type=int, default=13)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    config = EngineConfig(
        dtype="bfloat16", device="cpu", kv_tokens=65536, threads=arguments.threads
    )
    target = open_target(config, lambda stage, fraction, message: None)
    points = calibrate(config, target, lambda stage, fraction, message: None).points
    controller = adaptive(config, points)
    threads = torch.get_num_threads()
    rivals = {
        name: Rival(name, python, target.loaded.path, threads)
        for name, _, python in (given.partition("=") for given in arguments.rival)
    }
    prompts = read_prompts(arguments.prompts, arguments.limit)
    speeds: dict[str, list[float]] = {}
    for number in range(-1, len(prompts)):  # the first round warms up
        for batch in (1, 8):
            chosen = [prompts[(max(number, 0) + n) % len(prompts)] for n in range(batch)]
            ids = [target.text.render([Message("user", prompt)]) for prompt in chosen]
            tokens = batch * arguments.max_tokens
            found = {
                "ours": decode(target, config, chosen, arguments.max_tokens),
                "ours auto": decode_auto(target, config, controller, chosen, arguments.max_tokens),
            }
            for name, rival in rivals.items():
                if batch == 1 or rival.batches:
                    found[name] = rival.seconds(ids, arguments.max_tokens)
            for name, seconds in found.items():
                if number >= 0:
                    speeds.setdefault(f"{name}, batch {batch}", []).append(tokens / seconds)
            if number >= 0:
                rates = {name: round(tokens / seconds, 1) for name, seconds in found.items()}
                print(f"prompt {number}, batch {batch}: {rates}", file=sys.stderr, flush=True)
    for rival in rivals.values():
        rival.close()
    print(json.dumps({name: round(statistics.median(all_), 1) for name, all_ in speeds.items()}))
    return 0


def decode_auto(
    target: Target,
    config: EngineConfig,
    controller: Controller,
    prompts: list[str],
    max_tokens: int,
) -> float:
    """Seconds for all prompts at once with the adaptive controller, which keeps what it learnt."""
    engine, intake = open_engine(config, target, controller, send)
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    begin = time.perf_counter()
    for number, prompt in enumerate(prompts):
        submit = Submit(id=f"{number}", sampling=sampling, messages=(Message("user", prompt),))
        engine.submit(intake.request(submit))
    while engine.step():
        pass
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
