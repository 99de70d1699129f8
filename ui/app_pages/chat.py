"""Chat page: a streaming chat that shows where each token came from, and its settings."""

from __future__ import annotations

import uuid
from typing import Any

import streamlit as st

from ui import chrome
from ui.client import ApiError
from ui.components.chat import chat

AUTO = "auto"
DEFAULTS = {
    "system": "",
    "temperature": 0.0,
    "max_tokens": 256,
    "drafter": AUTO,
    "fixed": False,
    "draft_length": 4,
}


def socket_url() -> str:
    """WebSocket address of the chat, as the browser reaches it."""
    scheme, _, rest = chrome.public_api_url().partition("://")
    return f"{'wss' if scheme == 'https' else 'ws'}://{rest}/v1/responses"


def available() -> tuple[list[str], int, str] | None:
    """(names of enabled drafters, largest draft length, model), as last seen; None before the API
    was reached once."""
    try:
        listed = [item for item in chrome.client().drafters() if item["enabled"]]
        model = chrome.client().state()["model"]
        if model and listed:
            longest = max(item["max_draft_length"] for item in listed)
            known = ([item["name"] for item in listed], longest, model["name"])
            st.session_state["chat_known"] = known
    except ApiError:
        pass  # the banner says why; the settings keep what was there
    return st.session_state.get("chat_known")


@st.fragment(run_every=1.0, key="chat-wait")
def wait() -> None:
    """Stands in for the page until the API answers."""
    if available():
        st.rerun()
    st.html('<div class="pl-empty" style="height:300px">Waiting for the API.</div>')


def mint() -> None:
    """Answer the browser's wish for a ticket."""
    serial = st.session_state["chat"].ticket
    try:
        st.session_state["chat_ticket"] = {"serial": serial, "value": chrome.client().ticket()}
    except ApiError as error:
        st.session_state["chat_ticket"] = {
            "serial": serial,
            "error": error.message,
            "refused": error.refused,
        }


def settings(names: list[str], longest: int) -> dict[str, Any]:
    """The settings panel. Returns the options of the next request.

    What was chosen is kept apart from the widgets, whose state ends when another page opens."""
    kept: dict[str, Any] = st.session_state.setdefault("chat_kept", dict(DEFAULTS))
    choices = [AUTO, *names]
    longest = max(2, longest)
    with st.container(border=True, key="card-settings"):
        st.html('<div class="pl-head">Settings</div>')
        kept["system"] = st.text_area(
            "System prompt", kept["system"], key="chat_system", height=90, max_chars=4000
        )
        kept["temperature"] = st.slider(
            "Temperature",
            0.0,
            1.5,
            kept["temperature"],
            0.1,
            key="chat_temperature",
            help="0 is greedy: always the most likely token",
        )
        kept["max_tokens"] = st.number_input(
            "Max tokens", 1, 4096, kept["max_tokens"], 32, key="chat_max_tokens"
        )
        kept["drafter"] = st.selectbox(
            "Drafter",
            choices,
            index=choices.index(kept["drafter"]) if kept["drafter"] in choices else 0,
            key="chat_drafter",
            help="auto follows the server's controller; none decodes plainly",
        )
        drafting = kept["drafter"] not in (AUTO, "none")
        kept["fixed"] = st.toggle(
            "Fixed draft length", kept["fixed"], key="chat_fixed", disabled=not drafting
        )
        kept["draft_length"] = st.slider(
            "Draft length D",
            1,
            longest,
            min(kept["draft_length"], longest),
            key="chat_draft_length",
            disabled=not (drafting and kept["fixed"]),
            help="Drafted tokens per step; otherwise the controller chooses",
        )
    speculation: dict[str, Any] = {"enabled": kept["drafter"] != "none"}
    if drafting:
        speculation["drafter"] = kept["drafter"]
        if kept["fixed"]:
            speculation["draft_length"] = kept["draft_length"]
    return {
        "system": str(kept["system"] or "").strip(),
        "temperature": kept["temperature"],
        "max_tokens": int(kept["max_tokens"]),
        "speculation": speculation,
    }


@st.fragment(key="chat-view")
def conversation(options: dict[str, Any], names: list[str]) -> None:
    chat(
        session=st.session_state["chat_session"],
        options=options,
        drafters=names,
        ticket=st.session_state.get("chat_ticket"),
        on_ticket=mint,
    )


st.session_state.setdefault("chat_session", uuid.uuid4().hex)

chrome.title("Chat", "Ask the served model and see what was drafted")
if known := available():
    names, longest, model = known
    left, right = st.columns([3.2, 1], gap="medium")
    with right:
        options = settings(names, longest)
    with left:
        conversation({**options, "url": socket_url(), "model": model}, names)
else:
    wait()
