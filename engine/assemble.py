"""Builds the chunks of one step from the work, the drafts and the grammar masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from engine.batch import Chunk
from engine.drafts import Draft
from engine.scheduler import Prefill, Work
from engine.unseen import unseen_of


def assemble(
    work: Work, drafts: Sequence[Draft], masks: Mapping[int, Tensor] | None = None
) -> list[Chunk]:
    """One chunk per decoding request, with its draft, then one per prefill.

    masks: request id -> grammar mask of its wanted rows, also of those that end a prefill."""
    masks = masks or {}
    unseen = [unseen_of(draft.tokens) for draft in drafts]
    chunks = [
        Chunk(
            request=request.id,
            ids=[request.tokens[-1], *(draft.tokens if late is None else [0] * len(late))],
            start=request.computed,
            pages=request.pages,
            draw=request.draw,
            drafted=len(draft),
            q=draft.q,
            history=request.tokens,
            prompt_length=request.prompt_length,
            mask=masks.get(request.id),
            logprobs=request.draw.logprobs,
            unseen=late,
        )
        for request, draft, late in zip(work.decoding, drafts, unseen, strict=True)
    ]
    chunks.extend(_prefill(prefill, masks) for prefill in work.prefills)
    return chunks


def _prefill(prefill: Prefill, masks: Mapping[int, Tensor]) -> Chunk:
    """Prompt scores are not wanted again when a preempted request that has output comes back."""
    request, start = prefill.request, prefill.request.computed
    return Chunk(
        request=request.id,
        ids=request.tokens[start : start + prefill.rows],
        start=start,
        pages=request.pages,
        draw=request.draw,
        wanted=prefill.last,
        history=request.tokens,
        prompt_length=request.prompt_length,
        mask=masks.get(request.id) if prefill.last else None,
        logprobs=request.draw.logprobs,
        prompt_logprobs=None if request.produced else request.draw.prompt_logprobs,
    )
