"""What corpora there are, how far the present engine has each, and what room there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from app.corpora.delivery import Progress, TooMany
from app.corpora.shipped import Shipped
from app.db.corpora import CorpusRecord

MAX_CORPORA = 64
TOGETHER = 8
"""All corpora together may have so many times the bytes that one may have."""

State = Literal["loading", "ready", "failed"]


class NoRoom(Exception):
    """The limits leave no room for another corpus: which, as a sentence."""


@dataclass(slots=True)
class Shelved:
    """A stored corpus, and how far the present engine has it. held: given as a whole. counted:
    tokens of one that did not fit, so that it is not tokenised again for less room."""

    record: CorpusRecord
    progress: Progress = field(default_factory=Progress)
    held: bool = False
    indexed: int = 0
    failed: str | None = None
    counted: int = 0

    def forget_engine(self) -> None:
        self.progress, self.held, self.indexed, self.failed = Progress(), False, 0, None

    @property
    def state(self) -> State:
        if self.failed is not None:
            return "failed"
        return "ready" if self.held and self.indexed >= self.progress.tokens else "loading"

    @property
    def share(self) -> float:
        """Half of the way is to give it to the engine, half to index it."""
        given = min(1.0, self.progress.bytes / max(1, self.record.bytes))
        indexed = self.indexed / max(1, self.progress.tokens) if self.held else 0.0
        return 1.0 if self.state == "ready" else (given + min(1.0, indexed)) / 2


class Shelf:
    """Corpora by name. One may be shipped with the model: it is there until it is removed or
    another is stored under its name, and counts in no limit."""

    def __init__(self, most_tokens: int) -> None:
        """most_tokens: of all corpora together."""
        self.most_tokens = most_tokens
        self.shipped: Shipped | None = None
        self._corpora: dict[str, Shelved] = {}

    def all(self) -> Sequence[Shelved]:
        return list(self._corpora.values())

    def find(self, name: str) -> Shelved | None:
        return self._corpora.get(name)

    def put(self, record: CorpusRecord) -> None:
        self._corpora[record.name] = Shelved(record)

    def remove(self, name: str) -> bool:
        """Whether it was the one that ships."""
        self._corpora.pop(name, None)
        ships = self.shipped is not None and self.shipped.record.name == name
        if ships:
            self.shipped = None
        return ships

    def ship(self, shipped: Shipped) -> None:
        self.shipped = shipped
        self._corpora.setdefault(shipped.record.name, Shelved(shipped.record))

    def take_over(self, records: Sequence[CorpusRecord]) -> None:
        """These are stored now; what is the same as before keeps its state."""
        known = {shelved.record.version: shelved for shelved in self.all()}
        if self.shipped is not None:
            records = [self.shipped.record, *records]  # one that is stored takes its name over
        self._corpora = {r.name: known.get(r.version) or Shelved(r) for r in records}

    def ships(self, shelved: Shelved) -> bool:
        return self.shipped is not None and shelved.record is self.shipped.record

    def in_turn(self) -> list[Shelved]:
        """The small first, and what ships last."""
        return sorted(self.all(), key=lambda one: (self.ships(one), one.record.bytes))

    def check_room(self, name: str, size: int, most: int) -> None:
        """Raises NoRoom when `size` bytes under this name are more than what may be stored; most:
        bytes of all together."""
        others = [s.record for s in self.all() if s.record.name != name and not self.ships(s)]
        if len(others) >= MAX_CORPORA:
            raise NoRoom(f"There are {MAX_CORPORA} corpora already. Remove one first.")
        if sum(record.bytes for record in others) + size > most:
            raise NoRoom(
                f"All corpora together may have {most // 2**20:,} MiB, {TOGETHER} times "
                "--corpus-limit-mb. Remove one first."
            )

    def room(self, without: Shelved) -> int:
        """Tokens that this one may have."""
        if self.ships(without):
            return without.record.token_ids
        return self.most_tokens - sum(
            other.progress.tokens
            for other in self.all()
            if other is not without and not self.ships(other)
        )

    def try_failed_again(self) -> None:
        """After a change there may be room for what did not fit before."""
        for shelved in self.all():
            if shelved.failed is not None:
                shelved.forget_engine()
                room = self.room(without=shelved)
                if shelved.counted > room:
                    shelved.failed = str(TooMany(shelved.counted, room, self.most_tokens))

    def shown(self, shelved: Shelved, engine_state: str) -> dict[str, Any]:
        """A corpus as the API shows it."""
        record = asdict(shelved.record)
        for name in ("version", "token_ids", "tokenizer"):
            del record[name]
        reason = shelved.failed
        if reason is None and engine_state != "ready":
            reason = f"It waits for the engine, whose state is {engine_state}."
        return {
            **record,
            "tokens": shelved.progress.tokens if shelved.held else None,
            "indexed_tokens": shelved.indexed,
            "state": shelved.state,
            "progress": round(shelved.share, 3),
            "reason": reason,
            "shipped": self.ships(shelved),
        }
