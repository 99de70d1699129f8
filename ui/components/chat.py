"""The chat component: a WebSocket client in the browser that shows where each token came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from streamlit.components import v2

from ui import palette

_FOLDER = Path(__file__).parent

# Registered once per process: Streamlit keeps components by name.
_component = v2.component(
    "paceline_chat",
    html=(_FOLDER / "chat.html").read_text(encoding="utf-8"),
    css=(_FOLDER / "chat.css").read_text(encoding="utf-8"),
    js=(_FOLDER / "chat.js").read_text(encoding="utf-8"),
)


def chat(
    *,
    session: str,
    options: dict[str, Any],
    drafters: Sequence[str],
    ticket: dict[str, Any] | None,
    on_ticket: Callable[[], None],
) -> None:
    """Mount the chat under the key `chat`.

    session: the conversation belongs to it and is dropped when it changes. options: url, model,
    system, temperature, max_tokens, speculation of the next request. drafters: names that can
    draft. on_ticket is called when the browser needs a ticket; `session_state.chat.ticket`
    then holds its serial number, and the next mount gives the answer as `ticket`."""
    drafting = [name for name in drafters if name != "none"]
    legend = [
        *({"label": f"drafted by {n}", "colour": palette.drafter_colour(n)} for n in drafting),
        {"label": "correction", "colour": palette.CORRECTION},
        {"label": "bonus", "colour": palette.BONUS},
        {"label": "plain", "colour": ""},
    ]
    _component(
        key="chat",
        data={
            "session": session,
            "options": options,
            "ticket": ticket,
            "legend": legend,
            "colours": {
                "drafters": {n: palette.drafter_colour(n) for n in ["none", *drafting]},
                "correction": palette.CORRECTION,
                "bonus": palette.BONUS,
            },
            "theme": {
                "accent": palette.ACCENT,
                "ink": palette.INK,
                "muted": palette.MUTED,
                "line": palette.LINE,
            },
        },
        on_ticket_change=on_ticket,
    )
