"""Finds texts that share a run of words with others, so that test prompts stay out of training."""

from __future__ import annotations

import re
from collections.abc import Iterable

WORDS = 12
"""So many consecutive words in common make an overlap."""

_WORD = re.compile(r"\w+")


def words_of(text: str) -> tuple[str, ...]:
    """Its words in lower case, without punctuation."""
    return tuple(_WORD.findall(text.lower()))


class Overlap:
    """The runs of `words` consecutive words of some texts. A text that has fewer is one run by
    itself, and only the very same words share it."""

    def __init__(self, texts: Iterable[str], words: int = WORDS) -> None:
        self._words = words
        self._runs: set[tuple[str, ...]] = set()
        for text in texts:
            self._runs.update(self._of(text))

    def shares(self, text: str) -> bool:
        """Whether the text has a run in common with them."""
        return any(run in self._runs for run in self._of(text))

    def _of(self, text: str) -> Iterable[tuple[str, ...]]:
        found = words_of(text)
        if not found:
            return ()
        last = max(1, len(found) - self._words + 1)
        return (found[start : start + self._words] for start in range(last))
