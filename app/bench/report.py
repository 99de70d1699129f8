"""What the bench found: a row per load, category and arm, compared with the base arm."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from app.bench import acceptance, arms
from app.bench.acceptance import Position
from app.bench.client import Run, Sample
from app.bench.intervals import Pair, Ratio, quantiles, speedup

T = TypeVar("T")
ALL = "all"


class Load(NamedTuple):
    """What requests meet: `concurrency` at once, else arrivals at `rate` a second; in a phase, or
    in all phases together (phase ALL)."""

    concurrency: int
    rate: float
    phase: str

    @property
    def label(self) -> str:
        load = f"c{self.concurrency}" if self.concurrency else f"{self.rate:.3g}/s"
        return " ".join(part for part in (self.phase, "" if self.phase == ALL else load) if part)


class Row(msgspec.Struct, frozen=True):
    """tokens_per_s: output tokens over wall time. goodput_per_s: the same of requests that kept the
    TPOT target. These, tokens and wall_s are of whole chunks: a chunk that was cut has no wall time
    of its own, its requests count in everything else. decode_tokens_per_s: median over requests of
    1000 / TPOT. Percentiles in milliseconds: itl over the gaps between stream events, the others
    over requests.

    speedup: of request time against the base arm on the same prompts, with its 95 % interval.
    ratio: median over chunks and repeats of tokens_per_s against the base arm on the same chunk in
    the same repeat, with its quartiles. regret: what part of the speed of best_static (the fastest
    arm that was fixed beforehand, here) is missing; the interval holds that arm fixed.

    acceptance_length: tokens committed per verify step; an answer's first token is the prefill's.
    joint: share of verify steps that accepted at least k tokens. conditional: by drafter and
    position. shares: of verify steps by drafter. same_text: share of answers equal to the base
    arm's first repeat. failures: by kind. counted: false where some server counts no tokens and
    events were counted instead."""

    mode: str
    concurrency: int
    category: str
    requests: int
    failed: int
    tokens: int
    tokens_per_s: float
    decode_tokens_per_s: float | None
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    e2e_ms: dict[str, float]
    acceptance_length: float | None
    acceptance_rate: float | None
    ratio: float | None
    ratio_quartiles: tuple[float, float] | None
    same_text: float | None
    rate: float
    phase: str
    wall_s: float
    itl_ms: dict[str, float]
    goodput_per_s: float | None
    speedup: Ratio | None
    best_static: str | None
    regret: Ratio | None
    joint: list[float]
    conditional: dict[str, list[Position]]
    shares: dict[str, float]
    failures: dict[str, int]
    counted: bool

    @property
    def load(self) -> Load:
        return Load(self.concurrency, self.rate, self.phase)


def rows(
    runs: Sequence[Run],
    base: str = arms.BASE,
    tpot_ms: float | None = None,
    by_category: bool = True,
) -> list[Row]:
    """One row per (load, category, arm), categories in order, then all together; phases have no
    categories and are put together at the end. A category of a mixed chunk has its part of the
    chunk's throughput. tpot_ms: the target of goodput."""
    found: list[Row] = []
    modes = unique(run.mode for run in runs)
    for load in unique(load_of(run) for run in runs):
        level = [run for run in runs if load_of(run) == load]
        categories = unique(sample.category for run in level for sample in run.samples)
        if by_category and len(categories) > 1 and not load.phase:
            for category in categories:
                part = [one for run in level if (one := only(run, category)).samples]
                found += Part(part, load, category, base, tpot_ms).rows(modes)
        found += Part(level, load, ALL, base, tpot_ms).rows(modes)
    phased = [run for run in runs if run.phase]
    if len({run.phase for run in phased}) > 1:
        found += Part(phased, Load(0, 0.0, ALL), ALL, base, tpot_ms).rows(modes)
    return found


def only(run: Run, category: str) -> Run:
    """The run with the samples of one category."""
    chosen = [sample for sample in run.samples if sample.category == category]
    return run if len(chosen) == len(run.samples) else msgspec.structs.replace(run, samples=chosen)


def load_of(run: Run) -> Load:
    return Load(run.concurrency, run.rate, run.phase)


class Part:
    """The runs that a row of each arm is made of."""

    def __init__(
        self, runs: Sequence[Run], load: Load, category: str, base: str, tpot_ms: float | None
    ) -> None:
        self._load, self._category = load, category
        self._base, self._tpot_ms = base, tpot_ms
        self._runs: dict[str, list[Run]] = {}
        for run in runs:
            self._runs.setdefault(run.mode, []).append(run)
        self._times = {mode: times(runs) for mode, runs in self._runs.items()}
        self._best = self._fastest_static()

    def rows(self, modes: Sequence[str]) -> list[Row]:
        return [self._row(mode) for mode in modes if mode in self._runs]

    def _fastest_static(self) -> str | None:
        """The static arm with the most tokens per request time; None with fewer than two arms of
        which one is static."""
        speeds: dict[str, float] = {}
        for mode, found in self._times.items():
            ms = sum(time for _, time in found.values())
            if arms.static(mode) and ms:
                speeds[mode] = sum(tokens for tokens, _ in found.values()) / ms
        return max(speeds, key=lambda mode: speeds[mode]) if speeds else None

    def _against(self, mode: str, other: str | None) -> Ratio | None:
        mine, theirs = self._times.get(mode, {}), self._times.get(other or "", {})
        pairs = [Pair(*mine[key], *theirs[key]) for key in mine if key in theirs]
        return speedup(pairs)

    def _regret(self, mode: str) -> Ratio | None:
        found = self._against(mode, self._best) if mode != self._best else None
        if found is None:
            return None
        low = None if found.high is None else 1 - found.high
        high = None if found.low is None else 1 - found.low
        return Ratio(1 - found.value, low, high, found.pairs)

    def _row(self, mode: str) -> Row:
        mine = self._runs[mode]
        base = {key_of(run): run for run in self._runs.get(self._base, ())}
        samples = [sample for run in mine for sample in run.samples]
        good = [sample for sample in samples if not sample.error]
        whole = [run for run in mine if not run.cut]
        timed = [sample for run in whole for sample in run.samples if not sample.error]
        steps = sum(sample.steps for sample in good)
        committed = sum(sample.tokens - 1 for sample in good if sample.steps)
        drafted = sum(sample.drafted for sample in good)
        wall_s = sum(run.wall_ms for run in whole) / 1000
        tokens = sum(sample.tokens for sample in timed)
        tpot = [sample.tpot_ms for sample in good if sample.tpot_ms]
        ratios = [
            run.tokens_per_s / base[key].tokens_per_s
            for run in whole
            if (key := key_of(run)) in base and not base[key].cut and base[key].tokens_per_s
        ]
        return Row(
            mode=mode,
            concurrency=self._load.concurrency,
            category=self._category,
            requests=len(samples),
            failed=len(samples) - len(good),
            tokens=tokens,
            tokens_per_s=tokens / wall_s if wall_s else 0.0,
            decode_tokens_per_s=statistics.median(1000 / ms for ms in tpot) if tpot else None,
            ttft_ms=quantiles(s.ttft_ms for s in good if s.ttft_ms is not None),
            tpot_ms=quantiles(tpot),
            e2e_ms=quantiles(sample.e2e_ms for sample in good),
            acceptance_length=committed / steps if steps else None,
            acceptance_rate=sum(s.accepted for s in good) / drafted if drafted else None,
            ratio=statistics.median(ratios) if ratios else None,
            ratio_quartiles=quartiles(ratios),
            same_text=agreement(good, list(base.values())),
            rate=self._load.rate,
            phase=self._load.phase,
            wall_s=wall_s,
            itl_ms=quantiles(gap for sample in good for gap in sample.gaps_ms),
            goodput_per_s=goodput(timed, wall_s, self._tpot_ms),
            speedup=self._against(mode, self._base),
            best_static=self._best,
            regret=self._regret(mode),
            joint=acceptance.joint(sample.histogram for sample in good),
            conditional=acceptance.conditional(acceptance.merged(s.positions for s in good)),
            shares=acceptance.shares(sample.drafters for sample in good),
            failures=kinds(samples),
            counted=all(sample.counted for sample in good),
        )


def key_of(run: Run) -> tuple[str, int, int]:
    return run.phase, run.chunk, run.repeat


Prompted = tuple[str, int, int, int]
"""Phase, chunk, place in the chunk and turn: the same prompt in every arm."""


def times(runs: Iterable[Run]) -> dict[Prompted, tuple[int, float]]:
    """Tokens and milliseconds of each prompt over the repeats. A prompt that failed once is left
    out: what its failures took says nothing of its speed."""
    found: dict[Prompted, tuple[int, float]] = {}
    broken: set[Prompted] = set()
    for run in runs:
        for sample in run.samples:
            key = (run.phase, run.chunk, sample.order, sample.turn)
            if sample.error:
                broken.add(key)
            tokens, ms = found.get(key, (0, 0.0))
            found[key] = (tokens + sample.tokens, ms + sample.e2e_ms)
    return {key: value for key, value in found.items() if key not in broken}


def goodput(good: Sequence[Sample], wall_s: float, tpot_ms: float | None) -> float | None:
    """Tokens per second of the requests inside the target; one without a second token is inside."""
    if tpot_ms is None or not wall_s:
        return None
    return sum(s.tokens for s in good if (s.tpot_ms or 0.0) <= tpot_ms) / wall_s


def kinds(samples: Iterable[Sample]) -> dict[str, int]:
    found: dict[str, int] = {}
    for sample in samples:
        if sample.failure:
            found[sample.failure] = found.get(sample.failure, 0) + 1
    return found


def quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def agreement(samples: Sequence[Sample], base: Sequence[Run]) -> float | None:
    texts = {
        (run.phase, run.chunk, s.order, s.turn): s.text
        for run in reversed(base)
        for s in run.samples
        if not s.error
    }
    keys = [((s.phase, s.chunk, s.order, s.turn), s.text) for s in samples]
    same = [text == texts[key] for key, text in keys if key in texts]
    return sum(same) / len(same) if same else None


def unique(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
