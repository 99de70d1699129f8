"""Free scoring of a drafter that needs no model on committed text: what would it have got?

The shadow plays the drafter as if it ran at every step: it drafts at a step start, compares with
the tokens that follow, and starts again after its own accepted + 1 tokens. Scoring at step starts
only is what makes the scores comparable to live ones: positions that follow a rejection or a bonus
token are harder than average.

The state of one request's shadow is one row of int64, kept by compiled functions (numba) that a
drafter calls from its own compiled loop over the committed tokens. Per token: when `due(row)`,
write a draft to row[DRAFT:] and `begin`; then `take` the token, then take it into the index. In a
run of the drafter's own: `interrupt` first and `lived` after it. When the request ends:
`interrupt`. Each position is so scored either live or in the shadow."""

from __future__ import annotations

from typing import Any

from numba import njit

from controller.contract import Features, ShadowScore

DRAFTED, MATCHED, BONUS, STREAK, FEATURES, DRAFT = range(6)
"""Words of a row: length of the open draft (0: none), how many of its tokens were right, whether
the next token is the bonus after a full accept, streak, match length and source of the open draft,
and from DRAFT on its tokens."""

LONGEST = 4095
"""Most tokens of a draft, and the longest match, that a packed score holds."""

_LONGEST_STREAK = (1 << 20) - 1
_KEPT = 8192


@njit
def due(row: Any) -> bool:
    """Whether the shadow drafts before the next token."""
    return row[DRAFTED] == 0 and row[BONUS] == 0


@njit
def begin(row: Any, drafted: int, matched: int, source: int) -> None:
    """A draft of so many tokens (0: none) is in row[DRAFT:]. source: 0..15, the drafter's own."""
    row[DRAFTED], row[MATCHED] = drafted, 0
    row[FEATURES] = matched | source << 12


@njit
def take(row: Any, token: int) -> int:
    """Compare the next committed token; the packed score if that settles the draft, else 0."""
    if row[BONUS]:
        row[BONUS] = 0
    elif row[DRAFTED]:
        if token != row[DRAFT + row[MATCHED]]:
            return _settle(row, 0)
        row[MATCHED] += 1
        if row[MATCHED] == row[DRAFTED]:
            row[BONUS] = 1
            return _settle(row, 0)
    return 0


@njit
def interrupt(row: Any) -> int:
    """The text ends, or the drafter ran live: the open draft, censored, packed; 0 for none. The
    choice to go live was made before the tokens were known, so the censoring is unbiased."""
    row[BONUS] = 0
    return _settle(row, 1) if row[DRAFTED] else 0


@njit
def lived(row: Any, accepted: int) -> None:
    """A live draft had so many tokens accepted."""
    row[STREAK] = row[STREAK] + 1 if accepted else 0


@njit
def packed_features(row: Any, matched: int, source: int) -> int:
    """Features of an offer made now, packed; not 0 if something matched."""
    return matched | source << 12 | min(row[STREAK], _LONGEST_STREAK) << 16


@njit
def _settle(row: Any, censored: int) -> int:
    features = row[FEATURES] | min(row[STREAK], _LONGEST_STREAK) << 16
    score = censored | row[DRAFTED] << 1 | row[MATCHED] << 13 | features << 25
    row[STREAK] = row[STREAK] + 1 if row[MATCHED] else 0
    row[DRAFTED] = 0
    return score


class Scores:
    """Packed features and scores as the values that the controller knows. Equal ones are one
    object, since a step may settle hundreds; sources: names by their number."""

    def __init__(self, drafter: str, sources: tuple[str, ...]) -> None:
        self._drafter = drafter
        self._sources = sources
        self._features: dict[int, Features] = {}
        self._scores: dict[int, ShadowScore] = {}

    def features(self, packed: int) -> Features:
        found = self._features.get(packed)
        if found is None:
            found = Features(packed & 4095, packed >> 16, self._sources[packed >> 12 & 15])
            _keep(self._features, packed, found)
        return found

    def score(self, packed: int) -> ShadowScore:
        found = self._scores.get(packed)
        if found is None:
            found = ShadowScore(
                drafter=self._drafter,
                drafted=packed >> 1 & 4095,
                accepted=packed >> 13 & 4095,
                features=self.features(packed >> 25),
                censored=bool(packed & 1),
            )
            _keep(self._scores, packed, found)
        return found


def _keep(known: dict[int, Any], key: int, value: Any) -> None:
    if len(known) >= _KEPT:
        known.clear()
    known[key] = value
