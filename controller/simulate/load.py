"""The load of a run: phases of a closed loop, or requests that arrive by themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from controller.simulate.arrival_file import Came
from controller.simulate.recording import Recording
from controller.simulate.texts import Library

MOST_ARRIVALS = 200_000
"""Of one run."""


@dataclass(frozen=True, slots=True)
class Phase:
    """So many requests decode together, a new one in the place of each that ends, until they have
    committed `tokens` each on average. Requests that are too many when a phase begins leave; those
    that stay finish their texts; new ones come from `corpus`. fresh: none stays."""

    requests: int
    corpus: str
    tokens: int
    fresh: bool = False

    @property
    def work(self) -> int:
        """Tokens to commit: the same for every policy."""
        return self.requests * self.tokens


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes, its text, and how many tokens its prompt and its output have."""

    ms: float
    text: int
    prompt: int
    output: int


def poisson(
    rate: Callable[[float], float], peak: float, seconds: float, rng: np.random.Generator
) -> list[float]:
    """Arrival times in ms of a Poisson process of `rate(second)` per second, at most `peak`.
    ValueError when there are too many."""
    found: list[float] = []
    now = 0.0
    while True:
        now += rng.exponential(1.0 / peak)
        if now >= seconds:
            return found
        if rng.random() * peak < rate(now):
            found.append(1e3 * now)
            if len(found) > MOST_ARRIVALS:
                raise ValueError(
                    f"load: more than {MOST_ARRIVALS:,} requests arrive at one replica, after "
                    f"{now:,.0f} of {seconds:,.0f} s; lower the rate or the seconds, or give more "
                    "replicas"
                )


def bursts(base: float, peak: float, every: float, share: float) -> Callable[[float], float]:
    """`peak` per second in the first `share` of every period of `every` seconds, else `base`."""
    return lambda second: peak if second % every < share * every else base


def ramp(first: float, last: float, seconds: float) -> Callable[[float], float]:
    """From `first` to `last` per second, linearly."""
    return lambda second: first + (last - first) * min(second / seconds, 1.0)


def arrivals(
    times: Sequence[float], corpus: str, library: Library, rng: np.random.Generator
) -> list[Arrival]:
    """The corpus's texts in a shuffled order at these times, whole."""
    order = library.order(corpus, rng)
    found: list[Arrival] = []
    for number, ms in enumerate(times):
        text = int(order[number % len(order)])
        length = int(library.last[text] - library.first[text])
        found.append(Arrival(ms, text, int(library.prompts[text]), length))
    return found


def recorded(
    came: Sequence[Came], corpus: str, library: Library, rng: np.random.Generator
) -> list[Arrival]:
    """Requests of a file with the corpus's texts in a shuffled order. A longer output than the text
    drawn for it is cut to that; of a longer text the end is taken."""
    order = library.order(corpus, rng)
    found: list[Arrival] = []
    for number, one in enumerate(came):
        text = int(order[number % len(order)])
        length = int(library.last[text] - library.first[text])
        output = max(min(one.output, length), 1)
        found.append(Arrival(1e3 * one.second, text, max(one.prompt, 1), output))
    return found


def replayed(
    recording: Recording,
    corpus: str,
    library: Library,
    *,
    seconds: float = math.inf,
    speed: float = 1.0,
) -> list[Arrival]:
    """The requests of a recording when they came, each with its own text, `speed` times as fast,
    until `seconds` of the run. ValueError when the corpus is not of that recording."""
    places = library.ranges.get(corpus, range(0))
    lengths = [one.length for one in recording.requests]
    if [int(library.last[i] - library.first[i]) for i in places] != lengths:
        raise ValueError(f"arrivals: texts {corpus!r} are not those of the recording")
    found = [
        Arrival(1e3 * one.s / speed, text, max(one.prompt, 1), one.length)
        for text, one in zip(places, recording.requests, strict=True)
        if one.s / speed <= seconds
    ]
    if not found:
        raise ValueError(f"arrivals: none came within {seconds:g} seconds")
    return sorted(found, key=lambda arrival: arrival.ms)


def thin(requests: Sequence[Arrival], replicas: int, number: int) -> list[Arrival]:
    """What replica `number` of so many gets when arrivals are dealt out in turn."""
    return [one for place, one in enumerate(requests) if place % replicas == number]
