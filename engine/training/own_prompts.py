"""Prompts that the target writes itself: it goes on from where the user's text would begin.

Magpie (Xu et al. 2024, arXiv 2406.08464): an aligned model that is given its chat template up to
the user's turn writes what users ask."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import StartError
from engine.text import Text
from engine.training.asking import Question
from engine.training.journal import Journal
from engine.training.overlap import Overlap, words_of
from engine.training.prompts import Frame
from engine.training.seeds import seed_of
from engine.wire import Sampling

MOST_TRIES = 8
"""Tries per prompt that is wanted, at most: a target that repeats itself is given up."""
LEAST_TRIES = 64
LEAST_MORE = 4
"""Tries of a round: the engine runs them together."""
SHARE = 0.8
"""Of the tries, what is expected to be kept before any is seen."""

Fill = Callable[[range, Callable[[int], Question]], None]
"""Answers into the journal what it lacks of these numbers; what fails is still lacking then."""


class Sieve:
    """Keeps texts in their order: those with words that are no copies of an earlier one and
    overlap with none of the excluded texts."""

    def __init__(self, excluded: Overlap) -> None:
        self._excluded = excluded
        self._seen: set[tuple[str, ...]] = set()

    def keeps(self, text: str) -> bool:
        words = words_of(text)
        if not words or words in self._seen or self._excluded.shares(text):
            return False
        self._seen.add(words)
        return True


class Writer:
    """Has the target write prompts of at most `longest` tokens, with the frame of its template."""

    def __init__(self, text: Text, frame: Frame, longest: int, seed: int) -> None:
        self._text, self._frame, self._longest, self._seed = text, frame, longest, seed

    def prompts(self, wanted: int, journal: Journal, sieve: Sieve, fill: Fill) -> list[str]:
        """So many in the order of their tries, from the journal as far as it has them.

        Raises StartError when the target writes too few that can be kept."""
        kept: list[str] = []
        tried, most = 0, max(LEAST_TRIES, MOST_TRIES * wanted)
        while len(kept) < wanted:
            if tried >= most:
                raise StartError(
                    "too_few_prompts",
                    f"the target wrote {len(kept)} usable prompts in {tried} tries, and {wanted} "
                    "are wanted. Ask for fewer with --own-prompts, or give --prompts.",
                )
            share = len(kept) / tried if kept else SHARE
            more = max(LEAST_MORE, round(1.05 * (wanted - len(kept)) / share))
            tries = range(tried, min(most, tried + more))
            fill(tries, self.question)
            found = (journal.texts[number] for number in tries if number in journal.texts)
            written = (self.read(tokens.tolist()) for tokens in found)
            kept.extend(text for text in written if sieve.keeps(text))
            tried = tries.stop
        return kept[:wanted]

    def question(self, number: int) -> Question:
        """What is asked for try `number`."""
        sampling = Sampling(
            temperature=1.0,
            seed=seed_of(self._seed, "prompt", number),
            max_tokens=self._longest,
            stop_token_ids=tuple(sorted(self._frame.end_ids)),
        )
        return Question(tuple(self._frame.before), sampling)

    def read(self, tokens: list[int]) -> str:
        """The prompt that was written; "" when it did not come to its end."""
        if not tokens or tokens[-1] not in self._frame.end_ids:
            return ""
        return self._text.decode(tokens).strip()
