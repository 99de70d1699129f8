"""A draft model: a smaller language model that drafts, over layers of its own in the same pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from controller.contract import Offer, ShadowScore
from engine.attention import Attention
from engine.decoder import Decoder
from engine.device import Device
from engine.draft_models.contents import Contents, Progress
from engine.draft_models.lane import Lane
from engine.draft_models.model import DraftModel
from engine.draft_models.passes import Passes
from engine.drafters.base import Committed, Memory
from engine.drafts import Draft
from engine.kv import KvPool
from engine.request import Request
from engine.shape import Attend, weight_bytes
from engine.unseen import leading


@dataclass(slots=True, eq=False)
class Reach(Progress):
    """fed: drafted tokens whose keys and values lie in the slots from `covered` on. Those that were
    kept need not be computed again. They are looked at when the step is over."""

    fed: Sequence[int] = ()

    def advance(self) -> None:
        """Take in which of the fed tokens were kept."""
        kept, tokens = 0, self.request.tokens[self.covered : self.covered + len(self.fed)]
        for token, fed in zip(tokens, self.fed, strict=False):
            if token != fed:
                break
            kept += 1
        self.covered += kept
        self.fed = ()


class DraftModelDrafter:
    """Drafts with a model of its own, which needs the text in its own keys and values.

    `propose` computes what it lacks of the text and drafts for the requests of which it then lacks
    nothing. Those of which it lacks no more than usual get all of it, the others share
    `chunk_rows` rows in a call. Prompts of requests that are likely to be
    drafted for are computed along with the target (`follow`). Others cost nothing; when they are to
    be drafted for, the drafter catches up first."""

    name = "draft_model"
    kind: Literal["model_free", "model"] = "model"

    def __init__(
        self,
        model: DraftModel,
        attention: Attention,
        pool: KvPool,
        device: Device,
        max_draft_length: int,
        chunk_rows: int,
        keyed: bool = True,
    ) -> None:
        """keyed: see Contents."""
        self._model = model
        self._pool = pool
        self._max = max_draft_length
        self._chunk_rows = chunk_rows
        self._context = model.decoder.shape.context_length
        self._passes = Passes(
            self._forward,
            model.decoder.logits,
            model.vocabulary,
            attention,
            device,
            pool.page_size,
            repeats=isinstance(model.decoder, Decoder),
        )
        self._nothing = torch.empty(0, dtype=device.dtype, device=device.torch_device)
        self._contents = Contents(pool.page_size, keyed)
        self._states: dict[int, Reach] = {}
        self._catch_up = 0
        self._enqueues = device.is_cuda

    # --- the drafter's calls ----------------------------------------------------------------------

    def admit(self, request: Request) -> None:
        known = self._states.get(request.id)
        if known is None or known.request is not request:
            self._contents.drop(request.id)
            self._states[request.id] = Reach(request)

    def offer(self, requests: Sequence[Request]) -> list[Offer | None]:
        self._contents.settle()
        offers: list[Offer | None] = []
        for request in requests:
            state, most = self._state(request), self._most(request, self._max)
            if state is None or most < 1:
                offers.append(None)
                continue
            offers.append(Offer(request.id, self.name, most, catch_up=self._behind(state)))
        return offers

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        self._contents.settle()
        drafts = [Draft()] * len(requests)
        able: list[tuple[int, int, int, Reach]] = []
        for place, (request, most) in enumerate(zip(requests, lengths, strict=True)):
            state, length = self._state(request), self._most(request, most)
            if state is not None and length > 0:
                able.append((len(request.tokens) - state.covered, place, length, state))
        able.sort(key=lambda one: one[0])
        left = self._chunk_rows
        asked: list[tuple[int, int, int, Reach]] = []
        for missing, place, length, state in able:
            rows = missing
            if self._behind(state):
                rows = min(missing, left)
                left -= rows
                self._catch_up += rows
            if rows:
                asked.append((length if rows == missing else 0, place, rows, state))
        if not asked:
            return drafts
        asked.sort(key=lambda one: -one[0])
        lanes = [self._lane(state, rows, length) for length, _, rows, state in asked]
        drawn = self._passes.draft(lanes, self._nothing)
        for (length, place, rows, state), draft in zip(asked, drawn, strict=True):
            state.covered += rows
            state.fed = leading(draft.tokens, length - 1) if length else ()
            self._seal(state)
            drafts[place] = draft
        return drafts

    def commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
        """Notes the pages that accepted drafts have filled."""
        self._contents.settle()
        for one in commits:
            state = self._states.get(one.request.id)
            if state is not None and state.fed and state.pages is one.request.pages:
                state.advance()
                self._seal(state)
        return [()] * len(commits)

    def forget(self, request: int) -> None:
        self._contents.drop(request)
        self._states.pop(request, None)

    def follow(self, prefills: Sequence[tuple[Request, int]]) -> None:
        """Where the device computes by itself no catch-up is counted: the time of this call is not
        that of the rows."""
        self._contents.settle()
        left = self._chunk_rows
        asked: list[tuple[Reach, int]] = []
        for request, computed in prefills:
            state = self._state(request)
            if state is None:
                continue
            rows = min(computed, self._context) - state.covered
            rows = max(0, min(rows, left))
            left -= rows
            if rows:
                asked.append((state, rows))
        if not asked:
            return
        self._passes.draft([self._lane(state, rows, 0) for state, rows in asked], self._nothing)
        for state, rows in asked:
            state.covered += rows
            self._catch_up += 0 if self._enqueues else rows
            self._seal(state)

    # --- inside -----------------------------------------------------------------------------------

    def _forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        model = self._model
        return model.decoder.forward(model.vocabulary.feed(ids), positions, attend)

    def _state(self, request: Request) -> Reach | None:
        """The state of a request, begun anew when that has been given other pages."""
        state = self._states.get(request.id)
        if state is None:
            return None
        if state.pages is not request.pages:
            self._contents.drop(request.id)
            state.pages = request.pages
            state.fed = ()
            state.sealed = state.noted = self._contents.found(request)
            state.covered = state.sealed * self._pool.page_size
        elif state.fed:
            state.advance()
        return state

    def _most(self, request: Request, length: int) -> int:
        """How many of `length` tokens there is room for in the model's context."""
        return min(length, self._context - len(request.tokens) + 1)

    def _behind(self, state: Reach) -> int:
        """Rows of text that it lacks, if these are more than a usual draft computes first."""
        missing = len(state.request.tokens) - state.covered
        return missing if missing > self._max + 1 else 0

    def _lane(self, state: Reach, rows: int, length: int) -> Lane:
        """The next rows of a request, about to be written with the slots of its draft."""
        begin, end = state.covered, state.covered + rows
        self._contents.overwrite(state.pages, begin, end + max(0, length - 1))
        return Lane(state.request, state.pages, begin, state.request.tokens[begin:end], length)

    def _seal(self, state: Reach) -> None:
        self._contents.seal(state, state.covered // self._pool.page_size)

    # --- what it takes ----------------------------------------------------------------------------

    @property
    def memory(self) -> Memory:
        storage = (*self._pool.keys, *self._pool.values)
        return Memory(self._model.weight_bytes, sum(each.nbytes for each in storage))

    @property
    def coverage(self) -> float:
        return self._model.vocabulary.coverage

    @property
    def pass_bytes(self) -> int:
        return weight_bytes(self._model.decoder)

    def take_catch_up(self) -> int:
        rows, self._catch_up = self._catch_up, 0
        return rows

    def close(self) -> None:
        self._states.clear()
        self._passes.close()
        del self._passes  # refers back here, which would keep the memory
