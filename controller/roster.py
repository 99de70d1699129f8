"""Drafters that come and go: which there are, what they can, and which of them may draft."""

from __future__ import annotations

from collections.abc import Sequence

from controller.contract import NONE, DrafterInfo
from controller.mixing import chain_name


class Roster:
    """drafters: their names, without "none", in the order in which they came. models: those that
    run for all their requests at once. tails: those that can continue a model's draft. enabled:
    those that may draft."""

    def __init__(
        self, drafters: Sequence[str], models: Sequence[str] = (), tails: Sequence[str] = ()
    ) -> None:
        self.drafters = tuple(drafters)
        self.models = tuple(models)
        self.tails = tuple(tails)
        self.enabled = set(drafters)

    @property
    def plans(self) -> tuple[str, ...]:
        """What a plan can be called: the drafters, and chains of a model and its tail."""
        chains = [chain_name(head, tail) for head in self.models for tail in self.tails]
        return (*self.drafters, *chains)

    @property
    def enabled_in_order(self) -> list[str]:
        """Those that may draft, in the order in which they came."""
        return [name for name in self.drafters if name in self.enabled]

    def check(self, name: str) -> None:
        """ValueError for an unknown drafter."""
        if name not in self.drafters:
            raise ValueError(f"drafter: {name!r} is not one of {', '.join(self.drafters)}")

    def set_enabled(self, name: str, enabled: bool) -> bool:
        """Whether that changed anything. ValueError for an unknown drafter."""
        self.check(name)
        if enabled == (name in self.enabled):
            return False
        (self.enabled.add if enabled else self.enabled.discard)(name)
        return True

    def add(self, drafter: DrafterInfo) -> None:
        """One more, enabled. ValueError for a name that is taken."""
        name = drafter.name
        if name == NONE or name in self.drafters:
            raise ValueError(f"drafter: there is one by the name {name!r} already")
        self.drafters += (name,)
        if drafter.model:
            self.models += (name,)
        if drafter.tail:
            self.tails += (name,)
        self.enabled.add(name)

    def remove(self, name: str) -> None:
        """One less."""
        self.drafters = _without(self.drafters, name)
        self.models = _without(self.models, name)
        self.tails = _without(self.tails, name)
        self.enabled.discard(name)


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(one for one in names if one != name)
