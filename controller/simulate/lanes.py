"""What the drafters of the simulated engine draft for a request, and how much of it is right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from controller.contract import Allotment, Features, Margins, Part
from controller.simulate.live import Live, Shadows
from controller.simulate.texts import Library, Reals

NO_FEATURES = Features()


@dataclass(frozen=True, slots=True)
class Lane:
    """What one request of the step drafts. asked: its drafter did, whatever of it is verified.
    chances: of the verified tokens up to the first wrong one."""

    drafted: int = 0
    accepted: int = 0
    parts: tuple[Part, ...] = ()
    features: Features = NO_FEATURES
    chances: tuple[float, ...] = ()
    margins: Margins | None = None
    asked: bool = False


PLAIN = Lane()


class Lanes:
    """Of a library's texts. models: names of the drafters that are models."""

    def __init__(self, library: Library, shadows: Shadows, models: list[str]) -> None:
        self._shadows = shadows
        self._numbers = {name: i for i, name in enumerate(shadows.names)}
        self._accepted = {name: library.accepted[name].tolist() for name in models}
        self._margins, self._chances = library.margins, library.chances
        self._sampled = library.sampled

    def temperature(self, live: Live) -> float:
        """1 where the request's text was drawn at random, 0 where it is greedy."""
        return float(self._sampled[live.at])

    def draft(self, live: Live, one: Allotment) -> Lane:
        if not one.length:
            return PLAIN
        number = self._numbers.get(one.drafter)
        if number is None:
            return self._model(live, one)
        features = self._shadows.features(live, number, live.at)
        if features is None:
            return PLAIN
        got = min(self._shadows.got(number, live.at), one.length)
        chances = self._told(self._chances, one.drafter, live.at, min(got + 1, one.length))
        return Lane(one.length, got, (), features, chances, None, True)

    def _model(self, live: Live, one: Allotment) -> Lane:
        name, at = one.drafter, live.at
        right, length, margins = self._accepted[name][at], one.length, None
        if values := self._told(self._margins, name, at, length):
            margins = Margins(name, bool(self._sampled[at]), values)
            if one.bar is not None:
                length = one.bar.length(values)
        head = min(right, length)
        chances = self._told(self._chances, name, at, min(head + 1, length))
        # A draft that a bar ended is not continued.
        if not one.tail or length < one.length:
            return Lane(length, head, (), NO_FEATURES, chances, margins, True)
        tail = self._numbers[one.tail]
        # Behind a wrong head nobody knows what the tail finds; most often the same as on the text.
        place = at + length
        more = one.tail_length if place < live.end and self._shadows.matched(tail, place) else 0
        got, after = 0, ()
        if more and head == length:
            got = min(self._shadows.got(tail, place), more)
            after = self._told(self._chances, one.tail, place, min(got + 1, more))
        parts = (
            Part(name, length, head, chances=chances),
            Part(one.tail, more, got, chances=after),
        )
        drafted = length + more
        return Lane(drafted, head + got, parts, NO_FEATURES, chances + after, margins, True)

    def _told(
        self, values: Mapping[str, Reals], drafter: str, place: int, count: int
    ) -> tuple[float, ...]:
        """What is told of a draft's first `count` tokens; nothing where it is not known."""
        known = values.get(drafter)
        if known is None or not count:
            return ()
        found = known[place, :count].tolist()
        return () if any(map(math.isnan, found)) else tuple(found)
