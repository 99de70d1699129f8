"""A running request of the simulated engine, and the shadows that drafters keep of it."""

from __future__ import annotations

from collections.abc import Sequence

from controller.contract import Features, ShadowScore
from controller.simulate.texts import LONGEST, SOURCES, Library


class Live:
    """at: place of the next token in the library; end: of the text's end. starts, streaks: by
    model-free drafter, where its shadow drafts next (open where that is before `at`), and how many
    of its last drafts got something. missing: rows that a drafter lacks, by drafter that falls
    behind. prefill: rows of the prompt still to compute."""

    __slots__ = (
        "arrived", "at", "begin", "end", "first_ms", "id", "missing", "prefill", "prompt",
        "starts", "streaks",
    )  # fmt: skip

    def __init__(
        self, number: int, begin: int, end: int, prompt: int, shadows: int, arrived: float = 0.0
    ) -> None:
        self.id = number
        self.begin = self.at = begin
        self.end = end
        self.prompt = prompt
        self.prefill = 0
        self.arrived = arrived
        self.first_ms = arrived
        self.starts = [begin] * shadows
        self.streaks = [0] * shadows
        self.missing: dict[str, int] = {}

    @property
    def produced(self) -> int:
        return self.at - self.begin

    @property
    def context(self) -> int:
        return self.prompt + self.at - self.begin


class Shadows:
    """Plays the drafters without a model on committed text, as an engine's shadows do: a draft is
    compared with the tokens that follow and settled at its first wrong one or its end; the next one
    starts behind that token. Streaks and matches are what an engine would report.

    names: of these drafters, whether or not they match anywhere."""

    def __init__(self, library: Library, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._accepted = [library.accepted[name].tolist() for name in self.names]
        self._match = [library.match[name].tolist() for name in self.names]
        self._source = [library.source[name].tolist() for name in self.names]
        self._next = [library.next_start[name].tolist() for name in self.names]
        self._features: dict[tuple[int, int, int], Features] = {}

    def features(self, live: Live, drafter: int, place: int) -> Features | None:
        """Of a draft at this place; None where nothing matches."""
        match = self._match[drafter][place]
        if not match:
            return None
        key = (match, live.streaks[drafter], self._source[drafter][place])
        found = self._features.get(key)
        if found is None:
            found = Features(match, key[1], SOURCES[key[2]])
            self._features[key] = found
        return found

    def matched(self, drafter: int, place: int) -> bool:
        return self._match[drafter][place] > 0

    def got(self, drafter: int, place: int) -> int:
        """How many tokens of a full draft at this place are right."""
        return self._accepted[drafter][place]

    def lived(self, live: Live, drafter: int, accepted: int, new: int) -> tuple[ShadowScore, ...]:
        """The drafter ran for the text up to `new`: its open draft is censored."""
        scores = self.interrupt(live, drafter)
        live.streaks[drafter] = live.streaks[drafter] + 1 if accepted else 0
        live.starts[drafter] = new
        return scores

    def interrupt(self, live: Live, drafter: int) -> tuple[ShadowScore, ...]:
        """Score the open draft so far, if there is one."""
        start = live.starts[drafter]
        start = self._next[drafter][start] if start < live.end else live.end
        if start >= live.at:
            return ()
        return (self._score(live, drafter, start, live.at - start, True),)

    def take(self, live: Live, drafter: int, new: int) -> tuple[ShadowScore, ...]:
        """The text has grown to `new`: what that settles."""
        scores: list[ShadowScore] = []
        following, accepted = self._next[drafter], self._accepted[drafter]
        start, end = live.starts[drafter], live.end
        while start < new:
            start = following[start]
            if start >= new:
                break
            got = accepted[start]
            if start + got + (got < LONGEST) <= new:
                scores.append(self._score(live, drafter, start, got, False))
                start += got + 1
            else:
                if new == end:
                    scores.append(self._score(live, drafter, start, new - start, True))
                break
        live.starts[drafter] = start
        return tuple(scores)

    def _score(
        self, live: Live, drafter: int, start: int, accepted: int, censored: bool
    ) -> ShadowScore:
        features = self.features(live, drafter, start) or Features()
        live.streaks[drafter] = live.streaks[drafter] + 1 if accepted else 0
        return ShadowScore(self.names[drafter], LONGEST, accepted, features, censored)
