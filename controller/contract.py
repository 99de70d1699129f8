"""The controller's contract: plain values in, plain values out.

The same values serve the engine loop, the simulator and, later, other engines. Nothing here
names a tensor, a page or a socket. `Controller.plan` sees offers and never drafted token ids, so
admission cannot depend on what was drawn (the bias of reference "non-anticipating" rules).
What there are hundreds of in every step is a named tuple, the cheapest value to make.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

Mode = Literal["auto", "pinned", "off"]

MAX_SCHEDULE_ENTRIES = 64
MAX_SCHEDULE_REQUESTS = 1_000_000
"""Bounds of a table of D by batch size."""
MAX_TPOT_TARGET_MS = 600_000.0
MAX_DRAFT_BUDGET = 1_000_000
"""Bounds of the operator's constraints on a step."""
RECORDING_VERSION = 2
"""Of the format that recordings of live runs have."""

NONE = "none"
"""Name of plain decoding; its draft length is always 0."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks for itself. `drafter` None lets the controller choose the drafter,
    `draft_length` None lets it choose D; `enabled` False asks for plain decoding."""

    enabled: bool = True
    drafter: str | None = None
    draft_length: int | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """The operator's setting. In `pinned` mode `drafter` is set; `draft_length` None there means
    that the controller picks D for the pinned drafter. `max_draft_length` is the operator's
    limit.

    schedule: pinned D by batch size as (largest number of decoding requests, D) in rising order;
    larger batches do not draft. max_drafting_requests: nobody drafts while more requests
    decode; None is no limit. tpot_target_ms: lengths after which no request waits longer than that
    for a token, as predicted, are preferred to all others; None is no target. draft_budget: how
    many tokens the requests of a step may draft together; None is what the engine has room for."""

    mode: Mode = "auto"
    drafter: str | None = None
    draft_length: int | None = None
    max_draft_length: int = 16
    schedule: tuple[tuple[int, int], ...] = ()
    max_drafting_requests: int | None = None
    tpot_target_ms: float | None = None
    draft_budget: int | None = None


class RequestView(NamedTuple):
    """One decoding request as known before anything is drawn.

    id: rises in the order in which requests came. context_len: tokens committed so far (prompt and
    output). remaining: tokens it may still emit, >= 1; D never exceeds remaining - 1, because a
    step commits up to D + 1 tokens. temperature: 0 for greedy decoding."""

    id: int
    tenant: str
    context_len: int
    remaining: int
    temperature: float
    seeded: bool
    wish: Wish = Wish()

    @property
    def sampled(self) -> bool:
        """Whether its tokens are drawn at random."""
        return self.temperature > 0.0


@dataclass(frozen=True, slots=True)
class BatchView:
    """The decoding requests of one step. prefill_rows: rows of prefill chunks sharing the step.
    free_rows: how many rows beyond one per request the step may hold. elsewhere: requests that
    somebody else plans for (the other arm of a comparison), who decode plainly for whoever gets
    this view; elsewhere_rows: how many tokens are drafted for them."""

    step: int
    requests: Sequence[RequestView]
    prefill_rows: int
    free_rows: int
    elsewhere: frozenset[int] = frozenset()
    elsewhere_rows: int = 0


@dataclass(frozen=True, slots=True)
class Features:
    """What a drafter knows of its draft before it is verified, never the drafted ids.

    match_length: tokens of context that matched. streak: consecutive recent drafts of this
    request's shadow that had at least one token accepted. source: where the match lies."""

    match_length: int = 0
    streak: int = 0
    source: str = ""


class Offer(NamedTuple):
    """A drafter can draft up to max_length (>= 1) tokens for a request in this step.

    catch_up: rows of committed text that it must compute before its first draft, beyond what its
    usual draft computes anyway; 0 while it keeps up with the text. It may take several steps over
    them, in which it is allotted tokens and drafts none."""

    request: int
    drafter: str
    max_length: int
    features: Features = Features()
    catch_up: int = 0


class Allotment(NamedTuple):
    """Draft `length` tokens with `drafter`; length 0 (drafter "none") is plain decoding.

    tail: who continues a draft of the full length, by up to tail_length tokens, or "". Its tokens
    are a function of the committed text and of that draft, and its length was settled here, before
    anything was drawn. bar: what a model's draft must promise; without one all that is drafted is
    verified."""

    request: int
    drafter: str
    length: int
    tail: str = ""
    tail_length: int = 0
    bar: Bar | None = None


@dataclass(frozen=True, slots=True)
class ShadowScore:
    """What a drafter would have got at one shadow step start, on committed text.

    drafted >= accepted; censored True when the text ended before the draft was settled, then
    `accepted` is a lower bound."""

    drafter: str
    drafted: int
    accepted: int
    features: Features
    censored: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """What one drafter of a chain got: its own drafted and accepted tokens, and the chances of
    those verified (see RequestOutcome). The part after one that was not accepted in full was not
    reached: its tokens count neither way."""

    drafter: str
    drafted: int
    accepted: int
    features: Features = Features()
    chances: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Margins:
    """How far a model's best token was ahead of its second best at each place that it drafted, as a
    difference of logits, also of places that were not verified after all. sampled: the request's
    tokens are drawn at random, and the margins are those at its temperature."""

    drafter: str
    sampled: bool
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """What a model's draft must promise to be verified, settled before it is drawn.

    A token's chance of being accepted is 1 / (1 + exp(-(bias + slope * margin))), with the margin
    between 0 and `most`, and `deeper` added to the bias behind the first token. A draft ends before
    the first token whose chance, times those of the tokens before it, is below `least`. A margin is
    known before its token is drawn and decides only whether that and what follows is verified, so
    the law of what is verified is that of the drafts (no later margin is looked at)."""

    least: float
    bias: float
    slope: float
    deeper: float
    most: float

    def length(self, margins: Sequence[float]) -> int:
        """How many tokens of a draft with these margins are verified."""
        survival = 1.0
        for place, margin in enumerate(margins):
            held = min(max(margin, 0.0), self.most)
            power = self.bias + self.slope * held + (self.deeper if place else 0.0)
            survival /= 1.0 + math.exp(-power)
            if not survival >= self.least:
                return place
        return len(margins)


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """What one request got from the step.

    drafter: as allotted. drafted: tokens really drafted and verified. accepted: drafted tokens
    kept, 0..drafted. committed: tokens added to the text (accepted + 1, fewer when cut). cut: a
    stop or the length limit ended the request inside the accepted run, so positions past it are
    censored. chances: where tokens are drawn without a seed, of each draft that was verified (the
    accepted ones and, unless it was cut, the first rejected one) the chance that it would be
    accepted, min(1, p/q), or p(x) of one that was not drawn; else empty. parts: of a chain, its
    head and its tail in order, the tail also when it had nothing to add; empty for one drafter
    alone. margins: of a model's draft, whatever of it was verified; None where no model drafted.
    refused: the drafter whose next token a mask of the request (a grammar's) ruled out, so that the
    draft ended before it: verified, it would have been rejected; "none" where none was."""

    request: int
    drafter: str
    drafted: int
    accepted: int
    committed: int
    cut: bool = False
    features: Features = Features()
    shadows: tuple[ShadowScore, ...] = ()
    parts: tuple[Part, ...] = ()
    chances: tuple[float, ...] = ()
    margins: Margins | None = None
    refused: str = NONE

    @property
    def name(self) -> str:
        """Who drafted: the drafter, or the chain "head+tail" where its tail added something."""
        drafted = [part.drafter for part in self.parts if part.drafted]
        return "+".join(drafted) or self.drafter


@dataclass(frozen=True, slots=True)
class Proposal:
    """One drafter's drafting in a step: for how many requests it drafted, the longest length asked
    for these, and the milliseconds it took for all of them on the device.

    catch_up: rows of committed text that it computed beyond those of its usual drafts, for whatever
    requests, also for some that it then drafted nothing for. What it computes in a step without
    drafting (it only catches up, or writes keys and values of text it may draft after) is a
    proposal for 0 requests at depth 0."""

    drafter: str
    requests: int
    depth: int
    ms: float
    catch_up: int = 0


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Measured result of a step. rows: target rows of decoding requests (sum of 1 + D).
    context_tokens: sum of context lengths of the decoding requests. Times in milliseconds;
    draft_ms holds the proposals, and what was spent on offers."""

    step: int
    requests: int
    rows: int
    prefill_rows: int
    context_tokens: int
    verify_ms: float
    draft_ms: float
    overhead_ms: float
    per_request: tuple[RequestOutcome, ...]
    proposals: tuple[Proposal, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate plan. Goodput in committed tokens per second, with an interval."""

    drafter: str
    draft_length: float
    predicted_tokens: float
    predicted_ms: float
    goodput: float
    low: float
    high: float


@dataclass(slots=True)
class Realised:
    """Measured outcome of a decision, over the steps it was in force."""

    steps: int = 0
    tokens: int = 0
    ms: float = 0.0

    @property
    def goodput(self) -> float:
        """Committed tokens per second while the decision was in force; 0 before the first step."""
        return 1000.0 * self.tokens / self.ms if self.ms > 0 else 0.0

    @property
    def tokens_per_step(self) -> float | None:
        """Committed tokens of a step, mean; None before the first one."""
        return self.tokens / self.steps if self.steps else None

    @property
    def ms_per_step(self) -> float | None:
        """Milliseconds of a step, mean; None before the first one."""
        return self.ms / self.steps if self.steps else None


@dataclass(slots=True)
class Decision:
    """A change of plan with its reasons. `realised` is filled while the decision is in force;
    everything else is complete at birth.

    drafter and draft_length describe the batch: the most used drafter and the mean D per
    request. inputs: batch size, context, mode, acceptance and costs used (JSON-able values).
    reason: a documented code (docs/controller.md). guard: the guard that fired, or None.
    predicted_tokens, predicted_ms: of one step of the chosen plan, what predicted_goodput is the
    ratio of."""

    id: str
    step: int
    time: float
    drafter: str
    draft_length: float
    previous_drafter: str
    previous_draft_length: float
    inputs: dict[str, object]
    candidates: tuple[Candidate, ...]
    runner_up: Candidate | None
    margin: float
    reason: str
    sentence: str
    guard: str | None
    predicted_goodput: float
    requests: tuple[int, ...] = ()
    realised: Realised = field(default_factory=Realised)
    closed: bool = False
    predicted_tokens: float | None = None
    predicted_ms: float | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A sampled step, as it was predicted when it was planned and as it was measured.

    requests: its batch size; context: their mean length in tokens. drafts: by drafter, or chain
    "head+tail", how many requests draft with it and how many tokens in all. realised_ms: of a step
    with prefill rows the decoding requests' share; predicted_ms knows nothing of prefill. price:
    tokens that a drafted row is worth. probe: the plan was changed to learn something. guard: code
    of the guard that held drafts back, or None. decision: id of the one in force, or ""."""

    id: str
    step: int
    time: float
    requests: int
    context: float
    prefill_rows: int
    drafts: dict[str, tuple[int, int]]
    predicted_tokens: float
    predicted_ms: float
    realised_tokens: int
    realised_ms: float
    price: float
    probe: bool
    guard: str | None
    decision: str


@dataclass(frozen=True, slots=True)
class HarmTotals:
    """Committed tokens, and what they took in seconds: as measured, what plain decoding would have
    taken, and what the best static choice would have taken at most."""

    tokens: int
    real_s: float
    plain_s: float
    static_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One allotment per request of the batch, in the batch's order. decision is None when the
    plan in force did not change. probes: the requests whose drafts a probe changed."""

    allotments: tuple[Allotment, ...]
    decision: Decision | None = None
    probes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Predicted goodput (tokens/s) per candidate at a batch size and context, from live models."""

    batch_size: int
    context_len: int
    candidates: tuple[Candidate, ...]
    best: Candidate


@dataclass(frozen=True, slots=True)
class CostPoint:
    """One calibration measurement: median milliseconds of a verify step of `requests` requests
    with `rows` rows in all, each with `context_len` tokens of context."""

    requests: int
    rows: int
    context_len: int
    ms: float


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """What the controller must know of a drafter.

    model: it is a model, which runs for all its requests at once. tail: it can continue a model's
    draft. rho: what one drafted token costs against a plain step of one request, known before
    anything was measured: the bytes of weights that its pass reads over those of the target's; 0
    when it costs next to nothing."""

    name: str
    model: bool = False
    tail: bool = False
    rho: float = 0.0


class Controller(Protocol):
    """Chooses drafter and D per request and step, and learns from the outcomes."""

    @property
    def setting(self) -> Setting: ...

    def configure(self, setting: Setting) -> None:
        """Change the mode, pin or limit; takes effect at the next plan."""
        ...

    def set_enabled(self, drafter: str, enabled: bool) -> None:
        """Enable or disable a drafter; a disabled drafter is never allotted."""
        ...

    def add_drafter(self, drafter: DrafterInfo) -> None:
        """From the next plan on there is one more drafter, enabled; nothing is known of it."""
        ...

    def remove_drafter(self, name: str) -> None:
        """The drafter is gone from the next plan on, and all that was learned of it. ValueError
        while the setting pins it."""
        ...

    @property
    def attentive(self) -> bool:
        """Whether the next step looks for drafts: False asks for no offers (but of requests with a
        wish) and no new shadow drafts, because looking has not paid for itself lately."""
        ...

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan: ...

    def observe(self, outcome: StepOutcome) -> None: ...

    def forget(self, request: int) -> None:
        """Drop everything kept for a finished request."""
        ...

    def take_decisions(self) -> list[Decision]:
        """Decisions opened or closed since the last call, each also with its realised outcome so
        far (the same id may come again, updated)."""
        ...

    def take_step_records(self) -> list[StepRecord]:
        """The sampled steps that were measured since the last call, oldest first; none of a
        controller that predicts no steps."""
        ...

    def harm_totals(self) -> HarmTotals | None:
        """Since the controller's start; None of one that keeps no ledger."""
        ...

    def what_if(self, batch_size: int, context_len: int) -> WhatIf: ...

    def report(self) -> dict[str, object]:
        """JSON-able view of the live models: setting, acceptance by drafter and position, cost
        table, probing state."""
        ...
