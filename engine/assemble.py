"""Builds the chunks of one step from the work, the drafts and the grammar masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from engine.batch import Chunk
from engine.drafts import Draft
from engine.scheduler import Prefill, Work


def assemble(
    work: Work, drafts: Sequence[Draft], masks: Mapping[int, Tensor] | None = None
) -> list[Chunk]:
    """One chunk per decoding request, with its draft, then one per prefill.

    masks: request id -> grammar mask of its wanted rows."""
    masks = masks or {}
    chunks = [
        Chunk(
            request=request.id,
            ids=[request.tokens[-1], *draft.tokens],
            start=request.computed,
            pages=request.pages,
            draw=request.draw,
            drafted=len(draft),
        )
        for request, draft in zip(work.decoding, drafts, strict=True)
    ]
    chunks.extend(_prefill(prefill) for prefill in work.prefills)
    return chunks


def _prefill(prefill: Prefill) -> Chunk:
    request, start = prefill.request, prefill.request.computed
    return Chunk(
        request=request.id,
        ids=request.tokens[start : start + prefill.rows],
        start=start,
        pages=request.pages,
        draw=request.draw,
        wanted=prefill.last,
    )
