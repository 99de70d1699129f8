"""Multi-token prediction: a head that drafts from the target's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from controller.contract import Offer, ShadowScore
from engine.attention import Attention
from engine.batch import Batch, Chunk
from engine.device import Device
from engine.draft_models.contents import Contents
from engine.draft_models.hiddens import HELD, Hiddens
from engine.draft_models.lane import Lane
from engine.draft_models.passes import Passes
from engine.drafters.base import Committed, Memory
from engine.drafts import Draft
from engine.kv import KvPool, storing
from engine.mtp.head import Head
from engine.request import Request


class MtpDrafter:
    """Drafts with a head that reads the target's hidden states, over layers of its own in the same
    pages.

    The row at slot j takes (t_j, h_{j-1}) and predicts t_{j+1}; there is no row at slot 0. `read`
    keeps the hidden states of what the target computes. Rows of a prompt are written at once, keys
    and values only. Those of decoding requests wait: `propose` runs them and drafts from the last;
    where it is not asked, their keys and values are written when they fill a page.

    A page is whole when its slots are, and when the hidden state of its last token is kept too,
    which the row after it takes: so a request that finds the page goes on where it ends."""

    name = "mtp"
    kind: Literal["model_free", "model"] = "model"

    def __init__(
        self,
        head: Head,
        attention: Attention,
        pool: KvPool,
        device: Device,
        max_draft_length: int,
        keyed: bool = True,
    ) -> None:
        """keyed: see Contents."""
        self.taps = head.taps
        self._head = head
        self._device = device
        self._pool = pool
        self._max = max_draft_length
        self._context = head.shape.context_length
        self._width = len(head.taps) * head.shape.hidden
        self._passes = Passes(
            head.forward,
            head.logits,
            head.vocabulary,
            attention,
            device,
            pool.page_size,
            head.repeats,
        )
        self._ends = torch.empty(
            (pool.pages, self._width), dtype=device.dtype, device=device.torch_device
        )  # hidden state of the last token of each page
        self._contents = Contents(pool.page_size, keyed)
        self._states: dict[int, Hiddens] = {}

    # --- the drafter's calls ----------------------------------------------------------------------

    def admit(self, request: Request) -> None:
        known = self._states.get(request.id)
        if known is None or known.request is not request:
            self._contents.drop(request.id)
            self._states[request.id] = Hiddens(request, most=HELD + self._max + 2)

    def offer(self, requests: Sequence[Request]) -> list[Offer | None]:
        self._contents.settle()
        return [
            Offer(request.id, self.name, most)
            if (most := self._most(request, self._max)) > 0
            else None
            for request in requests
        ]

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        self._contents.settle()
        drafts = [Draft()] * len(requests)
        able = [
            (length, place)
            for place, (request, most) in enumerate(zip(requests, lengths, strict=True))
            if (length := self._most(request, most)) > 0
        ]
        if not able:
            return drafts
        able.sort(reverse=True)
        states = [self._states[requests[place].id] for _, place in able]
        lanes = [
            self._lane(state, state.held, length)
            for state, (length, _) in zip(states, able, strict=True)
        ]
        drawn = self._passes.draft(lanes, self._fused(states, [state.held for state in states]))
        for state in states:
            state.use(state.held)
        for (_, place), draft in zip(able, drawn, strict=True):
            drafts[place] = draft
        return drafts

    def commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
        """Writes what fills a page, and what has waited for long."""
        self._contents.settle()
        full: list[tuple[Hiddens, int]] = []
        size = self._pool.page_size
        for one in commits:
            state = self._states.get(one.request.id)
            if state is None or state.pages is not one.request.pages:
                continue
            state.cut(len(one.request.tokens))
            pages = one.request.computed // size
            if state.held > HELD:
                full.append((state, state.held - 1))
            elif state.whole and pages > state.sealed:
                rows = max(0, pages * size - state.covered)
                full.append((state, min(rows, state.held)))
        if full:
            self._write(full)
        return [()] * len(commits)

    def forget(self, request: int) -> None:
        self._contents.drop(request)
        self._states.pop(request, None)

    # --- the target's hidden states ---------------------------------------------------------------

    def read(self, batch: Batch, features: Tensor) -> None:
        """A fault with one request costs what is kept of that request, of the prompts what is kept
        of all. It is raised when the others have been read."""
        self._contents.settle()
        prompts: list[tuple[int, Chunk, Hiddens]] = []
        fault: BaseException | None = None
        for first, chunk in zip(batch.offsets, batch.chunks, strict=True):
            state = self._states.get(chunk.request)
            if state is None:
                continue
            try:
                self._sync(state)
                if state.request.decoding:
                    state.keep(chunk.start, features, first, len(chunk.ids))
                else:
                    prompts.append((first, chunk, state))
            except BaseException as error:
                state.lose()
                fault = fault or error
        if prompts:
            try:
                self._prefill(prompts, features)
            except BaseException as error:
                for _, _, state in prompts:
                    state.lose()
                fault = fault or error
        if fault is not None:
            try:
                raise fault
            finally:
                del fault  # it refers to this frame, which would keep the tensors

    def _prefill(self, prompts: Sequence[tuple[int, Chunk, Hiddens]], features: Tensor) -> None:
        """Write the keys and values of the chunks' tokens but the first that the target computes
        after them, whose hidden state is kept."""
        lanes: list[Lane] = []
        parts: list[Tensor] = []
        ends: list[tuple[int, int]] = []
        for first, chunk, state in prompts:
            place, count = state.place(chunk.start), len(chunk.ids)
            kept, used = max(0, place), max(0, -place)
            if used >= count:
                continue  # a forward that failed has come again
            begin, last = first + used, first + count - 1
            written = kept + last - begin
            if written:
                lanes.append(self._lane(state, written, 0))
                parts += [*state.parts(kept), features[begin:last]]
            ends += self._page_ends(state, chunk.start, first, count)
            state.shorten(kept)
            state.use(kept)
            state.covered += last - begin
            state.add(features, last, 1)
        self._store(lanes, parts)
        self._keep_ends(ends, features)
        for _, _, state in prompts:
            if state.whole:
                self._contents.seal(state, state.covered // self._pool.page_size)

    def _page_ends(
        self, state: Hiddens, start: int, first: int, count: int
    ) -> list[tuple[int, int]]:
        """(page, its last token's row) of the pages that end among rows first..first + count - 1,
        which are of the positions from `start` on."""
        if not state.whole:
            return []
        size = self._pool.page_size
        return [
            (state.pages[place // size], first + place - start)
            for place in range(start // size * size + size - 1, start + count, size)
        ]

    # --- inside -----------------------------------------------------------------------------------

    def _sync(self, state: Hiddens) -> None:
        """Begin anew when the request has been given other pages: where those that it found are
        whole, behind them."""
        request = state.request
        if state.pages is request.pages:
            return
        self._contents.drop(request.id)
        state.lose()
        state.pages = request.pages
        found = self._contents.found(request)
        state.sealed = state.noted = found
        if found and found == request.reused:
            state.covered, state.first, state.whole = found * self._pool.page_size, 1, True
            page = request.pages[found - 1]
            state.add(self._ends[page : page + 1].clone(), 0, 1)

    def _most(self, request: Request, length: int) -> int:
        """How many of `length` tokens it can draft for the request now."""
        state = self._states.get(request.id)
        if state is None:
            return 0
        if state.pages is not request.pages:
            self._sync(state)
        known = len(request.tokens)
        if not state.up_to_date(known):
            return 0
        return min(length, self._context - known + 1)

    def _lane(self, state: Hiddens, rows: int, length: int) -> Lane:
        """The next rows of a request, about to be written with the slots of its draft."""
        begin, end = state.covered, state.covered + rows
        self._contents.overwrite(state.pages, begin, end + max(0, length - 1))
        ids = state.request.tokens[begin:end]
        return Lane(state.request, state.pages, begin, ids, length, state.first)

    def _fused(self, states: Sequence[Hiddens], counts: Sequence[int]) -> Tensor:
        parts = [
            part for state, count in zip(states, counts, strict=True) for part in state.parts(count)
        ]
        return self._head.fuse(parts[0] if len(parts) == 1 else torch.cat(parts))

    def _write(self, full: Sequence[tuple[Hiddens, int]]) -> None:
        """Write so many rows of each request, and what its pages end with."""
        try:
            size = self._pool.page_size
            lanes = [self._lane(state, rows, 0) for state, rows in full if rows]
            parts = [part for state, rows in full for part in state.parts(rows)]
            self._store(lanes, parts)
            for state, rows in full:
                for index in range(state.sealed, (state.covered + rows) // size):
                    row = (index + 1) * size - state.covered  # of the page's last position
                    if not state.whole or not 0 <= row < state.held:
                        break
                    self._ends[state.pages[index]].copy_(state.row(row))
                    self._contents.seal(state, index + 1)
                state.use(rows)
        except BaseException:
            for state, _ in full:
                state.lose()
            raise

    def _store(self, lanes: Sequence[Lane], parts: Sequence[Tensor]) -> None:
        """Write the keys and values of the lanes. parts: hidden states of their rows."""
        if not lanes:
            return
        batch = self._passes.batch(lanes)
        hidden = self._head.fuse(parts[0] if len(parts) == 1 else torch.cat(list(parts)))
        self._head.write(batch.ids, hidden, batch.positions, storing(self._pool, batch.slots))

    def _keep_ends(self, ends: Sequence[tuple[int, int]], features: Tensor) -> None:
        if not ends:
            return
        pages = self._device.tensor([page for page, _ in ends], torch.int64)
        rows = self._device.tensor([row for _, row in ends], torch.int64)
        self._ends.index_copy_(0, pages, features.index_select(0, rows))

    # --- what it takes ----------------------------------------------------------------------------

    @property
    def memory(self) -> Memory:
        states = list(self._states.values())  # another thread may ask
        storage = (*self._pool.keys, *self._pool.values, self._ends, *states)
        return Memory(self._head.bytes, sum(each.nbytes for each in storage))

    @property
    def coverage(self) -> float:
        return self._head.vocabulary.coverage

    @property
    def pass_bytes(self) -> int:
        return self._head.bytes

    def take_catch_up(self) -> int:
        """None: it never computes text beyond what the target has just computed."""
        return 0

    def close(self) -> None:
        self._states.clear()
        self._passes.close()
