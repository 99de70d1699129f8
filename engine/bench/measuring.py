"""What drafting with a model costs, one request at a time, and how far a measurement is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from statistics import median

from engine.bench.job import Prompt
from engine.bench.modes import Mode
from engine.bench.tokens import Run
from engine.build import Target
from engine.config import EngineConfig
from engine.drafters.base import Drafter

COST_PROMPTS, COST_TOKENS, COST_ROUNDS = 4, 32, 2
"""What is answered one at a time, without drafts and with them in turn, to time both."""

Say = Callable[[str, float], None]
"""(stage, fraction of it that is done)."""


def cost(
    target: Target,
    config: EngineConfig,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    length: int,
    say: Say = lambda stage, fraction: None,
    most: int = COST_TOKENS,
) -> dict[str, float]:
    """What drafting costs for one request at a time: {"token_ms": ms of a drafted token,
    "plain_step_ms": of the target's step without drafts, "step_ms": with drafts, "rho": token_ms
    over plain_step_ms}. Medians; plain and drafting answers take turns. most: tokens an answer."""
    tokens_each = min(most, COST_TOKENS)
    name, some = drafter.name, in_turn(prompts)[:COST_PROMPTS]
    done = Counter(say, f"cost of {name}", 2 * COST_ROUNDS * len(some))
    plain: list[float] = []
    drafting: list[float] = []
    tokens: list[float] = []
    for _ in range(COST_ROUNDS):
        with Run(target, config, Mode("none", ())) as run:
            plain += run.answer(some, tokens_each, 1, done).step_ms
        mode = Mode(name, (name,), length=length)
        with Run(target, config, mode, models={name: drafter}) as run:
            result = run.answer(some, tokens_each, 1, done)
            drafting += result.step_ms
            tokens += result.token_ms.get(name, [])
    if not plain or not tokens:
        return {}
    return {
        "token_ms": round(median(tokens), 4),
        "plain_step_ms": round(median(plain), 4),
        "step_ms": round(median(drafting), 4),
        "rho": round(median(tokens) / median(plain), 4),
    }


def in_turn(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts, taken from the categories in turn."""
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    rows = zip_longest(*groups.values())
    return [prompt for row in rows for prompt in row if prompt is not None]


class Counter:
    """Tells how far a stage is."""

    def __init__(self, say: Say, stage: str, total: int) -> None:
        self._say, self._stage, self._total, self._done = say, stage, max(1, total), 0

    def __call__(self, more: int) -> None:
        if more:
            self._done += more
            self._say(self._stage, self._done / self._total)
