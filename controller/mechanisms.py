"""The fifth guideline, choice of the mechanism: when each drafter wins here, and at what price.

No drafter is best everywhere: acceptance length stands against draft latency, and both against the
price of verified rows, which the batch size sets. Source: NVIDIA, "Co-Designing AI Models Using
Speculative Decoding for Faster LLM Inference" (2026), guideline 5, as summed up by others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controller.contract import NONE
from controller.outlook import LENGTHS, Outlook
from controller.planner import MIN_GAIN

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Batch sizes that the report is made for."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A drafter at its best uniform D for a batch size. speedup: goodput over plain decoding's,
    with the share of requests that it has drafts for. wins: it is the best of all there, plain
    decoding too. Times in ms of a step in which it drafts."""

    drafter: str
    requests: int
    draft_length: int
    acceptance_length: float
    draft_ms: float
    verify_ms: float
    speedup: float
    wins: bool


def mechanisms(
    drafters: Sequence[str],
    max_length: int,
    context_len: int,
    outlook: Outlook,
    batches: Sequence[int] = BATCHES,
) -> list[Mechanism]:
    """Every drafter at its best D for every batch size, by drafter. A drafter whose drafts do not
    pay is shown at the D that loses least."""
    lengths = [n for n in LENGTHS if n <= max_length]
    if not lengths:
        return []
    found: list[Mechanism] = []
    for requests in batches:
        plain = outlook.plain(requests, context_len).goodput
        here: list[Mechanism] = []
        for name in drafters:
            predicted = outlook.drafting(name, lengths, requests, context_len)
            place = max(range(len(lengths)), key=lambda i: predicted[i].goodput)
            best = predicted[place]
            here.append(
                Mechanism(
                    name,
                    requests,
                    lengths[place],
                    best.acceptance_length,
                    best.draft_ms,
                    best.verify_ms,
                    best.goodput / plain,
                    False,
                )
            )
        winner = max(here, key=lambda one: one.speedup, default=None)
        found += [replace(one, wins=one is winner and one.speedup > 1.0 + MIN_GAIN) for one in here]
    return sorted(found, key=lambda one: drafters.index(one.drafter))


def when(found: Sequence[Mechanism], evidence: Mapping[str, float]) -> dict[str, str]:
    """By drafter, and for plain decoding under "none", when it wins here, in a sentence.
    evidence: discounted drafts seen of each."""
    sentences: dict[str, str] = {}
    sizes = sorted({one.requests for one in found})
    for name in dict.fromkeys(one.drafter for one in found):
        mine = [one for one in found if one.drafter == name]
        won = [one.requests for one in mine if one.wins]
        best = max(mine, key=lambda one: one.speedup)
        at_best = (
            f"{best.speedup:.2f} × at {_requests(best.requests)} with D = {best.draft_length}, "
            f"{best.acceptance_length:.2f} tokens per step for {best.draft_ms:.2f} ms of drafting"
        )
        text = f"Wins at {_ranges(won, sizes)}: " if won else "Wins at no batch size here: at best "
        text += at_best
        if evidence.get(name, 0.0) < 1.0:
            text += "; nothing was seen of it yet, so this rests on priors"
        sentences[name] = text + "."
    left = [n for n in sizes if not any(one.wins for one in found if one.requests == n)]
    if left:
        sentences[NONE] = f"Plain decoding wins at {_ranges(left, sizes)}."
    return sentences


def _ranges(some: Sequence[int], sizes: Sequence[int]) -> str:
    """`1 to 8 and 64 requests`: neighbours among the sizes together."""
    runs: list[list[int]] = []
    for size in some:
        if runs and sizes.index(size) == sizes.index(runs[-1][-1]) + 1:
            runs[-1].append(size)
        else:
            runs.append([size])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"{' and '.join(parts)} {'request' if list(some) == [1] else 'requests'}"


def _requests(count: int) -> str:
    return f"{count} request" if count == 1 else f"{count} requests"
