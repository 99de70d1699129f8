"""Runs one step on the device: a single target forward, then choose and accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention import Attention
from engine.batch import Batch, Chunk, pack
from engine.decoder import Decoder
from engine.device import Device, Event
from engine.sampling import choose
from engine.verify import accept


@dataclass(frozen=True, slots=True)
class Verified:
    """What the target says of one wanted chunk: its token at each of the 1 + D rows, how many
    drafts it accepted, and whether the logits were sound."""

    request: int
    tokens: list[int]
    accepted: int
    sound: bool


class Step:
    """A step in flight. `result` is the only place that waits for the device."""

    def __init__(
        self, batch: Batch, tokens: Tensor, accepted: Tensor, sound: Tensor, done: Event
    ) -> None:
        self.batch = batch
        self._tokens = tokens
        self._accepted = accepted
        self._sound = sound
        self._done = done

    def result(self) -> list[Verified]:
        """Wait for the device; one entry per wanted chunk, in the batch's order."""
        self._done.synchronize()
        tokens, sound = self._tokens.tolist(), self._sound.tolist()
        results: list[Verified] = []
        row = 0
        for chunk, accepted in zip(self.batch.wanted_chunks, self._accepted.tolist(), strict=True):
            end = row + chunk.drafted + 1
            used = row + accepted + 1  # rows past the first mismatch do not matter
            results.append(Verified(chunk.request, tokens[row:end], accepted, all(sound[row:used])))
            row = end
        return results


class Executor:
    """Owns the model and the attention. forwards counts target forwards."""

    def __init__(
        self, decoder: Decoder, attention: Attention, device: Device, page_size: int
    ) -> None:
        self.decoder = decoder
        self.attention = attention
        self.device = device
        self.page_size = page_size
        self.forwards = 0
        self._generator = torch.Generator(device=device.torch_device)
        self._generator.seed()

    def verify(self, chunks: Sequence[Chunk]) -> Step:
        """Enqueue the forward over every row, the choice of target tokens and the acceptance."""
        device = self.device
        batch = pack(chunks, device, self.page_size)
        hidden = self.decoder.forward(batch.ids, batch.positions, self.attention.plan(batch))
        self.forwards += 1
        logits = self.decoder.logits(hidden.index_select(0, batch.wanted_rows))
        tokens, sound = choose(
            logits, batch.row_draws, batch.row_positions, device, self._generator
        )
        accepted = accept(tokens, batch.next_drafts, batch.leading)
        copies = device.to_host(tokens), device.to_host(accepted), device.to_host(sound)
        return Step(batch, *copies, device.record())
