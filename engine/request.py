"""One request inside the engine: its tokens, its pages, its counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from controller.contract import RequestView, Wish
from engine.draw import Draw
from engine.wire import Speculation, Timing

if TYPE_CHECKING:  # the scheduler and its tests run without torch
    from engine.grammar import Constraint
    from engine.output import Output


@dataclass(slots=True, eq=False)
class Request:
    """tokens: prompt, then output. computed: how many of them have keys and values in pages; the
    last token never has, until it is a row of the next step. priority: lower runs first.
    cache_salt: it shares computed pages and past answers with those of the same one only. Times
    are seconds of time.perf_counter(); None until they happen.

    keys: content keys of the full pages of its text, computed when needed. registered: how many of
    its pages the prefix cache knows. reused: how many of them it found there. cached_tokens: how
    much of its prompt that cache held when it was first admitted. preemptions: how often it lost
    its pages and began again. retried: it was put back after a step that failed.
    grammar_field: the request's field that its constraint comes from."""

    id: int
    name: str
    tokens: list[int]
    prompt_length: int
    max_tokens: int
    draw: Draw
    wish: Wish
    tenant: str
    output: Output
    arrived: float
    priority: int = 0
    cache_salt: str = ""
    constraint: Constraint | None = None
    grammar_field: str | None = None
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    keys: list[bytes] = field(default_factory=list)
    registered: int = 0
    reused: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    retried: bool = False
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: list[int] = field(default_factory=lambda: [0])
    drafters: Counter[str] = field(default_factory=Counter)
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def produced(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Output tokens it may still emit."""
        return self.max_tokens - self.produced

    @property
    def exclusions(self) -> list[str]:
        """Its fields that keep tokens from being drawn."""
        draw = self.draw
        fields = (
            ("allowed_token_ids", draw.allowed_token_ids is not None),
            ("bad_words", bool(draw.bad_words)),
            ("min_tokens", draw.min_tokens > 0),
            (self.grammar_field, self.constraint is not None),
        )
        return [name for name, is_set in fields if name is not None and is_set]

    @property
    def turn(self) -> tuple[int, int]:
        """Its place in the order of all requests: by priority, then by arrival."""
        return self.priority, self.id

    @property
    def decoding(self) -> bool:
        """True once it has output and everything before its last token is in the pages."""
        length = len(self.tokens)
        return self.computed >= length - 1 and length > self.prompt_length

    @property
    def uncomputed(self) -> int:
        """Rows left to prefill: of the prompt, or after a preemption of all but its last token,
        which is the first row of its next verify step."""
        return len(self.tokens) - (1 if self.produced else 0) - self.computed

    @property
    def may_reuse(self) -> bool:
        """False while it needs the logits of its whole prompt."""
        return self.draw.prompt_logprobs is None or self.produced > 0

    def view(self) -> RequestView:
        """What the controller may know of it."""
        return RequestView(
            id=self.id,
            tenant=self.tenant,
            context_len=len(self.tokens),
            remaining=self.remaining,
            temperature=0.0 if self.draw.greedy else self.draw.temperature,
            seeded=self.draw.seed is not None,
            wish=self.wish,
        )

    def count(
        self, drafter: str, drafted: int, accepted: int, parts: Sequence[tuple[str, int, int]]
    ) -> None:
        """Count one verify step after the prefill. parts: (drafter, drafted, accepted) of whoever
        drafted in it, of a chain its head and its tail."""
        self.steps += 1
        self.drafters[drafter] += 1
        for name, more_drafted, more_accepted in parts:
            before_drafted, before_accepted = self.parts.get(name, (0, 0))
            self.parts[name] = (before_drafted + more_drafted, before_accepted + more_accepted)
        self.drafted += drafted
        self.accepted += accepted
        if accepted >= len(self.histogram):
            self.histogram.extend([0] * (accepted + 1 - len(self.histogram)))
        self.histogram[accepted] += 1

    def speculation(self, max_draft_length: int) -> Speculation:
        histogram = self.histogram + [0] * (max_draft_length + 1 - len(self.histogram))
        return Speculation(
            steps=self.steps,
            drafted=self.drafted,
            accepted=self.accepted,
            histogram=tuple(histogram),
            max_draft_length=max_draft_length,
            drafters=dict(self.drafters),
            parts=dict(self.parts),
        )

    def timing(self, now: float) -> Timing:
        admitted = self.admitted if self.admitted is not None else now
        first = self.first_token if self.first_token is not None else now
        last = self.last_token if self.last_token is not None else now
        return Timing(
            queue_ms=1e3 * (admitted - self.arrived),
            ttft_ms=1e3 * (first - self.arrived),
            e2e_ms=1e3 * (now - self.arrived),
            tpot_ms=1e3 * (last - first) / (self.produced - 1) if self.produced > 1 else None,
        )
