"""Past answers in the suffix drafter's forest: whose they are, and how they grow old."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from typing import Literal

from engine.drafters.suffix_forest import SuffixForest

log = logging.getLogger(__name__)

Scope = Literal["tenant", "shared", "off"]

FULL, ROOMY = 0.9, 0.85
"""Answers are evicted from this part of the memory on, down to that."""
MOST_TENANTS = 1024
"""Trees of past answers; the one used least recently goes first."""
FRESH = 1024
"""Weight of a new answer while weights halve with age; 1 is the least, and that of all others."""
_AGE_CHECK_S = 1.0
_WARN_S = 60.0


class Answers:
    """The trees that requests may draft from, by tenant as the scope says.

    half_life_s and max_age_s are whole seconds; 0 is none."""

    def __init__(self, forest: SuffixForest, scope: Scope, limit: int) -> None:
        """limit: bytes of the forest."""
        self.half_life_s = self.max_age_s = 0
        self._forest = forest
        self._scope = scope
        self._high, self._low = int(FULL * limit), int(ROOMY * limit)
        self._trees: OrderedDict[str, int] = OrderedDict()
        self._weighted = False
        self._aged = self._warned = -_WARN_S
        self._truncations = 0

    def tree(self, tenant: str) -> int:
        """Handle of the tree for this tenant's requests; 0 for none."""
        if self._scope == "off":
            return 0
        key = tenant if self._scope == "tenant" else ""
        tree = self._trees.pop(key, 0) or self._forest.open_tree("global")
        self._trees[key] = tree
        if len(self._trees) > MOST_TENANTS:
            self._forest.drop_tree(self._trees.popitem(last=False)[1])
        return tree

    def open(self, tree: int) -> int:
        """Handle of a new answer in the tree; 0 when memory is full or there is no tree."""
        if not tree:
            return 0
        weight = FRESH if self.half_life_s else 1
        self._weighted |= weight > 1
        return self._forest.open_sequence(tree, int(time.monotonic()), weight=weight)

    def keep_up(self, nodes: int) -> bool:
        """Free, evict and fade about so many nodes of them. False when there was nothing to do."""
        forest, now = self._forest, time.monotonic()
        stats = forest.stats()
        busy = stats.pending and not forest.sweep(nodes)
        if stats.bytes > self._high:
            busy |= not forest.evict(to_bytes=self._low, budget=nodes)
        if now - self._aged >= _AGE_CHECK_S:
            if self._age(int(now), nodes):
                self._aged = now
            else:
                busy = True
        if stats.truncations > self._truncations and now - self._warned >= _WARN_S:
            self._warned = now
            log.warning(
                "the suffix drafter's %d MB are full: some texts are not drafted from. Serve with "
                "a larger --suffix-memory-mb.", stats.limit_bytes >> 20,
            )  # fmt: skip
        self._truncations = stats.truncations
        return busy

    def _age(self, now: int, nodes: int) -> bool:
        """Evict answers and let them fade, by age. False when there is more to do. Once weights
        do not halve any more, those that still weigh more than others soon do not."""
        age = self.max_age_s
        done = not age or self._forest.evict(older_than=now - age, budget=nodes)
        if self._weighted:
            done &= self._forest.fade(now, self.half_life_s or 1, FRESH, nodes)
        return done
