"""`paceline drafter`: the drafters of a running server listed, loaded and unloaded."""

from __future__ import annotations

import argparse
import threading
from typing import Any
from urllib.parse import quote

import httpx

from app.failures import Failure
from app.progress import Bars
from app.remote import call, connected

POLL_S = 0.3
LOAD_S = 3600.0
"""For a load, which may download a model first."""
HEADS = ("name", "state", "drafts up to", "memory", "vocabulary", "source")


def show(options: argparse.Namespace) -> int:
    """A row for each drafter, and below it why its last load failed."""
    with connected(options) as client:
        found = call(client, "GET", "/api/drafters")["drafters"]
        if not found:
            raise Failure(f"No drafters yet: {_away(client)}")
    rows = [HEADS, *map(_row, found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, drafter in zip(rows, [None, *found], strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
        if drafter and (drafter["model"] or {}).get("message"):
            print(f"    {drafter['model']['message']}")
    return 0


def _away(client: httpx.Client) -> str:
    """Why the server has no engine, and how far its start is."""
    try:
        state = client.get("/health/ready").json()
        progress = (state.get("engine") or {}).get("progress")
        told = str(state.get("detail") or "the engine is ready now. Ask again.")
    except (ValueError, AttributeError):
        return "the engine is still loading."
    if progress is None:
        return told
    return f"{told} {progress['stage']}: {progress['message']} ({progress['fraction']:.0%})"


def load(options: argparse.Namespace) -> int:
    """Show the memory that it would take; without --dry-run load it then."""
    body = {"source": options.source, "dry_run": True}
    with Bars() as bars, connected(options) as client:
        plan = call(client, "POST", _address(options.name, "load"), body=body, timeout_s=LOAD_S)
        print(_planned(plan))
        if options.dry_run:
            return 0 if plan["fits"] else 1
        with _followed(client, options.name, bars):
            body["dry_run"] = False
            loaded = call(
                client, "POST", _address(options.name, "load"), body=body, timeout_s=LOAD_S
            )
        bars.update("load", 1.0, options.name)
    print(f"Loaded {options.name}: {_memory(loaded)}, {_coverage(loaded)} of the vocabulary")
    return 0


def unload(options: argparse.Namespace) -> int:
    with connected(options) as client:
        call(client, "POST", _address(options.name, "unload"))
    print(f"Unloaded {options.name}")
    return 0


class _followed:
    """Shows what a load does meanwhile, from what the server says of it."""

    def __init__(self, client: httpx.Client, name: str, bars: Bars) -> None:
        self._client, self._name, self._bars = client, name, bars
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            try:
                found = call(self._client, "GET", "/api/drafters")["drafters"]
            except (Failure, httpx.HTTPError):
                continue  # the load itself tells what is wrong
            model = next((one["model"] for one in found if one["name"] == self._name), None)
            if model and model["state"] == "loading":
                self._bars.update("load", model["progress"], model["message"])


def _planned(plan: dict[str, Any]) -> str:
    both = plan["weights_bytes"] + plan["kv_bytes"]
    verdict = "" if plan["fits"] else " This does not fit."
    return (
        f"{plan['name']} takes {_size(both)}: {_size(plan['weights_bytes'])} for its weights and "
        f"{_size(plan['kv_bytes'])} for keys and values; {_size(plan['free_bytes'])} are free."
        f"{verdict}"
    )


def _row(drafter: dict[str, Any]) -> tuple[str, ...]:
    """Under HEADS."""
    model = drafter["model"]
    state = "on" if drafter["enabled"] else "off"
    if model and model["state"] != "loaded":
        state = model["state"]
    return (
        drafter["name"],
        state,
        str(drafter["max_draft_length"] or "-"),
        _memory(drafter),
        _coverage(drafter),
        model["source"] if model and model["source"] else "-",
    )


def _memory(drafter: dict[str, Any]) -> str:
    if drafter["memory"]:
        used, limit = (_size(drafter["memory"][key]) for key in ("used_bytes", "limit_bytes"))
        return f"{used} of {limit}"
    model = drafter["model"]
    if not model or model["state"] != "loaded":
        return "-"
    return f"{_size(model['weights_bytes'])} weights, {_size(model['kv_bytes'])} keys and values"


def _coverage(drafter: dict[str, Any]) -> str:
    model = drafter["model"]
    return f"{model['coverage']:.0%}" if model and model["state"] == "loaded" else "-"


def _size(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def _address(name: str, action: str) -> str:
    return f"/api/drafters/{quote(name, safe='')}/{action}"
