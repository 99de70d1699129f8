"""What the drafters' calls of a step took, on the host and on the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from controller.contract import Proposal
from engine.drafts import Draft
from engine.unseen import Source, Unseen


class Calls:
    """The calls of one step, in order. A device goes on drawing when the host has left the call;
    how long, its own clock tells once the step has been verified."""

    def __init__(self) -> None:
        self._made: list[tuple[Proposal, float, Source | None]] = []

    def add(self, proposal: Proposal, begin: float, drafts: Iterable[Draft | None]) -> None:
        """proposal: with the milliseconds that the host took. begin: of the call, in seconds."""
        sources = (
            draft.tokens.source
            for draft in drafts
            if draft is not None and isinstance(draft.tokens, Unseen)
        )
        self._made.append((proposal, begin, next(sources, None)))

    def settled(self) -> tuple[list[Proposal], float]:
        """What each call took, and when the last was over on the device, in seconds of the host's
        clock; 0.0 without any. To be asked when the step has been verified: then nothing waits."""
        end, proposals = 0.0, list[Proposal]()
        for proposal, begin, source in self._made:
            ms = 0.0 if source is None else source.took()
            end = max(end, begin) + 1e-3 * ms  # one after the other, as they were enqueued
            proposals.append(proposal if ms <= proposal.ms else replace(proposal, ms=ms))
        return proposals, end
