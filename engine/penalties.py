"""Repetition, frequency and presence penalties over the history that each row implies.

The repetition penalty divides a positive logit and multiplies a negative one, for every token of
prompt and output (Keskar et al. 2019); frequency and presence penalties are subtracted, per
occurrence and once, for every token of the output (OpenAI's definition)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.batch import Chunk
from engine.device import Device


class Tally:
    """The distinct tokens of one request: how often each is in the output, and whether it is in
    the prompt. Brought up to date from the token list, so a recomputed step changes nothing."""

    def __init__(self, prompt: Sequence[int]) -> None:
        known = np.unique(np.asarray(prompt, dtype=np.int64))
        self._slots = {int(token): slot for slot, token in enumerate(known)}
        self._ids = known
        self._prompted = np.ones(len(known), dtype=np.float32)
        self._counts = np.zeros(len(known), dtype=np.float32)
        self._taken = len(prompt)

    def update(self, history: Sequence[int]) -> None:
        """Count the tokens of history that are new since the last call."""
        for token in history[self._taken :]:
            slot = self.slot(token)  # may replace the arrays
            self._counts[slot] += 1.0
        self._taken = len(history)

    def slot(self, token: int) -> int:
        """Where the token is in the arrays; a token not seen before gets a place of count 0."""
        slot = self._slots.setdefault(token, len(self._slots))
        if slot >= len(self._ids):
            room = max(64, len(self._ids))
            self._ids = np.concatenate((self._ids, np.zeros(room, np.int64)))
            self._prompted = np.concatenate((self._prompted, np.zeros(room, np.float32)))
            self._counts = np.concatenate((self._counts, np.zeros(room, np.float32)))
        self._ids[slot] = token
        return slot

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ids int64 [U], counts in the output float32 [U], 1.0 where in the prompt float32 [U]."""
        used = len(self._slots)
        return self._ids[:used], self._counts[:used], self._prompted[:used]


class Penalties:
    """Applies penalties to logits; keeps a Tally for each request that has any."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._tallies: dict[int, Tally] = {}

    def __len__(self) -> int:
        return len(self._tallies)

    def forget(self, request: int) -> None:
        self._tallies.pop(request, None)

    def apply(self, logits: Tensor, chunks: Sequence[Chunk], groups: Sequence[range]) -> None:
        """Penalise the rows of chunks whose draw asks for it, in place. logits: contiguous float32
        [R, V].

        Works on the distinct tokens of each history alone, all rows at once: pair k is one such
        token at one row."""
        chosen = [i for i, chunk in enumerate(chunks) if chunk.draw.penalised]
        if not chosen:
            return
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        rows: list[int] = []
        sizes: list[int] = []  # distinct tokens of each row
        bases: list[int] = []  # where they begin in parts
        starts: list[int] = []  # where they begin among the pairs
        drafted: list[int] = []  # pairs that a draft before the row repeats
        weights: list[tuple[float, float, float]] = []
        base = pairs = 0
        for i in chosen:
            chunk, draw = chunks[i], chunks[i].draw
            tally = self._tally(chunk)
            slots = [tally.slot(token) for token in chunk.drafts]
            part = tally.arrays()
            parts.append(part)
            for place, row in enumerate(groups[i]):
                rows.append(row)
                sizes.append(len(part[0]))
                bases.append(base)
                starts.append(pairs)
                drafted.extend(pairs + slot for slot in slots[:place])
                weights.append(
                    (draw.repetition_penalty, draw.frequency_penalty, draw.presence_penalty)
                )
                pairs += len(part[0])
            base += len(part[0])
        device = self._device
        ids, counts, prompted = (
            device.upload(torch.from_numpy(np.concatenate(column)))
            for column in zip(*parts, strict=True)
        )
        length = device.tensor(sizes, torch.int64)
        shift = device.tensor([b - s for b, s in zip(bases, starts, strict=True)], torch.int64)
        order = torch.arange(len(rows), device=device.torch_device)
        place = order.repeat_interleave(length, output_size=pairs)
        source = torch.arange(pairs, device=device.torch_device) + shift.index_select(0, place)
        count = counts.index_select(0, source)
        if drafted:
            index = device.tensor(drafted, torch.int64)
            count.index_add_(0, index, torch.ones_like(index, dtype=torch.float32))
        row_starts = device.tensor([row * logits.shape[1] for row in rows], torch.int64)
        where = row_starts.index_select(0, place) + ids.index_select(0, source)
        repetition, frequency, presence = (
            device.tensor(list(column), torch.float32).index_select(0, place)
            for column in zip(*weights, strict=True)
        )
        flat = logits.view(-1)
        value = flat.index_select(0, where)
        told = (count > 0).to(torch.float32)
        seen = told + prompted.index_select(0, source) > 0
        repeated = torch.where(value > 0, value / repetition, value * repetition)
        value = torch.where(seen, repeated, value) - frequency * count - presence * told
        flat.index_copy_(0, where, value)

    def _tally(self, chunk: Chunk) -> Tally:
        tally = self._tallies.get(chunk.request)
        if tally is None:
            tally = Tally(chunk.history[: chunk.prompt_length])
            self._tallies[chunk.request] = tally
        tally.update(chunk.history)
        return tally
