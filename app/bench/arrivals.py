"""When requests arrive in an open loop: Poisson, or a trace of a real service."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from app.bench.workloads import Prompt
from app.failures import SettingsError
from controller.simulate.arrival_file import arrivals

CHARACTERS_PER_TOKEN = 4
"""About what English text has: the lengths of a trace are met to within that."""
BETWEEN = "\n\n"
MOST_ARRIVALS = 100_000
LONGEST_S = 7 * 24 * 3600.0


class Arrival(NamedTuple):
    """One request of a trace; at_s from its first one."""

    at_s: float
    context_tokens: int
    output_tokens: int


def poisson(rate: float, count: int, seed: int = 1) -> list[float]:
    """Times in seconds of `count` arrivals at `rate` a second; the same for every arm."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    return [float(at) for at in np.cumsum(gaps)]


def read_trace(path: Path, *, limit: int | None, speed: float, token_scale: float) -> list[Arrival]:
    """The first `limit` requests of a CSV with the columns of the Azure LLM inference traces, all
    without one; at most MOST_ARRIVALS.

    speed: 2 replays it in half the time. token_scale multiplies both lengths (at least one token
    is left). Raises SettingsError with the line that is wrong."""
    found: list[Arrival] = []
    try:
        for came in islice(arrivals(path), limit):
            if len(found) == MOST_ARRIVALS:
                raise SettingsError(
                    f"--trace {path}: more than {MOST_ARRIVALS:,} requests, the most that are "
                    f"replayed. Take the first of them with --limit {MOST_ARRIVALS} or fewer."
                )
            context, output = (scaled(each, token_scale) for each in (came.prompt, came.output))
            found.append(Arrival(came.second, context, output))
    except ValueError as error:
        raise SettingsError(f"--trace {path}: {error}.") from None
    except OSError as error:
        raise SettingsError(f"--trace {path}: cannot read it: {error}") from None
    if not found:
        raise SettingsError(f"--trace {path}: it has no requests.")
    found.sort(key=lambda arrival: arrival.at_s)
    begin = found[0].at_s
    if (found[-1].at_s - begin) / speed > LONGEST_S:
        raise SettingsError(f"--trace {path}: it runs for more than a week; raise --trace-speed.")
    return [arrival._replace(at_s=(arrival.at_s - begin) / speed) for arrival in found]


def scaled(tokens: float, scale: float) -> int:
    return max(1, round(tokens * scale))


def prompts_like(trace: Sequence[Arrival], prompts: Sequence[Prompt]) -> list[Prompt]:
    """A prompt per arrival, about as long as the trace says and made of the workload's texts, which
    follow one another; its answer is exactly as long as the trace says."""
    found = []
    at = 0
    for number, arrival in enumerate(trace):
        first = prompts[at % len(prompts)]
        length = arrival.context_tokens * CHARACTERS_PER_TOKEN
        texts: list[str] = []
        missing = length + len(BETWEEN)
        while missing > 0:
            texts.append(prompts[at % len(prompts)].text)
            missing -= len(texts[-1]) + len(BETWEEN)
            at += 1
        text = BETWEEN.join(texts)[:length]
        found.append(Prompt(number, first.category, (text,), arrival.output_tokens))
    return found
