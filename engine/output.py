"""One request's output as it grows: detokenised pieces, stop strings, where it ends."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from controller.contract import NONE
from engine.detokenizer import Detokenizer
from engine.logprobs import TokenScore
from engine.wire import FinishReason, Logprob, Piece, TokenKind


class Output:
    """Feeds committed tokens in order and says where the request ends.

    Text that could still become a stop string is held back until that is settled. `finish_reason`
    is None while the request runs; tokens after the one that ended it must not be added."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stop: Sequence[str],
        end_ids: frozenset[int],
        stop_token_ids: frozenset[int],
        max_tokens: int,
        min_tokens: int = 0,
    ) -> None:
        """min_tokens: a stop string that one of so many first tokens completes does not count."""
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._end_ids = end_ids
        self._stop_token_ids = stop_token_ids
        self._left = max_tokens
        self._early = min_tokens
        self._held: list[Piece] = []
        self._settled = 0  # leading characters of the held text that complete no stop string
        self._prompt: list[Logprob | None] = [None]
        self._drafter = NONE
        self._drafted = self._accepted = 0  # of what was not shown yet
        self.finish_reason: FinishReason | None = None
        self.matched: str | int | None = None

    def add(self, token: int, kind: TokenKind, score: TokenScore | None = None) -> list[Piece]:
        """Pieces released by this token; sets finish_reason when it ends the request.

        The token that ends the request counts as output, its text does not: an end or stop token
        has none, and a stop string is cut off with everything after it."""
        self._left -= 1
        self._early -= 1
        logprob = None if score is None else score.spelled(self._detokenizer.spell)
        if token in self._end_ids or token in self._stop_token_ids:
            self.finish_reason = "stop"
            self.matched = token if token in self._stop_token_ids else None
            return self._release_all(Piece(token, self._detokenizer.flush(), kind, logprob))
        piece = Piece(token, self._detokenizer.add(token), kind, logprob)
        if self._stop:
            self._held.append(piece)
            released = self._search()
            if self.finish_reason is not None:
                return released
        else:
            released = [piece]
        if self._left == 0:
            self.finish_reason = "length"
            released = [*released, *self._release_all()]
            last = released.pop()  # an unfinished character shows with the last token
            released.append(replace(last, text=last.text + self._detokenizer.flush()))
        return released

    def add_prompt(self, first: int, scores: Sequence[TokenScore]) -> None:
        """Keep the scores of the prompt tokens from position `first` on; those that are kept
        already, from before a preemption, stay."""
        kept = len(self._prompt)
        assert first <= kept, "prompt tokens without scores"
        self._prompt.extend(one.spelled(self._detokenizer.spell) for one in scores[kept - first :])

    def take_prompt(self) -> tuple[Logprob | None, ...]:
        """The prompt's log probabilities, None for its first token; they are kept no longer."""
        taken = tuple(self._prompt)
        self._prompt = [None]
        return taken

    def count(self, drafter: str, drafted: int, accepted: int) -> None:
        """Count a step whose tokens were added."""
        if drafted or not self._drafted:
            self._drafter = drafter
        self._drafted += drafted
        self._accepted += accepted

    def take_counts(self) -> tuple[str, int, int]:
        """(drafter, drafted, accepted) of the steps whose pieces were released since the last
        call; an accepted draft that is held back counts when it is released."""
        held = sum(piece.kind == "accepted" for piece in self._held)
        counts = self._drafter, self._drafted - held, self._accepted - held
        self._drafted = self._accepted = held
        return counts

    def _release_all(self, *last: Piece) -> list[Piece]:
        released = [*self._held, *last]
        self._held = []
        return released

    def _search(self) -> list[Piece]:
        """Release what can no longer be part of a stop string, or cut at the one that was
        completed first; of several completed at once the longest."""
        text = "".join(piece.text for piece in self._held)
        if self._early >= 0:
            self._settled = len(text)
        hits: list[tuple[int, int, str]] = []
        for stop in self._stop:
            at = text.find(stop, max(0, self._settled + 1 - len(stop)))
            if at >= 0:
                hits.append((at + len(stop), at, stop))
        if hits:
            _, at, stop = min(hits)
            self.finish_reason, self.matched = "stop", stop
            return self._cut(at)
        safe = len(text) - max(_overlap(text, stop) for stop in self._stop)
        released, used = 0, 0
        while released < len(self._held) and used + len(self._held[released].text) <= safe:
            used += len(self._held[released].text)
            released += 1
        pieces, self._held = self._held[:released], self._held[released:]
        self._settled = max(0, self._settled - used)
        return pieces

    def _cut(self, length: int) -> list[Piece]:
        """The held pieces up to `length` characters; the piece that crosses is shortened."""
        pieces: list[Piece] = []
        for piece in self._held:
            if length <= 0:
                break
            kept = piece.text[:length]
            length -= len(kept)
            pieces.append(replace(piece, text=kept))
        self._held = []
        return pieces


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of text that is a proper beginning of stop."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
