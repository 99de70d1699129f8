"""The experiments of `paceline bench suite`: named commands with what they need, from TOML."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from app.failures import SettingsError

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
PROGRAMS = {"paceline": (sys.executable, "-m", "app.cli"), "python": (sys.executable,)}
"""How the suite runs them: with this interpreter."""
OWN = ("out", "url")
"""Placeholders that the suite fills itself."""
ROOT = Path(__file__).resolve().parents[2]


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """serve: options of a server that is started for it, None when it needs none. tree: it runs in
    the source tree. about: minutes that it takes on two quiet cores without AVX-512. minutes: when
    it is ended."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,40}$")]
    title: str
    command: str
    about: Annotated[float, Meta(gt=0, le=1440)]
    minutes: Annotated[float, Meta(gt=0, le=1440)]
    serve: tuple[str, ...] | None = None
    tree: bool = False

    @property
    def placeholders(self) -> set[str]:
        return set(PLACEHOLDER.findall(self.command))

    @property
    def needs(self) -> list[str]:
        """What --set must give."""
        return sorted(self.placeholders - set(OWN))

    def arguments(self, values: Mapping[str, str]) -> list[str]:
        """The command with its placeholders filled; one argument stays one, whatever is in a
        value."""
        parts = shlex.split(self.command)
        filled = [PLACEHOLDER.sub(lambda found: values[found[1]], part) for part in parts[1:]]
        return [*PROGRAMS[parts[0]], *filled]

    def obstacle(self, given: Mapping[str, str]) -> str:
        """Why it cannot run here, "" when it can."""
        missing = [name for name in self.needs if name not in given]
        if missing:
            return "needs " + " and ".join(f"--set {name}=…" for name in missing)
        if self.tree and not (ROOT / "tests" / "engine").is_dir():
            return "needs the source tree"
        return ""


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    experiment: tuple[Experiment, ...]


def shipped() -> list[Experiment]:
    """The experiments of docs/performance.md."""
    text = files("app.bench").joinpath("suite.toml").read_text("utf-8")
    return read(text)


def read(text: str) -> list[Experiment]:
    """Raises ValueError on a list that is wrong: it ships with the product."""
    found = list(msgspec.convert(tomllib.loads(text), Listing).experiment)
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise ValueError("two experiments have one name")
    for one in found:
        if shlex.split(one.command)[0] not in PROGRAMS:
            raise ValueError(f"{one.name}: the command is not one of {', '.join(PROGRAMS)}")
        if ("url" in one.placeholders) != (one.serve is not None):
            raise ValueError(f"{one.name}: a server and {{url}} come together")
    return found


def chosen(experiments: Sequence[Experiment], only: Sequence[str]) -> list[Experiment]:
    """Those that were named, in the list's order; all without names. Raises SettingsError."""
    unknown = set(only) - {one.name for one in experiments}
    if unknown:
        raise SettingsError(
            f"--only {', '.join(sorted(unknown))}: there are "
            f"{', '.join(one.name for one in experiments)}."
        )
    return [one for one in experiments if not only or one.name in only]


def values_of(given: Sequence[str]) -> dict[str, str]:
    """The values of --set NAME=VALUE; paths become absolute, since commands run in the source tree,
    and links stay: an environment's interpreter is one. Raises SettingsError."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[a-z_]+", name) or name in OWN:
            raise SettingsError(f"--set {text!r}: give NAME=VALUE, such as prompts=FILE")
        path = Path(value).expanduser()
        found[name] = str(path.absolute()) if path.exists() else value
    return found
