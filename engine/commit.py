"""Commits what the target verified: tokens to the stream, counts, and lessons for the drafters."""

from __future__ import annotations

import time
from collections.abc import Mapping

from controller.contract import NONE, Features, RequestOutcome, ShadowScore
from engine.drafters.base import Drafter
from engine.errors import RequestError
from engine.executor import Verified
from engine.request import Request
from engine.wire import Delta, Piece, PromptLogprobs, TokenKind


class Commit:
    """The commit of one step. deltas: what its requests stream, in order. prompts: the log
    probabilities of prompts that are through; they are sent before the deltas.

    `decoded` and `prefilled` raise RequestError when the first row that counts gave no token,
    because its logits were unsound or the request's own masks left none. A later row that gives
    none only ends the step's run before it: it is the first row of the next step, if the request
    goes on so far. So what a request emits, and why it ends, do not depend on the drafts."""

    def __init__(self, step: int, drafters: Mapping[str, Drafter]) -> None:
        self._step = step
        self._drafters = drafters
        self._now = time.perf_counter()
        self.deltas: list[Delta] = []
        self.prompts: list[tuple[Request, PromptLogprobs]] = []

    def decoded(
        self,
        request: Request,
        result: Verified,
        drafter: str,
        drafted: int,
        features: Features,
    ) -> RequestOutcome:
        """Commit a verify step of one request: the accepted run and the target's own token, or
        what comes before the first bad row."""
        _check(request, result)
        committed = self._append(request, result, drafter, drafted)
        kept = min(result.accepted, committed)
        request.count(drafter, drafted, kept)
        over = request.output.finish_reason is not None
        return RequestOutcome(
            request=request.id,
            drafter=drafter,
            drafted=drafted,
            accepted=kept,
            committed=committed,
            cut=committed < result.accepted + 1,
            features=features,
            shadows=self._teach(request, drafter, drafted, kept, committed, over),
        )

    def prefilled(self, request: Request, result: Verified) -> int:
        """Commit what a prefill gave: scores of prompt tokens, and with its last rows the first
        token, when the drafters take the request in. Returns how many tokens were committed."""
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
        if request.output.finish_reason is None:
            for drafter in self._drafters.values():
                drafter.admit(request)
        return committed

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

    def _teach(
        self,
        request: Request,
        drafter: str,
        drafted: int,
        accepted: int,
        committed: int,
        over: bool,
    ) -> tuple[ShadowScore, ...]:
        """Every drafter takes in the committed tokens; those that did not run score themselves."""
        tokens = request.tokens[-committed:]
        scores: list[ShadowScore] = []
        for name, one in self._drafters.items():
            ran = drafted if name == drafter else 0
            scores.extend(one.commit(request, tokens, ran, accepted if ran else 0, over))
        return tuple(scores)


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
