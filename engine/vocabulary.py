"""How a drafter's token ids correspond to the target's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class VocabularyMap:
    """Which target ids a drafter can draft, and what it is fed for each of them.

    to_draft: int64 [V], the drafter's id for every target id. kept: int64 [n], the columns of the
    drafter's logits that stand for a target id; None when these are the first n. to_target: int64
    [n], the target id of each kept column, all different. coverage: share of the target's tokens
    that can be drafted, 0 to 1. whole: to_target is every target id in order.

    A drafter draws from a law over its n kept columns, so a target id outside them has probability
    0 there: lossless, since the p/q rule and the coupled draws take any law."""

    to_draft: Tensor
    kept: Tensor | None
    to_target: Tensor
    coverage: float
    whole: bool = False

    @property
    def vocabulary(self) -> int:
        """How many ids the target has."""
        return len(self.to_draft)

    @property
    def size(self) -> int:
        """How many target ids can be drafted, n."""
        return len(self.to_target)

    def keep(self, logits: Tensor) -> Tensor:
        """The drafter's logits [R, W] -> [R, n], column c those of target id to_target[c]."""
        if self.kept is not None:
            return logits.index_select(-1, self.kept)
        return logits if logits.shape[-1] == self.size else logits.narrow(-1, 0, self.size)

    def drawn(self, columns: Tensor) -> Tensor:
        """Target ids of the columns drawn from what `keep` gave, int64 of the same shape."""
        return columns if self.whole else self.to_target[columns]

    def spread(self, rows: Tensor, fill: float = 0.0) -> Tensor:
        """[R, n] over the kept columns -> [R, V] over the target's ids, `fill` elsewhere."""
        if self.whole:
            return rows
        out = rows.new_full((*rows.shape[:-1], self.vocabulary), fill)
        return out.index_copy_(-1, self.to_target, rows)

    def gather(self, rows: Tensor) -> Tensor:
        """[R, V] over the target's ids, such as seeded noise -> [R, n] over the kept columns."""
        return rows if self.whole else rows.index_select(-1, self.to_target)

    def feed(self, ids: Tensor) -> Tensor:
        """Target ids int64 [T], all within the target's vocabulary -> the drafter's."""
        return self.to_draft[ids]

    def share(self, frequency: Tensor) -> float:
        """Share of tokens that can be drafted, of a text or law with so many or so much of each
        target id [V]. 0 for an empty one."""
        total = float(frequency.sum(dtype=torch.float64))
        kept = float(frequency.index_select(0, self.to_target).sum(dtype=torch.float64))
        return kept / total if total else 0.0

    def to(self, device: torch.device) -> VocabularyMap:
        kept = None if self.kept is None else self.kept.to(device)
        return replace(
            self, to_draft=self.to_draft.to(device), kept=kept, to_target=self.to_target.to(device)
        )


Restrict = Callable[[VocabularyMap], VocabularyMap]
"""Takes the ids out of a map that nobody wants drafted."""


def identity(vocabulary: int) -> VocabularyMap:
    """Of a drafter with the target's own ids, all of them."""
    ids = torch.arange(vocabulary)
    return VocabularyMap(ids, None, ids, 1.0, True)


def reduced(vocabulary: int, ids: Tensor) -> VocabularyMap:
    """Of a drafter that is fed the target's own ids and whose head has one column for each of the
    target ids int64 [n], all different and within the vocabulary."""
    whole = len(ids) == vocabulary and bool((ids == torch.arange(vocabulary)).all())
    return VocabularyMap(torch.arange(vocabulary), None, ids, len(ids) / vocabulary, whole)


def restricted(
    whole: VocabularyMap, size: int, always: Iterable[int] = (), ranking: Tensor | None = None
) -> VocabularyMap:
    """The map with `size` of its target ids, ascending: all of `always` (special and end ids) that
    it has, then the most frequent ones (FR-Spec, arXiv 2502.14856).

    ranking: int64 target ids, the most frequent first; `ranked` makes one from a text. Without
    one the lowest ids come first: a byte-pair vocabulary is numbered in the order of its merges,
    which is the order of frequency in the text that it was trained on, after its bytes; unigram
    vocabularies are numbered by their score. Ids outside the vocabulary are passed over."""
    if size >= whole.size:
        return whole
    column = torch.full((whole.vocabulary,), -1)
    column[whole.to_target] = torch.arange(whole.size)
    order = torch.arange(whole.vocabulary)
    first = torch.tensor(sorted(set(always)), dtype=torch.int64)
    wished = torch.cat((first, order if ranking is None else torch.cat((ranking.long(), order))))
    inside = (wished >= 0) & (wished < whole.vocabulary)
    wished = wished[inside & (column[wished.clamp(0, whole.vocabulary - 1)] >= 0)]
    place = torch.arange(len(wished))
    earliest = torch.full((whole.vocabulary,), len(wished)).scatter_reduce_(
        0, wished, place, "amin"
    )
    least = int(torch.isin(whole.to_target, first).sum())
    chosen = earliest.argsort(stable=True)[: max(size, least)].sort().values
    columns = column[chosen]
    return VocabularyMap(
        to_draft=whole.to_draft,
        kept=columns if whole.kept is None else whole.kept[columns],
        to_target=chosen,
        coverage=whole.coverage * len(chosen) / whole.size,
    )


def ranked(tokens: Tensor, vocabulary: int) -> Tensor:
    """The ids that occur in a text of ids, the most frequent first, the lower of equals first."""
    counts = torch.bincount(tokens.long().clamp(0, vocabulary - 1), minlength=vocabulary)
    order = counts.argsort(descending=True, stable=True)
    return order[counts[order] > 0]


def fingerprint(fast: Any) -> str:
    """SHA-256 of which text every id stands for. fast: a tokenizers.Tokenizer.

    The same for all releases of a tokenizer, whichever library or conversion wrote its file, as
    long as they number the same tokens alike."""
    named = sorted((token, text) for text, token in fast.get_vocab(with_added_tokens=True).items())
    return hashlib.sha256(msgspec.msgpack.encode(named)).hexdigest()
