"""A drafter whose faults cost nothing but drafts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

import torch

from controller.contract import Offer, ShadowScore
from engine.drafters.base import Busy, Committed, Drafter, Follows, Reads, Tail, Weighty
from engine.drafts import Draft
from engine.request import Request
from engine.verification import RELAX_STEPS, is_shortage

if TYPE_CHECKING:
    from torch import Tensor

    from engine.batch import Batch

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Guarded:
    """Calls a drafter. Nothing is raised: where it fails, the answers are None.

    It is asked for all requests at once. Those of a call that failed are asked alone from then on,
    until each has been answered; so the request that causes it costs the others no more than one
    step's drafts. Each kind of fault is logged once.

    A shortage of memory is nobody's fault: from then on a call gets half as many requests at most,
    and twice as many again after every RELAX_STEPS steps without one."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.weighty = drafter if isinstance(drafter, Weighty) else None
        self._reads = drafter if isinstance(drafter, Reads) else None
        self._follows = drafter if isinstance(drafter, Follows) else None
        self.taps = self._reads.taps if self._reads is not None else ()
        self._suspects: dict[str, set[int]] = {}  # by method
        self._most: int | None = None  # requests in a call, after a shortage
        self._highest = 0  # requests in the largest call that met one
        self._calm = 0  # steps since the last one
        self._shortages = 0
        self._logged: set[tuple[str, type]] = set()

    @property
    def name(self) -> str:
        return self.drafter.name

    @property
    def kind(self) -> Literal["model_free", "model"]:
        return self.drafter.kind

    @property
    def follows(self) -> bool:
        """Whether it takes in prompts along with the target."""
        return self._follows is not None

    def take_catch_up(self) -> int:
        """Rows that a model has caught up with since the last call."""
        weighty, rows = self.weighty, [0]
        if weighty is not None:
            self._try("take_catch_up", [], [], lambda _: rows.append(weighty.take_catch_up()) or [])
        return rows[-1]

    def admit(self, request: Request) -> None:
        self._try("admit", [request.id], [request], lambda one: [self.drafter.admit(one[0])])

    def offer(self, requests: Sequence[Request]) -> Sequence[Offer | None]:
        ids = [request.id for request in requests]
        return self._ask("offer", ids, requests, self.drafter.offer)

    def propose(
        self, requests: Sequence[Request], lengths: Sequence[int]
    ) -> Sequence[Draft | None]:
        def propose(some: Sequence[tuple[Request, int]]) -> list[Draft]:
            return self.drafter.propose([one for one, _ in some], [length for _, length in some])

        ids = [request.id for request in requests]
        return self._ask("propose", ids, list(zip(requests, lengths, strict=True)), propose)

    def extend(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Sequence[int]],
        lengths: Sequence[int],
    ) -> Sequence[Sequence[int] | None]:
        """Nothing from drafters that cannot continue others."""
        drafter = self.drafter
        if not isinstance(drafter, Tail):
            return [None] * len(requests)

        def extend(some: Sequence[tuple[Request, Sequence[int], int]]) -> list[Sequence[int]]:
            return drafter.extend(
                [request for request, _, _ in some],
                [draft for _, draft, _ in some],
                [length for _, _, length in some],
            )

        ids = [request.id for request in requests]
        return self._ask("extend", ids, list(zip(requests, drafts, lengths, strict=True)), extend)

    def commit(self, commits: Sequence[Committed]) -> Sequence[tuple[ShadowScore, ...] | None]:
        """Called in every step."""
        self._relax()
        ids = [one.request.id for one in commits]
        return self._ask("commit", ids, commits, self.drafter.commit)

    def read(self, batch: Batch, features: Tensor) -> None:
        """Nothing for drafters that read no hidden states."""
        reads = self._reads
        if reads is not None:
            self._try("read", [], [], lambda _: reads.read(batch, features) or [])

    def follow(self, prefills: Sequence[tuple[Request, int]]) -> None:
        """Nothing for drafters that take in no prompts."""
        follows = self._follows
        if follows is not None:
            ids = [request.id for request, _ in prefills]

            def follow(some: Sequence[tuple[Request, int]]) -> list[None]:
                follows.follow(some)
                return [None] * len(some)

            self._ask("follow", ids, prefills, follow)

    def forget(self, request: int) -> None:
        for suspects in self._suspects.values():
            suspects.discard(request)
        self._try("forget", [], [], lambda _: self.drafter.forget(request) or [])

    def work(self) -> bool:
        """Whether it had work of its own, some of which is now done."""
        drafter = self.drafter
        if not isinstance(drafter, Busy):
            return False
        worked: list[bool] = []
        self._try("work", [], [], lambda _: worked.append(drafter.work()) or [])
        return any(worked)

    def _ask(
        self,
        what: str,
        ids: Sequence[int],
        items: Sequence[Item],
        call: Callable[[Sequence[Item]], Sequence[Answer]],
    ) -> Sequence[Answer | None]:
        """call's answers, one for each item. ids: the request of each item. After a shortage the
        rest of the items goes without in this step."""
        suspects, most = self._suspects.get(what), self._most
        if (not suspects or suspects.isdisjoint(ids)) and (most is None or len(ids) <= most):
            return self._try(what, ids, items, call)
        suspects, most = suspects or set(), most or len(ids)
        answers: list[Answer | None] = [None] * len(items)
        together = [place for place, request in enumerate(ids) if request not in suspects]
        parts = [together[at : at + most] for at in range(0, len(together), most)] or [[]]
        parts += [[place] for place, request in enumerate(ids) if request in suspects]
        shortages = self._shortages
        for places in parts:
            some = self._try(what, [ids[at] for at in places], [items[at] for at in places], call)
            for place, answer in zip(places, some, strict=True):
                answers[place] = answer
            if self._shortages != shortages:
                break
        return answers

    def _try(
        self,
        what: str,
        ids: Sequence[int],
        items: Sequence[Item],
        call: Callable[[Sequence[Item]], Sequence[Answer]],
    ) -> Sequence[Answer | None]:
        """The same in one call."""
        short = False
        try:
            answers = call(items)
            if len(answers) != len(items):
                raise ValueError(f"{len(answers)} answers for {len(items)} requests")
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # a panic of a compiled library is no Exception
            answers = None
            short = is_shortage(error)
            if not short:
                self._suspects.setdefault(what, set()).update(ids)
            if (what, type(error)) not in self._logged:
                self._logged.add((what, type(error)))
                log.exception("drafter %s: %s failed; this is logged once", self.name, what)
        if short:  # the error is gone, and with it what kept the tensors of the call
            self._shrink(len(items))
        if answers is None:
            return [None] * len(items)
        if len(ids) == 1 and what in self._suspects:
            self._suspects[what].discard(ids[0])
        return answers

    def _shrink(self, requests: int) -> None:
        """A call with so many requests met a shortage of memory; one cannot be made smaller."""
        self._shortages += 1
        self._calm = 0
        if requests > 1:
            self._highest = max(self._highest, requests)
            self._most = max(1, requests // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _relax(self) -> None:
        if self._most is None:
            return
        self._calm += 1
        if self._calm >= RELAX_STEPS:
            self._calm = 0
            self._most *= 2
            if self._most > self._highest:
                self._most, self._highest = None, 0
