"""`paceline chat`: a conversation in the terminal over one WebSocket, drafted tokens coloured."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import signal
import sys
from collections.abc import Generator
from typing import Any

import msgspec
from rich.console import Console
from rich.style import Style
from rich.text import Text
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect

from app.failures import Failure, StartError
from app.foreign_json import decode
from app.modes import speculation
from app.remote import api_key, served_model
from app.signals import handled

DRAFTERS = {
    "ngram": "#2f7ed8",
    "suffix": "#e07b39",
    "draft_model": "#3a9d5d",
    "mtp": "#a05fc0",
}
KINDS = {"correction": "#d64545", "bonus": "#c9a227"}
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
POLL_S = 0.1


class Cancelled:
    """Whether Ctrl-C was pressed and not acted on yet."""

    def __init__(self) -> None:
        self.pressed = False

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """Ctrl-C inside the block cancels the answer instead of ending the program."""
        self.pressed = False
        with handled((signal.SIGINT,), lambda number, frame: setattr(self, "pressed", True)):
            yield


def main(options: argparse.Namespace) -> int:
    screen = Console(highlight=False, soft_wrap=True)
    wish = speculation(options.mode)
    key = api_key(options.key)
    model = served_model(options.url, key)
    with opened(options.url, key) as socket:
        legend(screen)
        previous: str | None = None
        while (text := ask(screen)) is not None:
            request: dict[str, Any] = {
                "type": "response.create",
                "model": model,
                "input": text,
                "max_output_tokens": options.max_tokens,
                "temperature": options.temperature,
                "x_spec": True,
            }
            if options.system:
                request["instructions"] = options.system
            if wish is not None:
                request["speculation"] = wish
            if previous is not None:
                request["previous_response_id"] = previous
            try:
                socket.send(json.dumps(request))
                previous = show_answer(socket, screen) or previous
            except ConnectionClosed as error:
                reason = error.rcvd.reason if error.rcvd else "connection lost"
                raise Failure(f"The server closed the connection: {reason or error}.") from None
    return 0


def opened(url: str, key: str) -> ClientConnection:
    """The socket /v1/responses. Raises StartError."""
    address = url.rstrip("/").replace("http", "ws", 1) + "/v1/responses"
    try:
        return connect(
            address,
            additional_headers={"Authorization": f"Bearer {key}"},
            proxy=None,
            max_size=2**24,
        )
    except InvalidHandshake as error:
        response = getattr(error, "response", None)
        status = f"HTTP {response.status_code}" if response is not None else str(error)
        raise StartError(
            f"{address} refused the connection: {status}. Check the key and the address."
        ) from None
    except (OSError, TimeoutError, ValueError) as error:
        raise StartError(f"Cannot reach {address}: {error}. Is the server running?") from None


def ask(screen: Console) -> str | None:
    """The next thing the user says, None at the end."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # history and editing for input()
    while True:
        try:
            text = input("\nyou> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            return None
        if text in ("/exit", "/quit"):
            return None
        if text:
            return text


def legend(screen: Console) -> None:
    if not screen.is_terminal:
        return
    line = Text("Accepted drafts: ")
    for name, colour in DRAFTERS.items():
        line.append(f" {name} ", Style(bgcolor=colour, color="white"))
        line.append(" ")
    line.append("  correction", Style(color=KINDS["correction"]))
    line.append("  bonus", Style(color=KINDS["bonus"]))
    screen.print(line)
    screen.print("Ctrl-C stops an answer, /exit ends the chat.", style="dim")


def show_answer(socket: ClientConnection, screen: Console) -> str | None:
    """Print one streamed answer; its response id, or None when there is nothing to continue."""
    cancel = Cancelled()
    with cancel.watching():
        while True:
            if cancel.pressed:
                cancel.pressed = False
                # Without an id: an answer that still waits in the server's queue has none yet.
                socket.send(json.dumps({"type": "response.cancel"}))
            try:
                event = event_of(socket.recv(timeout=POLL_S))
            except TimeoutError:
                continue
            if event["type"] == "response.output_text.delta":
                screen.print(coloured(event), end="")
            elif event["type"] in ENDS:
                return finish(event, screen)


def event_of(message: str | bytes) -> dict[str, Any]:
    """Raises Failure on what is none of ours."""
    try:
        event = decode(message, dict[str, Any])
    except msgspec.MsgspecError as error:
        raise Failure(f"The server sent something that is no event: {error}.") from None
    if not isinstance(event.get("type"), str):
        raise Failure("The server sent something that is no event: it has no type.")
    return event


def coloured(event: dict[str, Any]) -> Text:
    """The delta's text, each token in the colour of where it came from."""
    spec = event.get("x_spec")
    if not spec or "".join(piece["text"] for piece in spec["pieces"]) != event["delta"]:
        return Text(event["delta"])
    text = Text()
    for piece in spec["pieces"]:
        if piece["kind"] == "accepted":
            style = Style(bgcolor=DRAFTERS.get(spec["drafter"], "#5b6270"), color="white")
        else:
            style = Style(color=KINDS.get(piece["kind"]))
        text.append(piece["text"], style)
    return text


def finish(event: dict[str, Any], screen: Console) -> str | None:
    """Print the numbers or the error; the response id when the chat can go on from it."""
    response = event.get("response") or {}
    error = event.get("error") or response.get("error")
    if event["type"] in ("error", "response.failed"):
        message = (error or {}).get("message", "the answer failed")
        screen.print(Text(f"\n{message}", "red"))  # the server's words are no markup
        return None
    screen.print()
    if screen.is_terminal:
        screen.print(Text(numbers(response), "dim"))
    return response.get("id")


def numbers(response: dict[str, Any]) -> str:
    metrics = response.get("metrics") or {}
    timing, spec = metrics.get("timing") or {}, metrics.get("speculative_decoding") or {}
    parts = [f"{(response.get('usage') or {}).get('output_tokens', 0)} tokens"]
    if timing.get("tpot_ms"):
        parts.append(f"{1000 / timing['tpot_ms']:.0f} tokens/s")
    if timing.get("ttft_ms") is not None:
        parts.append(f"first after {timing['ttft_ms']:.0f} ms")
    if spec.get("mean_acceptance_length"):
        parts.append(f"acceptance length {spec['mean_acceptance_length']:.2f}")
        parts.append(f"{spec['num_accepted_draft_tokens']} drafted tokens kept")
    return " · ".join(parts)
