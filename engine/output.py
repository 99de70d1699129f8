"""One request's output as it grows: detokenised pieces, stop strings, where it ends."""

from __future__ import annotations

from collections.abc import Sequence

from engine.text import Detokenizer
from engine.wire import FinishReason, Piece, TokenKind


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
    ) -> None:
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._end_ids = end_ids
        self._stop_token_ids = stop_token_ids
        self._left = max_tokens
        self._held: list[Piece] = []
        self.finish_reason: FinishReason | None = None
        self.matched: str | int | None = None

    def add(self, token: int, kind: TokenKind) -> list[Piece]:
        """Pieces released by this token; sets finish_reason when it ends the request.

        The token that ends the request counts as output, its text does not: an end or stop token
        has none, and a stop string is cut off with everything after it."""
        self._left -= 1
        if token in self._end_ids or token in self._stop_token_ids:
            self.finish_reason = "stop"
            self.matched = token if token in self._stop_token_ids else None
            return self._release_all(Piece(token, self._detokenizer.flush(), kind))
        piece = Piece(token, self._detokenizer.add(token), kind)
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
            released.append(Piece(last.token, last.text + self._detokenizer.flush(), last.kind))
        return released

    def _release_all(self, *last: Piece) -> list[Piece]:
        released = [*self._held, *last]
        self._held = []
        return released

    def _search(self) -> list[Piece]:
        """Release what can no longer be part of a stop string, or cut at the earliest one."""
        text = "".join(piece.text for piece in self._held)
        found = [(text.find(stop), stop) for stop in self._stop]
        hits = [(at, -len(stop), stop) for at, stop in found if at >= 0]
        if hits:
            at, _, stop = min(hits)
            self.finish_reason, self.matched = "stop", stop
            return self._cut(at)
        safe = len(text) - max(_overlap(text, stop) for stop in self._stop)
        released, used = 0, 0
        while released < len(self._held) and used + len(self._held[released].text) <= safe:
            used += len(self._held[released].text)
            released += 1
        pieces, self._held = self._held[:released], self._held[released:]
        return pieces

    def _cut(self, length: int) -> list[Piece]:
        """The held pieces up to `length` characters; the piece that crosses is shortened."""
        pieces: list[Piece] = []
        for piece in self._held:
            if length <= 0:
                break
            kept = piece.text[:length]
            length -= len(kept)
            pieces.append(Piece(piece.token, kept, piece.kind))
        self._held = []
        return pieces


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of text that is a proper beginning of stop."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
