"""Texts of requests as drafters see them, and the library that a run draws them from.

A text knows, for each output position, what a draft started there would get. Policies never see
that: the engine loop reveals what a real step would reveal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Reals = NDArray[np.float32]

SOURCES = ("", "prompt", "output", "global", "corpus", "pool", "other")
"""Where a model-free drafter's match lies, by number."""
LONGEST = 20
"""Most tokens that a draft of a trace has."""


@dataclass(frozen=True, slots=True)
class Text:
    """One request: a prompt of so many tokens and its output. By drafter, int [output tokens]:
    accepted[t] of a draft that starts before output token t; of drafters without a model also
    match[t], the match length (0: no draft), and source[t].

    margins, chances: float32 [output tokens, LONGEST], what the tokens of such a draft tell the
    controller (see contract.py), of drafters that tell it; NaN where nothing is known. sampled: the
    text's tokens are drawn at random."""

    prompt: int
    length: int
    accepted: Mapping[str, Numbers]
    match: Mapping[str, Numbers] = field(default_factory=dict)
    source: Mapping[str, Numbers] = field(default_factory=dict)
    margins: Mapping[str, Reals] = field(default_factory=dict)
    chances: Mapping[str, Reals] = field(default_factory=dict)
    sampled: bool = False

    def __post_init__(self) -> None:
        for kind in (self.accepted, self.match, self.source, self.margins, self.chances):
            for name, values in kind.items():
                if len(values) != self.length:
                    raise ValueError(
                        f"{name}: {len(values)} values for a text of {self.length} tokens"
                    )


class Library:
    """All texts of a run in flat arrays, so that a place in a text is one number.

    accepted, match, source: by drafter, int [all tokens], zeros of texts that do not know it: no
    draft of a look-up, nothing right of a model; margins, chances: [all tokens, LONGEST], of those
    that tell them; sampled: bool [all tokens]; next_start: by drafter, the first place from there
    on with a match, or the text's end. first, last: by text, where its output begins and ends.
    begin: where its decoding begins, because the first token comes with the prompt; context: tokens
    before that. ranges: the texts of each corpus."""

    def __init__(self, corpora: Mapping[str, Sequence[Text]], drafters: Sequence[str]) -> None:
        texts: list[Text] = []
        self.ranges: dict[str, range] = {}
        for name, some in corpora.items():
            if not some:
                raise ValueError(f"{name}: there is no text in it")
            self.ranges[name] = range(len(texts), len(texts) + len(some))
            texts.extend(some)
        self.drafters = tuple(drafters)
        lengths = np.array([text.length for text in texts])
        self.last: Numbers = np.cumsum(lengths)
        self.first: Numbers = self.last - lengths
        self.begin: Numbers = self.first + (lengths > 1)
        prompts = np.array([text.prompt for text in texts])
        self.prompts: Numbers = prompts
        self.context: Numbers = prompts + self.begin - self.first
        self.longest = int(lengths.max())
        self.accepted = {d: _flat([t.accepted.get(d) for t in texts], lengths) for d in drafters}
        self.match = {d: _flat([t.match.get(d) for t in texts], lengths) for d in drafters}
        self.source = {d: _flat([t.source.get(d) for t in texts], lengths) for d in drafters}
        self.margins = _told([t.margins for t in texts], lengths)
        self.chances = _told([t.chances for t in texts], lengths)
        self.sampled = np.repeat([t.sampled for t in texts], lengths)
        self.next_start = {d: self._next(self.match[d]) for d in drafters}

    def _next(self, match: Numbers) -> Numbers:
        """[all tokens + 1]; the texts' ends are kept apart."""
        places = np.arange(len(match))
        ends = np.repeat(self.last, self.last - self.first)
        nearest = np.where(match > 0, places, len(match))
        following = np.minimum.accumulate(nearest[::-1])[::-1]
        return np.append(np.minimum(following, ends), len(match))

    def order(self, corpus: str, rng: np.random.Generator) -> Numbers:
        """The corpus's texts shuffled."""
        found = self.ranges.get(corpus)
        if found is None:
            raise ValueError(f"corpus: {corpus!r} is not one of {', '.join(self.ranges)}")
        return rng.permutation(np.arange(found.start, found.stop))


def _flat(parts: Sequence[Numbers | None], lengths: Numbers) -> Numbers:
    """Texts that lack the drafter get zeros: nothing accepted, nothing matched."""
    whole = [
        np.zeros(n, np.int64) if part is None else part.astype(np.int64)
        for part, n in zip(parts, lengths.tolist(), strict=True)
    ]
    return np.concatenate(whole)


def _told(parts: Sequence[Mapping[str, Reals]], lengths: Numbers) -> dict[str, Reals]:
    """By drafter that any text has values of; NaN for the others."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: np.concatenate(
            [
                part[name] if name in part else np.full((n, LONGEST), np.nan, np.float32)
                for part, n in zip(parts, lengths.tolist(), strict=True)
            ]
        )
        for name in names
    }
