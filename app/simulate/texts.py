"""The texts of a configuration, and which drafters they know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from app.simulate.tables import DrafterTable, RatesTable, TextsTable
from controller.simulate.categories import CATEGORIES
from controller.simulate.recorded_texts import recorded_texts
from controller.simulate.recording import Recording, read_recording
from controller.simulate.synthetic import OUTPUT, PROMPT, RECIPES, Rates, Recipe, mixed_texts
from controller.simulate.texts import Text
from controller.simulate.traces import read_traces

LOOKUP = "lookup"
FIELDS = {
    "trace": (),
    "recording": (),
    "synthetic": ("count",),
    "drafters": ("count", "prompt", "output", "breaks"),
}
"""Where texts come from, and what else can be said of them there."""
COUNT = 200


@dataclass(frozen=True, slots=True)
class Corpus:
    """lookups: by name of a drafter that the texts know, whether it drafts from matches. own: the
    configuration itself gives their rates."""

    texts: Sequence[Text]
    lookups: Mapping[str, bool]
    own: bool = False


@lru_cache(maxsize=4)
def recorded(path: Path) -> Recording:
    """A recording, which texts and arrivals of every policy and replica come from. See
    read_recording."""
    return read_recording(path)


def read_texts(table: TextsTable, folder: Path, seed: int) -> Corpus:
    """folder: what paths are relative to. ValueError naming the table for what makes no texts,
    OSError for a file that cannot be read."""
    try:
        return _read(table, folder, seed)
    except ValueError as error:
        raise ValueError(f"texts.{table.name}: {error}") from None


def _read(table: TextsTable, folder: Path, seed: int) -> Corpus:
    given = [name for name in FIELDS if getattr(table, name)]
    if len(given) != 1:
        raise ValueError(f"give one of {', '.join(FIELDS)}")
    (kind,) = given
    for name in ("count", "prompt", "output", "breaks"):
        if getattr(table, name) and name not in FIELDS[kind]:
            kinds = " or ".join(one for one, fields in FIELDS.items() if name in fields)
            raise ValueError(f"{name}: it has no effect beside {kind}, but goes with {kinds}")
    if table.trace:
        texts = read_traces(folder / table.trace)
        matched = {name for text in texts for name in text.match}
        return Corpus(texts, {name: name in matched for text in texts for name in text.accepted})
    if table.recording:
        recording = recorded(folder / table.recording)
        lookups = {name: kind != "model" for name, kind in recording.kinds.items()}
        return Corpus(recorded_texts(recording, seed), lookups)
    recipes = _recipes(table)
    lookups = {name: one.match is not None for name, one in recipes[0].drafters.items()}
    texts = mixed_texts(recipes, table.count or COUNT, seed)
    return Corpus(texts, lookups, kind == "drafters")


def _recipes(table: TextsTable) -> list[Recipe]:
    if not table.synthetic:
        breaks = [(one.at, _rates(one.drafters)) for one in table.breaks]
        rates = _rates(table.drafters)
        return [Recipe(rates, table.prompt or PROMPT, table.output or OUTPUT, breaks)]
    names = [table.synthetic] if isinstance(table.synthetic, str) else table.synthetic
    known = RECIPES | CATEGORIES
    for name in names:
        if name not in known:
            raise ValueError(f"synthetic: {name!r} is not one of {', '.join(known)}")
    return [known[name] for name in names]


def _rates(tables: Mapping[str, RatesTable]) -> dict[str, Rates]:
    return {
        name: Rates(one.hot, one.cold, one.heat, one.keep, one.match)
        for name, one in tables.items()
    }


def check_drafters(drafters: Sequence[DrafterTable], corpora: Mapping[str, Corpus]) -> None:
    """ValueError for a name or a kind that does not fit, which would leave a drafter without an
    accepted token, unsaid.

    Texts whose drafters are given must know every drafter of the machine, and may know more. Texts
    with rates of their own may leave some out on purpose, but not all of them the same."""
    kinds = {one.name: one.kind for one in drafters}
    machine = ", ".join(kinds)
    for text, corpus in corpora.items():
        known = ", ".join(corpus.lookups) or "none"
        for name in corpus.lookups if corpus.own else ():
            if name not in kinds:
                raise ValueError(
                    f"texts.{text}.drafters.{name}: no such drafter is in [[drafters]], but "
                    f"{machine}"
                )
        for name, kind in kinds.items():
            if name not in corpus.lookups and not corpus.own:
                raise ValueError(
                    f"texts.{text}: it does not know the drafter {name!r}, but {known}; call it "
                    "that in [[drafters]], or use texts with rates of their own (drafters.NAME)"
                )
            if name in corpus.lookups and corpus.lookups[name] != (kind == LOOKUP):
                raise ValueError(_other_kind(text, name, kind, corpus))
    for name in kinds:
        if not any(name in corpus.lookups for corpus in corpora.values()):
            raise ValueError(
                f"drafters: no text knows {name!r}; give its rates as texts.NAME.drafters.{name}"
            )


def _other_kind(text: str, name: str, kind: str, corpus: Corpus) -> str:
    if not corpus.own:
        wanted = LOOKUP if corpus.lookups[name] else "head or draft_model"
        return f"drafters: {name!r} is a {kind}, but texts.{text} knows it as a {wanted}"
    where = f"texts.{text}.drafters.{name}"
    if kind == LOOKUP:
        return f"{where}: it is a lookup, so give match, the share of places with a draft"
    return f"{where}: match is of lookups, but it is a {kind}"
