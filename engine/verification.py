"""Verifies a step in one forward, or in smaller ones when that fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from engine.batch import Chunk
from engine.executor import Executor, Verified

log = logging.getLogger(__name__)

RELAX_STEPS = 256
"""After so many steps without a shortage the limit on rows doubles."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """results: of every chunk that ran. split: the step did not run in one forward, so no draft was
    verified. unfit: ids of requests whose rows do not fit even alone. broken: request id -> what
    its rows alone raise."""

    results: list[Verified]
    split: bool = False
    unfit: tuple[int, ...] = ()
    broken: dict[int, Exception] = field(default_factory=dict)


class Verification:
    """A shortage of memory first drops the step's drafts, then splits the batch, then gives up the
    one request that does not fit. Any other error splits the batch too, down to the requests
    whose rows cause it. Nothing is committed before, so every attempt starts afresh; the rows that
    ran are written again.

    After a shortage the rows of a forward stay limited for a while, so that the next steps do not
    run into it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._limit: int | None = None
        self._highest = 0
        self._calm = 0

    @property
    def row_limit(self) -> int | None:
        """Most rows of one forward since the last shortage; None: no limit."""
        return self._limit

    def run(self, chunks: Sequence[Chunk]) -> Verdict:
        """Verify the chunks of one step. Raises what the executor raises when the device is lost,
        or when no chunk at all can run."""
        self._relax()
        first: Exception | None = None
        if self._limit is None or _rows(chunks) <= self._limit:
            try:
                return Verdict(self._executor.verify(chunks).result())
            except Exception as error:
                first = self._note(error, chunks)
        results: list[Verified] = []
        unfit: list[int] = []
        broken: dict[int, Exception] = {}
        pending = [[_plain(chunk) for chunk in chunks]]
        while pending:
            part = pending.pop(0)
            halves = _halves(part)
            error: Exception | None = None
            if self._limit is None or _rows(part) <= self._limit or not halves:
                try:
                    results.extend(self._executor.verify(part).result())
                    continue
                except Exception as raised:
                    error = self._note(raised, part)
            if halves and (len(part) > 1 or error is None or is_shortage(error)):
                pending[:0] = halves
                continue
            assert error is not None
            request = part[0].request
            if is_shortage(error):
                unfit.append(request)
            else:
                broken[request] = error
            pending = [kept for one in pending if (kept := _without(one, request))]
        if first is not None and len(broken) == len(chunks):
            raise first
        return Verdict(results, True, tuple(unfit), broken)

    def _note(self, error: Exception, chunks: Sequence[Chunk]) -> Exception:
        """Take a failed forward in. Raises the error when the device is lost. The traceback goes:
        it would keep the tensors of the forward alive."""
        if is_lost(error):
            raise error
        if is_shortage(error):
            self._shrink(_rows(chunks))
        else:
            log.error("a forward of %d rows failed", _rows(chunks), exc_info=error)
        return error.with_traceback(None)

    def _shrink(self, rows: int) -> None:
        self._highest = max(self._highest, rows)
        self._limit = max(1, rows // 2)
        self._calm = 0
        log.warning(
            "out of memory in a forward of %d rows: drafts are dropped and forwards limited to %d "
            "rows for a while; lower --memory-fraction, --max-batch or --chunk-rows",
            rows,
            self._limit,
        )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _relax(self) -> None:
        if self._limit is None:
            return
        self._calm += 1
        if self._calm >= RELAX_STEPS:
            self._calm = 0
            self._limit *= 2
            if self._limit > self._highest:
                self._limit, self._highest = None, 0


def is_shortage(error: BaseException) -> bool:
    """Whether the error says that the device or the host has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "not enough memory" in text or "out of memory" in text
    )


def is_lost(error: BaseException) -> bool:
    """Whether the device is of no more use to this process (a CUDA error that sticks)."""
    kind = getattr(torch, "AcceleratorError", None)  # older versions raise RuntimeError
    return not is_shortage(error) and (
        (kind is not None and isinstance(error, kind)) or "CUDA error" in str(error)
    )


def _rows(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk.ids) for chunk in chunks)


def _plain(chunk: Chunk) -> Chunk:
    """The chunk without its draft."""
    if not chunk.drafted:
        return chunk
    mask = None if chunk.mask is None else chunk.mask[:1]
    ids = chunk.ids[: len(chunk.ids) - chunk.drafted]
    return replace(chunk, ids=ids, drafted=0, q=None, mask=mask, unseen=None)


def _halves(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """The chunks, or the rows of the only one, in two parts; empty when they cannot be parted."""
    if len(chunks) > 1:
        half = len(chunks) // 2
        return [list(chunks[:half]), list(chunks[half:])]
    chunk = chunks[0]
    if len(chunk.ids) < 2 or chunk.drafted or chunk.prompt_logprobs is not None:
        return []
    half = len(chunk.ids) // 2
    first = replace(chunk, ids=chunk.ids[:half], wanted=False)
    return [[first], [replace(chunk, ids=chunk.ids[half:], start=chunk.start + half)]]


def _without(chunks: Sequence[Chunk], request: int) -> list[Chunk]:
    return [chunk for chunk in chunks if chunk.request != request]
