"""Commits what the target verified: tokens to the stream, counts, and lessons for the drafters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from controller.contract import NONE, Features, Margins, Part, RequestOutcome, ShadowScore
from engine.drafters.base import Committed
from engine.drafts import Draft
from engine.errors import RequestError
from engine.executor import Verified
from engine.request import Request
from engine.wire import Delta, Piece, PromptLogprobs, TokenKind

Teach = Callable[[Sequence[Committed], Sequence[str]], list[tuple[ShadowScore, ...]]]
"""Tells the drafters what was committed and which of them ran (see Drafting.commit)."""


class _Decoded(NamedTuple):
    """What one decoding request got. place: of its lesson."""

    place: int
    cut: bool
    features: Features
    drafted: int
    accepted: int
    parts: tuple[Part, ...]
    chances: tuple[float, ...]
    margins: Margins | None
    refused: str


class _Parts:
    """Who drafted which part of a draft. name: of the drafter or of the chain."""

    __slots__ = ("_drafted", "name")

    def __init__(self, drafter: str, tail: str, draft: Draft) -> None:
        head = draft.head
        chain = head is not None and head < len(draft)
        self.name = f"{drafter}+{tail}" if chain else drafter
        self._drafted: list[tuple[str, int]] = [(drafter, len(draft))] if draft else []
        if head is not None:
            self._drafted = [(drafter, head), (tail, len(draft) - head)]

    def counts(self, kept: int) -> list[tuple[str, int, int]]:
        """(drafter, drafted, accepted) of each part when `kept` tokens were accepted."""
        found: list[tuple[str, int, int]] = []
        for drafter, drafted in self._drafted:
            accepted = min(kept, drafted)
            kept -= accepted
            found.append((drafter, drafted, accepted))
        return found

    def credit(self, kept: int, features: Features, chances: tuple[float, ...]) -> tuple[Part, ...]:
        """The parts of a draft that a tail was asked to continue; features: of its head; chances:
        of the verified tokens."""
        if len(self._drafted) < 2:
            return ()
        head, tail = self.counts(kept)
        own = head[1]
        return Part(*head, features, chances[:own]), Part(*tail, chances=chances[own:])


class Commit:
    """The commit of one step. deltas: what its requests stream, in order. prompts: the log
    probabilities of prompts that are through; they are sent before the deltas.

    `decoded` and `prefilled` raise RequestError when the first row that counts gave no token,
    because its logits were unsound or the request's own masks left none. A later row that gives
    none only ends the step's run before it: it is the first row of the next step, if the request
    goes on so far. So what a request emits, and why it ends, do not depend on the drafts."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._lessons: list[Committed] = []
        self._ran: list[str] = []
        self._decoded: list[_Decoded] = []
        self._now = time.perf_counter()
        self.deltas: list[Delta] = []
        self.prompts: list[tuple[Request, PromptLogprobs]] = []

    def decoded(
        self,
        request: Request,
        result: Verified,
        drafter: str,
        tail: str,
        draft: Draft,
        features: Features,
        margins: Margins | None = None,
        refused: str = NONE,
    ) -> None:
        """Commit a verify step of one request: the accepted run and the target's own token, or
        what comes before the first bad row. drafter: who drafted, or "none"; tail: who continued
        it, where it has a head; margins: of what a model drafted; refused: whose next token a mask
        of the request ruled out, so that the draft ended there."""
        _check(request, result)
        drafted, accepted = len(draft), result.accepted
        parts = _Parts(drafter, tail, draft)
        committed = self._append(request, result, parts.name, drafted)
        kept = min(accepted, committed)
        request.count(parts.name, drafted, kept, parts.counts(kept))
        cut = committed <= accepted
        chances = result.chances[: kept + (not cut)]  # of all when every draft was accepted
        credited = parts.credit(kept, features, chances)
        place = len(self._lessons)
        self._decoded.append(
            _Decoded(place, cut, features, drafted, kept, credited, chances, margins, refused)
        )
        own = drafted if draft.head is None else draft.head
        lesson = self._lesson(request, committed, own, min(kept, own))
        if accepted < drafted and not cut:
            lesson = lesson._replace(
                rejected=draft.tokens[accepted:], targets=result.tokens[accepted + 1 :]
            )
        self._lessons.append(lesson)
        self._ran.append(drafter)

    def prefilled(self, request: Request, result: Verified) -> int:
        """Commit what a prefill gave: scores of prompt tokens, and with its last rows the first
        token. Returns how many tokens were committed."""
        _check(request, result)
        if result.prompt is not None:
            request.output.add_prompt(result.prompt.first, result.prompt.scores)
        if not result.tokens:
            return 0
        if result.prompt is not None:
            prompt = PromptLogprobs(request.name, request.output.take_prompt())
            self.prompts.append((request, prompt))
        request.computed -= 1  # _append counts the row that gave the token
        request.first_token = self._now
        committed = self._append(request, result, NONE, 0)
        self._lessons.append(self._lesson(request, committed)._replace(prefilled=True))
        self._ran.append(NONE)
        return committed

    def outcomes(self, teach: Teach) -> list[RequestOutcome]:
        """Teach the drafters what the step committed. Returns the outcomes of the decoding
        requests, with what the drafters scored."""
        scores = teach(self._lessons, self._ran)
        return [
            RequestOutcome(
                request=lesson.request.id,
                drafter=self._ran[place],
                drafted=drafted,
                accepted=accepted,
                committed=len(lesson.tokens),
                cut=cut,
                features=features,
                shadows=scores[place],
                parts=parts,
                chances=chances,
                margins=margins,
                refused=refused,
            )
            for place, cut, features, drafted, accepted, parts, chances, margins, refused in (
                self._decoded
            )
            for lesson in (self._lessons[place],)
        ]

    def _append(
        self,
        request: Request,
        result: Verified,
        drafter: str,
        drafted: int,
    ) -> int:
        """Commit the accepted run and the target's own token, up to a bad row or to where the
        request ends. Returns how many tokens were committed."""
        pieces: list[Piece] = []
        committed = 0
        good = result.accepted + 1 if result.bad is None else result.bad
        for token in result.tokens[:good]:
            kind: TokenKind = "accepted"
            if committed == result.accepted:
                kind = "plain" if drafted == 0 else "bonus"
                kind = "correction" if result.accepted < drafted else kind
            score = None if result.scores is None else result.scores[committed]
            request.tokens.append(token)
            committed += 1
            pieces.extend(request.output.add(token, kind, score))
            if request.output.finish_reason is not None:
                break
            if request.constraint is not None:
                request.constraint.advance(token)
        request.computed += committed
        request.last_token = self._now
        request.output.count(drafter, drafted, min(result.accepted, committed))
        if pieces:
            shown_drafter, shown_drafted, shown_accepted = request.output.take_counts()
            self.deltas.append(
                Delta(
                    id=request.name,
                    text="".join(piece.text for piece in pieces),
                    pieces=tuple(pieces),
                    step=self._step,
                    drafter=shown_drafter,
                    drafted=shown_drafted,
                    accepted=shown_accepted,
                )
            )
        return committed

    def _lesson(
        self, request: Request, committed: int, drafted: int = 0, accepted: int = 0
    ) -> Committed:
        start = len(request.tokens) - committed
        over = request.output.finish_reason is not None
        return Committed(request, start, request.tokens[start:], drafted, accepted, over)


def _check(request: Request, result: Verified) -> None:
    if result.bad != 0:
        return
    if not result.closed:
        raise RequestError("internal", "the model produced invalid logits (NaN or infinite).")
    fields = request.exclusions
    *others, last = fields or ["the request's fields"]
    what = f"{', '.join(others)} and {last} together" if others else last
    verb, advice = ("exclude", "Loosen one of them") if others else ("excludes", "Loosen it")
    raise RequestError(
        "invalid_request",
        f"after {request.produced} tokens no token is left to draw: {what} {verb} every one. "
        f"{advice}.",
        fields[0] if fields else None,
    )
