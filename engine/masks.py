"""Tokens that may not be drawn at a row: grammar, bad words, and ends that come too early."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.batch import Chunk
from engine.device import Device

_LOWEST = float("-inf")


def mask_grammar(
    logits: Tensor, chunks: Sequence[Chunk], groups: Sequence[range], device: Device
) -> None:
    """Set what the chunks' grammar masks forbid to -inf, in place. logits float32 [R, V]."""
    chosen = [i for i, chunk in enumerate(chunks) if chunk.mask is not None]
    if not chosen:
        return
    masks = [device.upload(mask) for i in chosen if (mask := chunks[i].mask) is not None]
    words = torch.cat(masks) if len(masks) > 1 else masks[0]
    bits = torch.arange(32, dtype=torch.int32, device=words.device)
    allowed = (words.unsqueeze(-1) >> bits).bitwise_and_(1).flatten(1)[:, : logits.shape[1]]
    rows = device.tensor([row for i in chosen for row in groups[i]], torch.int64)
    masked = logits.index_select(0, rows).masked_fill_(allowed == 0, _LOWEST)
    logits.index_copy_(0, rows, masked)


def mask_pairs(
    logits: Tensor, chunks: Sequence[Chunk], groups: Sequence[range], device: Device
) -> None:
    """Set the last token of a bad word that the row's history has begun, and end ids before
    min_tokens, to -inf, in place."""
    rows: list[int] = []
    ids: list[int] = []
    for chunk, group in zip(chunks, groups, strict=True):
        draw = chunk.draw
        if draw.min_tokens == 0 and not draw.bad_words:
            continue
        produced = len(chunk.history) - chunk.prompt_length
        longest = max((len(word) for word in draw.bad_words), default=1) - 1
        if produced >= draw.min_tokens and longest < 1:
            continue
        output = chunk.history[len(chunk.history) - min(longest, produced) :]
        drafts = chunk.drafts
        for place, row in enumerate(group):
            forbidden = _begun(draw.bad_words, output, drafts[:place]) if longest > 0 else []
            if produced + place < draw.min_tokens:
                forbidden.extend(draw.end_ids)
            rows.extend([row] * len(forbidden))
            ids.extend(forbidden)
    if rows:
        where = device.tensor(rows, torch.int64), device.tensor(ids, torch.int64)
        logits.index_put_(where, logits.new_full((), _LOWEST))


def _begun(
    words: Sequence[Sequence[int]], output: Sequence[int], drafts: Sequence[int]
) -> list[int]:
    """Last tokens of the words whose other tokens, at least one, end output + drafts. output: as
    much of its end as the longest word needs."""
    text = [*output, *drafts]
    return [
        word[-1] for word in words if len(word) > 1 and text[1 - len(word) :] == list(word[:-1])
    ]
