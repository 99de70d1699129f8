"""Maps between the ids of two tokenizers: which tokens both have (TLI, arXiv 2502.05202)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.errors import StartError
from engine.spelling import Spelling
from engine.vocabulary import VocabularyMap, identity

LEAST_SHARE = 0.5
"""Share of an ordinary text's tokens that must be draftable. At less every second token ends the
draft, and the drafter is fed its unknown token for every second one."""

SAMPLE = """The museum opens at nine o'clock, and about 1,250 people visit it every day. "Is there a
café nearby?" she asked. Yes: walk two blocks north, then turn left at the old railway station.

def mean(values: list[float]) -> float:
    total = sum(values)
    return total / len(values) if values else 0.0

1. Heat the oil in a large pan over medium heat.
2. Add the onions, garlic and 3 teaspoons of salt; cook for 10-12 minutes.
- https://example.org/docs?page=2 explains how the equation x^2 + y^2 = r^2 describes a circle.
Photosynthesis converts carbon dioxide and water into glucose, releasing oxygen as a by-product.
"""
"""An ordinary text: prose, code, numbers and lists."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What each id of a model stands for. spelled: its bytes, None where the tokenizer has no such
    id: rows that only pad the vocabulary. special: ids of special tokens, spelled by their names.
    lone: ids of byte fallback, which other ids may be spelled like. begin, end, unknown: ids that
    the tokenizer names for the begin and end of a text and for what it cannot write."""

    spelled: tuple[bytes | None, ...]
    special: frozenset[int]
    lone: frozenset[int]
    begin: int | None
    end: int | None
    unknown: int | None

    @property
    def size(self) -> int:
        """Rows of the model's embedding."""
        return len(self.spelled)

    @property
    def known(self) -> int:
        """Ids that the tokenizer has."""
        return sum(text is not None for text in self.spelled)

    @property
    def stand_in(self) -> int:
        """What is fed for a token that the model does not know."""
        found = (self.unknown, self.end, self.begin, 0)
        return next(token for token in found if token is not None)

    def writers(self) -> dict[bytes, int]:
        """Bytes -> the first ordinary id that writes them, of byte fallback only where there is no
        other."""
        apart = self.special | self.lone
        backwards = range(self.size - 1, -1, -1)
        found = {
            text: token
            for token, text in zip(backwards, reversed(self.spelled), strict=True)
            if text is not None and token not in apart
        }
        for token in sorted(self.lone - self.special):
            found.setdefault(self.spelled[token] or b"", token)
        return found

    def names(self) -> dict[bytes, int]:
        """Name -> special id."""
        return {self.spelled[token] or b"": token for token in sorted(self.special, reverse=True)}


@dataclass(frozen=True, slots=True)
class Match:
    """note: how the two tokenizers fit, as a sentence part. share: of an ordinary text's tokens
    that can be drafted, 0 to 1."""

    vocabulary: VocabularyMap
    share: float
    note: str


def read_tokens(tokenizer: Any, size: int, stop_ids: Iterable[int] = ()) -> Tokens:
    """Read a loaded tokenizer's vocabulary. size: rows of its model's embedding; ids from there on
    do not exist for the model."""
    fast = tokenizer.backend_tokenizer
    spelling = Spelling(fast).all()
    spelled: list[bytes | None] = [None] * size
    for token, data in spelling.items():
        if token < size:
            spelled[token] = data
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    lone = [fast.token_to_id(name) for name in names]
    added = fast.get_added_tokens_decoder()

    def named(role: str) -> int | None:
        token = fast.token_to_id(getattr(tokenizer, role, None) or "")
        return token if token is not None and token < size else None

    end = named("eos_token")
    stops = sorted(token for token in stop_ids if 0 <= token < size)
    return Tokens(
        spelled=tuple(spelled),
        special=frozenset(token for token, one in added.items() if one.special and token < size),
        lone=frozenset(token for token in lone if token is not None and token < size),
        begin=named("bos_token"),
        end=stops[0] if end is None and stops else end,
        unknown=named("unk_token"),
    )


def match(target: Tokens, draft: Tokens, sample: Tensor, source: str) -> Match:
    """How the ids of a draft model correspond to the target's. sample: int64, an ordinary text in
    target ids.

    One tokenizer behind both, perhaps with another number of rows, keeps its ids; otherwise tokens
    that both spell alike are paired, and the rest is never drafted. Raises StartError when that
    leaves too little; source names the draft model there."""
    if target.spelled == draft.spelled:
        return Match(identity(target.size), 1.0, "the target's tokenizer")
    both = [
        token
        for token, (own, other) in enumerate(zip(target.spelled, draft.spelled, strict=False))
        if own is not None and other is not None
    ]
    alike = bool(both) and all(target.spelled[token] == draft.spelled[token] for token in both)
    pairs = {token: token for token in both} if alike else _paired(target, draft)
    found = _map(target, draft, pairs)
    share = found.share(torch.bincount(sample, minlength=target.size).float())
    which = "the target's tokenizer with other rows" if alike else "another tokenizer"
    told = (
        f"{which}: {found.size:,} shared tokens, {found.coverage:.0%} of the target's "
        f"{target.known:,}, {share:.0%} of those of an ordinary text"
    )
    if share < LEAST_SHARE:
        raise StartError(
            "drafter_unfit",
            f"{source} cannot draft for this model. It has {told}, and {LEAST_SHARE:.0%} of an "
            "ordinary text is the least. Choose a draft model with the target's tokenizer.",
        )
    return Match(found, share, told)


def _paired(target: Tokens, draft: Tokens) -> dict[int, int]:
    """Target id -> draft id of the tokens that both spell alike, and of the end of a text."""
    pairs: dict[int, int] = {}
    for own, other in (
        (target.writers(), draft.writers()),
        (target.names(), draft.names()),
    ):
        pairs |= {own[text]: other[text] for text in own.keys() & other.keys()}
    own_end, other_end = target.end, draft.end
    if own_end is not None and other_end is not None and own_end not in pairs:
        free = other_end not in pairs.values()
        pairs |= {own_end: other_end} if free else {}
    return pairs


def _map(target: Tokens, draft: Tokens, pairs: dict[int, int]) -> VocabularyMap:
    """pairs: target id -> the draft id that stands for it, all different."""
    to_draft = torch.full((target.size,), draft.stand_in)
    roles = {target.begin: draft.begin, target.end: draft.end}
    fed = {own: other for own, other in roles.items() if own is not None and other is not None}
    if target.lone:  # each is fed as the token that is spelled like it
        writers = draft.writers()
        twins = {token: writers.get(target.spelled[token] or b"") for token in target.lone}
        fed |= {token: twin for token, twin in twins.items() if twin is not None}
    fed |= pairs
    to_draft[torch.tensor(list(fed), dtype=torch.int64)] = torch.tensor(list(fed.values()))
    order = sorted(pairs, key=pairs.__getitem__)
    columns = torch.tensor([pairs[token] for token in order], dtype=torch.int64)
    prefix = torch.equal(columns, torch.arange(len(columns)))
    return VocabularyMap(
        to_draft=to_draft,
        kept=None if prefix else columns,
        to_target=torch.tensor(order, dtype=torch.int64),
        coverage=len(pairs) / max(1, target.known),
    )
