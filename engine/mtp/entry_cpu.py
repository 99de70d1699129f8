"""A head's entry and layer on the CPU: for few rows one compiled list up to the attention."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.decoder import Decoder
from engine.layers_cpu import MOST_ROWS, CpuLayers, Step, listed, product_step
from engine.mtp.entry import Fuse, PlainEntry, PlainFusion, keys_and_values
from engine.norm import MirroredNorm
from engine.program import HEADER, STEP
from engine.shape import Attend

EMBEDDINGS, HIDDEN = HEADER + 2, HEADER + STEP + 2
"""The words that take the addresses of what the first two operations read."""


def serves_entry(entry: PlainEntry) -> bool:
    """Whether the compiled code computes this entry."""
    normed = all(
        isinstance(norm, MirroredNorm) for norm in (entry.embedding_norm, entry.hidden_norm)
    )
    return normed and listed(entry.of_embedding) and listed(entry.of_hidden)


class EntryLayers(CpuLayers):
    """CpuLayers that begin with an entry that `serves_entry` accepts."""

    def __init__(self, decoder: Decoder, entry: PlainEntry) -> None:
        super().__init__(decoder)
        self._entry = entry
        self._inputs = torch.empty(5, MOST_ROWS, decoder.shape.hidden, dtype=self._dtype)

    def enter(
        self, embeddings: Tensor, hidden: Tensor, positions: Tensor, attend: Attend
    ) -> Tensor:
        """embeddings and hidden [T, d] -> hidden states after the final norm, [T, d]."""
        rows = len(embeddings)
        if not self._listed or rows > MOST_ROWS:
            return self._many(self._entry(embeddings, hidden), positions, attend, None)
        hidden = hidden.contiguous()
        self._planned(rows).lists[0][HIDDEN] = hidden.data_ptr()
        return self._few(embeddings, positions, attend, None)

    def remember(
        self, embeddings: Tensor, hidden: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """embeddings and hidden [T, d] -> the layer's keys and values [T, Hkv, D], which the next
        call overwrites."""
        rows = len(embeddings)
        if not self._listed or rows > MOST_ROWS:
            return keys_and_values(self._decoder, self._entry(embeddings, hidden), positions)
        embeddings, hidden = embeddings.contiguous(), hidden.contiguous()
        plan = self._planned(rows)
        plan.positions.copy_(positions)
        words = plan.lists[0]
        words[EMBEDDINGS], words[HIDDEN] = embeddings.data_ptr(), hidden.data_ptr()
        self._team.run(self._body, words)
        _, k, v = plan.qkv
        return k, v

    def _begin(self, x: Tensor, normed: Tensor) -> list[Step]:
        """The operations read embeddings and hidden states where `enter` is given them."""
        entry, rows = self._entry, len(x)
        embeddings, hidden, unused, projected, branch = (each[:rows] for each in self._inputs)
        assert entry.embedding_norm is not None
        assert entry.hidden_norm is not None
        return [
            self._add_norm(x, None, unused, entry.embedding_norm, embeddings),
            self._add_norm(x, None, unused, entry.hidden_norm, hidden),
            product_step(entry.of_embedding, embeddings, projected),
            product_step(entry.of_hidden, hidden, branch),
            self._add_norm(projected, branch, x, self._decoder.layers[0].input_norm, normed),
        ]

    def fusion(self, plain: PlainFusion) -> Fuse:
        """What plain does: for few rows one compiled list, where that computes it."""
        norm, project = plain.norm, plain.project
        if not isinstance(norm, MirroredNorm) or not listed(project):
            return plain
        outputs = self._shape.hidden

        def fuse(features: Tensor) -> Tensor:
            if len(features) > MOST_ROWS:
                return plain(features)
            features = features.contiguous()
            parts = features.view(-1, outputs)
            normed, unused = torch.empty_like(features), torch.empty_like(features)
            out = features.new_empty(len(features), outputs)
            steps = [
                self._add_norm(parts, None, unused, norm, normed),
                product_step(project, normed, out),
            ]
            self._run(steps, alone=False)
            return out

        return fuse
