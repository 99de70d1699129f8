"""Past answers in the suffix drafter's forest: whose they are, and how they grow old."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from typing import Literal

from engine.drafters.suffix.forest import MAX_WEIGHT, ForestStats, SuffixForest

log = logging.getLogger(__name__)

Scope = Literal["tenant", "shared", "off"]

FULL, ROOMY = 0.9, 0.85
"""Answers are evicted from this part of the memory on, down to that."""
MOST_TENANTS, MOST_SALTS = 1024, 256
"""Trees of past answers, and of those of requests with a cache salt, which whoever sends one makes
up; the one used least recently goes first."""
FRESH = MAX_WEIGHT
"""Weight of a new answer while weights halve with age; 1 is the least, and that of all others."""
_AGE_CHECK_S = 1.0
_WARN_S = 60.0
_REASONS = (
    ("its memory is full", " Serve with a larger --suffix-memory-mb."),
    ("their tree counts as much as it can", " Set half_life_s to 0 or a lower max_age_s."),
    ("they have ids outside the model's vocabulary", ""),
)
"""Why texts are cut short, and what to do; in the order in which `_warn` takes their counts."""


class Answers:
    """The trees that requests may draft from, by tenant as the scope says.

    half_life_s and max_age_s are whole seconds; 0 is none."""

    def __init__(self, forest: SuffixForest, scope: Scope, limit: int) -> None:
        """limit: bytes of the forest."""
        self.half_life_s = self.max_age_s = 0
        self._forest = forest
        self._scope = scope
        self._high, self._low = int(FULL * limit), int(ROOMY * limit)
        self._trees: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._salted: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._weighted = False
        self._aging = self._fading = False
        self._aged = -_WARN_S
        self._warned: dict[str, tuple[float, int]] = {}

    def tree(self, tenant: str, salt: str) -> int:
        """Handle of the tree for this tenant's requests with this cache salt; 0 for none."""
        if self._scope == "off":
            return 0
        trees, most = (self._salted, MOST_SALTS) if salt else (self._trees, MOST_TENANTS)
        key = (tenant if self._scope == "tenant" else "", salt)
        tree = trees.pop(key, 0) or self._forest.open_tree("global")
        trees[key] = tree
        if len(trees) > most:
            self._forest.drop_tree(trees.popitem(last=False)[1])
        return tree

    def open(self, tree: int) -> int:
        """Handle of a new answer in the tree; 0 when memory is full or there is no tree."""
        if not tree:
            return 0
        weight = FRESH if self.half_life_s else 1
        self._weighted |= weight > 1
        return self._forest.open_sequence(tree, int(time.monotonic()), weight=weight)

    def keep_up(self, budget: int) -> int:
        """Free what was dropped, evict answers and let them fade, so many nodes in all. Returns
        the budget that is left: 0 when there is more to do.

        Once weights do not halve any more, those that still weigh more than others soon do not."""
        forest, now = self._forest, time.monotonic()
        stats = forest.stats()
        self._warn(stats, now)
        if now - self._aged >= _AGE_CHECK_S and not (self._aging or self._fading):
            self._aged = now
            self._aging, self._fading = self.max_age_s > 0, self._weighted
        full = stats.bytes > self._high
        if stats.pending or stats.crowded or full or self._aging:
            older_than = int(now) - self.max_age_s if self._aging and self.max_age_s else None
            budget = forest.evict(older_than, self._low if full else None, budget)
            self._aging &= budget == 0
        if self._fading and budget:
            budget = forest.fade(int(now), self.half_life_s or 1, FRESH, budget)
            self._fading = budget == 0
        return budget

    def _warn(self, stats: ForestStats, now: float) -> None:
        """Tell why texts are not drafted from, each reason once a minute at most."""
        counts = (stats.truncated_full, stats.truncated_count, stats.truncated_id)
        for (reason, remedy), count in zip(_REASONS, counts, strict=True):
            warned, before = self._warned.get(reason, (-_WARN_S, 0))
            if count > before and now - warned >= _WARN_S:
                self._warned[reason] = (now, count)
                log.warning(
                    "the suffix drafter took %d texts in only in part: " + reason + "." + remedy,
                    count - before,
                )
