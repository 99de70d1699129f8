"""The passes of a model drafter after the first as one loop that a GPU repeats by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention import Fixed, Fixes
from engine.batch import Chunk
from engine.device import Device
from engine.draft_models.lane import Lane
from engine.shape import Attend
from engine.verification import is_lost, is_shortage

log = logging.getLogger(__name__)

Pass = Callable[[Tensor, Tensor, Tensor, Attend], tuple[Tensor, Tensor, Tensor]]
"""(ids [B], hidden [B, d], positions [B], attend) -> output [B, d], the likeliest next ids [B] and
their margins [B]."""

USES = 4
"""A loop becomes a graph when it has been run so often: making one takes as long as many runs."""
MOST_LOOPS = 32
"""Kept at a time; the one that was not run for longest goes. Each holds a graph and its plans."""


class Key(NamedTuple):
    """What a loop is made for. rows: requests that it drafts for, a power of two. depths: tokens
    that it draws for each. hides: some request's first keys are hidden."""

    rows: int
    depths: int
    hides: bool


class More(NamedTuple):
    """The tokens after the first: ids int64 and margins float32 [depths * rows], depth by depth."""

    ids: Tensor
    margins: Tensor
    rows: int


class Repeated:
    """Keeps a loop for every key that it was asked for.

    The lengths of the texts are known before a token is drawn, so the host tells all passes where
    they read and write at once; the ids go from pass to pass on the device. A row that drafts
    nothing (any more) repeats the first request's, which has the longest draft: it writes the same
    keys and values to the same slots."""

    def __init__(self, run: Pass, attention: Fixes, device: Device, page_size: int) -> None:
        self._pass = run
        self._attention = attention
        self._device = device
        self._size = page_size
        self._loops: dict[Key, _Loop] = {}
        self._able = True

    def run(self, lanes: Sequence[Lane], output: Tensor, ids: Tensor) -> More | None:
        """Enqueue the passes after the first for lanes whose longest draft, of two tokens at least,
        comes first. output [n, d] and ids [n]: what the first pass gave and drew. None where the
        requests do not all take the likeliest token, or have too many keys; the passes then have to
        be enqueued one by one."""
        longest, count = lanes[0].length - 1, len(lanes)
        rows = 1 << (count - 1).bit_length()
        keys = sum(lane.end + longest for lane in lanes)
        keys += (rows - count) * (lanes[0].end + longest)
        if not self._able or keys > self._attention.most_keys:
            return None
        if not all(lane.request.draw.greedy for lane in lanes):
            return None
        key = Key(rows, longest, any(lane.first for lane in lanes))
        loop = self._loops.pop(key, None)
        try:
            loop = loop or self._open(key, output)
            loop.place(lanes, self._size, self._device)
            loop.run(output, ids)
        except _NoKernel:
            self._able = False
            return None
        except Exception as error:
            if is_lost(error) or is_shortage(error):
                raise  # the loop, which may be half made, is not kept
            log.exception("drafting in one loop failed; passes are enqueued one by one from now on")
            self._able = False
            self._loops.clear()
            return None
        self._loops[key] = loop  # the last one used comes last
        return More(loop.ids.flatten(), loop.margins.flatten(), rows)

    def _open(self, key: Key, output: Tensor) -> _Loop:
        if len(self._loops) >= MOST_LOOPS:
            del self._loops[next(iter(self._loops))]
        return _Loop(key, self._pass, self._attention, self._device, output)


class _NoKernel(Exception):
    """The attention has no fixed pass for these layers."""


class _Loop:
    """The passes of one key over tensors that stay where they are.

    where: int64 [3, depths, rows], of every pass positions, slots, and which row of the pass before
    each row continues."""

    def __init__(
        self, key: Key, run: Pass, attention: Fixes, device: Device, output: Tensor
    ) -> None:
        place = device.torch_device
        self._key = key
        self._pass = run
        self._device = device
        self._where = torch.zeros((3, key.depths, key.rows), dtype=torch.int64, device=place)
        self._hidden = output.new_zeros((key.rows, output.shape[1]))
        self._first = torch.zeros(key.rows, dtype=torch.int64, device=place)
        self.ids = torch.zeros((key.depths, key.rows), dtype=torch.int64, device=place)
        self.margins = torch.zeros((key.depths, key.rows), dtype=torch.float32, device=place)
        fixed = attention.fixed(self._where[1], key.hides)
        if fixed is None:
            raise _NoKernel
        self._fixed: Sequence[Fixed] = fixed
        self._uses = 0
        self._graph: Callable[[], None] | None = None

    def place(self, lanes: Sequence[Lane], page_size: int, device: Device) -> None:
        """Tell every pass what it reads and writes."""
        positions: list[int] = []
        slots: list[int] = []
        sources: list[int] = []
        for depth, fixed in enumerate(self._fixed):
            chunks: list[Chunk] = []
            for row in range(self._key.rows):
                source = row if row < len(lanes) and depth + 1 < lanes[row].length else 0
                lane = lanes[source]
                position = lane.end + depth
                sources.append(source)
                positions.append(position)
                slots.append(lane.slot(position, page_size))
                chunks.append(lane.chunk((0,), position))
            fixed.plan(chunks)
        told = device.tensor([*positions, *slots, *sources], torch.int64)
        self._where.copy_(told.view(self._where.shape))

    def run(self, output: Tensor, ids: Tensor) -> None:
        """Draw behind the first ids [n], which were drawn from output [n, d]."""
        self._hidden[: len(output)].copy_(output)
        self._first[: len(ids)].copy_(ids)
        if self._graph is None and self._uses >= USES:
            self._graph = self._device.graph(self._body)
        self._uses += 1
        (self._graph or self._body)()

    def _body(self) -> None:
        hidden, ids = self._hidden, self._first
        for depth, fixed in enumerate(self._fixed):
            positions, _, sources = self._where[:, depth]
            hidden, ids, margins = self._pass(
                ids.index_select(0, sources),
                hidden.index_select(0, sources),
                positions,
                fixed.attend,
            )
            self.ids[depth].copy_(ids)
            self.margins[depth].copy_(margins)
