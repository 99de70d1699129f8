"""What a request asks of the logits before they are filtered, at every verified row.

Order: grammar, allowed ids, bad words, early ends, bias, penalties. Row j of a chunk sees the
committed text and its first j drafts, exactly what that row implies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.batch import Chunk
from engine.device import Device
from engine.draw import Draw
from engine.masks import mask_grammar, mask_pairs
from engine.penalties import Penalties


class Chain:
    """Applies the chain. Keeps, per request that needs it, the logits' fixed change and the
    tally of its tokens, until `forget`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._penalties = Penalties(device)
        self._fixed: dict[int, Tensor] = {}

    def __len__(self) -> int:
        """How many requests it keeps something for."""
        return max(len(self._fixed), len(self._penalties))

    def forget(self, request: int) -> None:
        """Drop what is kept of a request; unknown ids have nothing."""
        self._fixed.pop(request, None)
        self._penalties.forget(request)

    def apply(
        self, logits: Tensor, chunks: Sequence[Chunk], groups: Sequence[range]
    ) -> Tensor | None:
        """Change contiguous logits float32 [R, V] in place. chunks: the wanted ones; groups: rows.

        Returns whether the model's own logits were sound, bool [R], or None when no chunk asks
        for anything and nothing was touched."""
        if not any(chunk.draw.shaped or chunk.mask is not None for chunk in chunks):
            return None
        sound = torch.isfinite(logits.amax(dim=-1))
        device = self._device
        mask_grammar(logits, chunks, groups, device)
        mask_pairs(logits, chunks, groups, device)
        for chunk, group in zip(chunks, groups, strict=True):
            if chunk.draw.fixed:
                logits[group.start : group.stop] += self._change(chunk, logits.shape[1])
        self._penalties.apply(logits, chunks, groups)
        return sound

    def _change(self, chunk: Chunk, vocabulary: int) -> Tensor:
        change = self._fixed.get(chunk.request)
        if change is None:
            change = fixed_change(chunk.draw, vocabulary, self._device)
            self._fixed[chunk.request] = change
        return change


def fixed_change(draw: Draw, vocabulary: int, device: Device) -> Tensor:
    """What bias, allowed ids and bad words of one token add at every row: float32 [V]."""
    change = torch.zeros(vocabulary, dtype=torch.float32, device=device.torch_device)
    if draw.logit_bias:
        ids = device.tensor([token for token, _ in draw.logit_bias], torch.int64)
        change.index_add_(0, ids, device.tensor([b for _, b in draw.logit_bias], torch.float32))
    if draw.allowed_token_ids is not None:
        closed = torch.full_like(change, float("-inf"))
        ids = device.tensor(list(draw.allowed_token_ids), torch.int64)
        change += closed.index_fill_(0, ids, 0.0)
    single = [word[0] for word in draw.bad_words if len(word) == 1]
    if single:
        change.index_fill_(0, device.tensor(single, torch.int64), float("-inf"))
    return change
