"""The losslessness matrix: whatever drafts, the greedy text is plain decoding's, in float32.

`python -m tests.engine.exactness --prompts FILE` runs it whole (make exactness)."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from controller.contract import Controller, CostPoint, Setting
from engine.batch import Chunk, pack
from engine.build import Target, adaptive, open_engine, open_target
from engine.config import EngineConfig
from engine.draw import Draw
from engine.request import Request
from engine.wire import Deltas, Failed, Finished, Message, PromptLogprobs, Sampling, Submit
from tests.engine.scripted import ScriptedController

TIE = 1e-3
"""Where the two best logits of the plain run are closer than this, either choice is right."""

TOKENS_PER_TIE = 5000


@dataclass(frozen=True)
class Arm:
    """One way to decode. switch: called before every step, may change the controller."""

    name: str
    controller: Callable[[EngineConfig], Controller]
    switch: Callable[[Controller, int], None] = lambda controller, step: None


def fixed(length: int) -> Arm:
    return Arm(f"ngram D={length}", lambda _: ScriptedController(lambda s, r, n: ("ngram", length)))


def random_lengths(seed: int) -> Arm:
    chance = random.Random(seed)
    return Arm(
        "ngram, D random each step",
        lambda _: ScriptedController(lambda s, r, n: ("ngram", chance.randrange(17))),
    )


def anything(seed: int) -> Arm:
    """Another drafter and length for each request and step, of all that are loaded."""
    chance = random.Random(seed)

    def choose(step: int, request: int, names: list[str]) -> tuple[str, int]:
        return (chance.choice(names), chance.randrange(17)) if names else ("none", 0)

    return Arm("any drafter, any D, each step", lambda _: ScriptedController(choose))


def _toggle(controller: Controller, step: int) -> None:
    if step % 7 == 0:
        settings = (
            Setting("auto"),
            Setting("pinned", "ngram", 6),
            Setting("off"),
            Setting("pinned", "ngram"),
        )
        controller.configure(settings[step // 7 % 4])


PLAIN = Arm("none", lambda _: ScriptedController(lambda s, r, n: ("none", 0)))
SWITCHING = Arm(
    "auto, pinned and off switched mid-request",
    lambda config: adaptive(config, [CostPoint(1, rows, 256, 30 + rows) for rows in (1, 8, 17)]),
    _toggle,
)


@dataclass
class Outcome:
    """One arm against plain decoding. wrong: prompts whose text differs without a tie."""

    arm: str
    batch: int
    tokens: int = 0
    forwards: int = 0
    steps: int = 0
    ties: int = 0
    wrong: list[int] = field(default_factory=list)

    @property
    def good(self) -> bool:
        few = self.ties * TOKENS_PER_TIE <= max(self.tokens, TOKENS_PER_TIE)
        return few and not self.wrong and self.forwards == self.steps


def decode(
    target: Target,
    config: EngineConfig,
    arm: Arm,
    prompts: Sequence[str],
    max_tokens: int,
    batch: int,
) -> tuple[list[list[int]], Outcome]:
    """Output ids of each prompt, at most `batch` at a time; pages checked after every step."""
    events: list[Deltas | PromptLogprobs | Finished | Failed] = []
    controller = arm.controller(config)
    engine, intake = open_engine(config, target, controller, events.append)
    outcome = Outcome(arm.name, batch)
    before = target.executor.forwards
    done: list[list[int]] = []
    for first in range(0, len(prompts), batch):
        requests: list[Request] = []
        for place, prompt in enumerate(prompts[first : first + batch]):
            sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
            messages = (Message("user", prompt),)
            submit = Submit(id=f"{first + place}", sampling=sampling, messages=messages)
            requests.append(intake.request(submit))
            engine.submit(requests[-1])
        arm.switch(controller, engine.steps)
        while engine.step():
            engine.scheduler.pages.check()
            arm.switch(controller, engine.steps)
        done.extend(request.tokens[request.prompt_length :] for request in requests)
    failed = [event for event in events if isinstance(event, Failed)]
    if failed:
        raise AssertionError(f"{arm.name}: {failed[0].message}")
    outcome.tokens = sum(map(len, done))
    outcome.steps = engine.steps
    outcome.forwards = target.executor.forwards - before
    return done, outcome


def compare(
    target: Target,
    prompts: Sequence[str],
    plain: Sequence[list[int]],
    other: Sequence[list[int]],
    outcome: Outcome,
) -> None:
    """Count ties and wrong prompts of `other` in outcome."""
    for number, (prompt, wanted, got) in enumerate(zip(prompts, plain, other, strict=True)):
        if wanted == got:
            continue
        same = 0
        while same < min(len(wanted), len(got)) and wanted[same] == got[same]:
            same += 1
        if gap(target, target.text.render([Message("user", prompt)]) + wanted[:same]) < TIE:
            outcome.ties += 1
        else:
            outcome.wrong.append(number)


def gap(target: Target, tokens: list[int]) -> float:
    """Distance of the two best logits after `tokens`, by plain decoding."""
    pages = list(range(-(-len(tokens) // target.pool.page_size)))
    executor = target.executor
    batch = pack([Chunk(0, tokens, 0, pages, Draw())], target.device, target.pool.page_size)
    attend = executor.attention.plan(batch)
    hidden = executor.decoder.forward(batch.ids, batch.positions, attend)
    best = executor.decoder.logits(hidden[-1:]).topk(2).values[0]
    return float(best[0] - best[1])


def matrix(
    target: Target,
    config: EngineConfig,
    prompts: Sequence[str],
    max_tokens: int,
    runs: Sequence[tuple[Arm, int]],
    report: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """Plain decoding alone, and every arm at its batch size against it."""
    plain, base = decode(target, config, PLAIN, prompts, max_tokens, 1)
    outcomes = [base]
    for arm, batch in runs:
        texts, outcome = decode(target, config, arm, prompts, max_tokens, batch)
        compare(target, prompts, plain, texts, outcome)
        outcomes.append(outcome)
        report(
            f"{'ok' if outcome.good else 'WRONG':5} {arm.name:45} batch {batch}: "
            f"{outcome.tokens} tokens, {outcome.tokens / outcome.forwards:.2f} a forward, "
            f"{outcome.ties} ties, wrong: {outcome.wrong or 'none'}"
        )
    return outcomes


def read_prompts(path: Path, limit: int) -> list[str]:
    """`limit` first turns of a JSONL file, spread evenly over its categories."""
    by_category: dict[str, list[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        by_category.setdefault(row.get("category", ""), []).append(row["turns"][0])
    groups = list(by_category.values())
    picked = [group[i] for i in range(max(map(len, groups))) for group in groups if i < len(group)]
    return picked[:limit]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the losslessness matrix on the real model.")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL with turns, category")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--mtp", default="auto", help="as of paceline serve")
    parser.add_argument("--draft-model", default="auto", help="as of paceline serve")
    arguments = parser.parse_args()
    config = EngineConfig(
        dtype="float32",
        device="cpu",
        kv_tokens=32768,
        max_batch=8,
        threads=arguments.threads,
        mtp=arguments.mtp,
        draft_model=arguments.draft_model,
    )
    target = open_target(config, lambda stage, fraction, message: None)
    prompts = read_prompts(arguments.prompts, arguments.limit)
    arms = [fixed(1), fixed(4), fixed(8), random_lengths(1), anything(1), SWITCHING]
    runs = [*((arm, 1) for arm in arms), *((arm, 8) for arm in (PLAIN, *arms))]
    torch.manual_seed(0)
    outcomes = matrix(
        target,
        config,
        prompts,
        arguments.max_tokens,
        runs,
        lambda line: print(line, flush=True),
    )
    good = all(outcome.good for outcome in outcomes)
    print(f"{len(prompts)} prompts, {arguments.max_tokens} tokens each: ", end="")
    print("every text is plain decoding's" if good else "TEXTS DIFFER")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
