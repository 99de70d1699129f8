"""One request inside the engine: its tokens, its pages, its counters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from controller.contract import RequestView, Wish
from engine.draw import Draw
from engine.output import Output
from engine.wire import Speculation, Timing


@dataclass(slots=True, eq=False)
class Request:
    """tokens: prompt, then output. computed: how many of them have keys and values in pages.
    Times are seconds of time.perf_counter(); None until they happen."""

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
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: list[int] = field(default_factory=lambda: [0])
    drafters: Counter[str] = field(default_factory=Counter)

    @property
    def produced(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Output tokens it may still emit."""
        return self.max_tokens - self.produced

    @property
    def decoding(self) -> bool:
        """True once the whole prompt is in the pages and the first token is out."""
        return self.computed >= self.prompt_length

    @property
    def reserved_tokens(self) -> int:
        """Tokens its pages must hold in the end."""
        return self.prompt_length + self.max_tokens

    def view(self) -> RequestView:
        """What the controller may know of it."""
        return RequestView(
            id=self.id,
            tenant=self.tenant,
            context_len=len(self.tokens),
            remaining=self.remaining,
            temperature=self.draw.temperature,
            seeded=self.draw.seed is not None,
            wish=self.wish,
        )

    def count(self, drafter: str, drafted: int, accepted: int) -> None:
        """Count one verify step after the prefill."""
        self.steps += 1
        self.drafters[drafter] += 1
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
