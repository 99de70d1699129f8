"""Drafters with a model of their own: loaded and unloaded with a look at the memory before."""

from __future__ import annotations

import threading
from html import escape
from typing import Any

import streamlit as st

from ui import answers, chrome, palette, shaping
from ui.client import ApiError
from ui.markdown import plain

WAIT_S = 3.0
"""So long the page waits for a load; a longer one goes on without it and is shown as it is."""
PLAN = "drafter_plan"
"""Hold by drafter what was asked last, and (good, text) of its answer."""
HELP = (
    "auto: what ships for the served model or its own checkpoint holds. Or a folder on the server; "
    "for draft_model also a Hugging Face id."
)


def show(item: dict[str, Any]) -> None:
    """Below the row of such a drafter."""
    name, model = item["name"], item["model"]
    state = model["state"]
    with st.container(key=f"model-{name}", gap="xsmall"):
        if state == "loading":
            st.progress(model["progress"], text=plain(f"{_source(model)}: {model['message']}"))
        elif state == "loaded":
            _loaded(name, model)
        else:
            _unloaded(name, model)
        place = _place(name)
        if not (model["message"] and answers.refused(place)):  # else it is said already
            answers.show(place)


def facts(item: dict[str, Any]) -> str:
    """What a loaded one takes, for its row."""
    model = item["model"]
    if model["state"] != "loaded":
        return f", {model['state'].replace('unloaded', 'not loaded')}"
    return f", {shaping.size(model['weights_bytes'] + model['kv_bytes'])}"


def _loaded(name: str, model: dict[str, Any]) -> None:
    with st.container(horizontal=True, vertical_alignment="center", key=f"row-model-{name}"):
        text = (
            f"Source {_source(model)}. Weights {shaping.size(model['weights_bytes'])}, keys and "
            f"values {shaping.size(model['kv_bytes'])}. It can draft "
            f"{shaping.percent(model['coverage'])} of the vocabulary. {model['message']}"
        )
        st.html(
            f'<div class="pl-note" style="overflow-wrap:anywhere">{escape(text)}</div>',
            width="stretch",
        )
        with st.popover("Unload", key=f"ask-unload-{name}"):
            st.html(
                '<div class="pl-note">Its memory becomes free. Requests that it drafts for go on '
                "without it.</div>"
            )
            st.button(
                plain(f"Unload {name}"),
                key=f"unload-{name}",
                type="primary",
                on_click=_unload,
                args=(name,),
            )


def _unloaded(name: str, model: dict[str, Any]) -> None:
    if model["message"]:
        chrome.notice(f"The last load failed: {model['message']}", good=False)
    with st.expander(plain(f"Load {name}"), key=f"load-{name}", type="compact"):
        source = st.text_input(
            "Source", value="auto", max_chars=4096, key=f"source-{name}", help=HELP
        )
        st.button(
            "Show memory",
            key=f"plan-{name}",
            width="stretch",
            disabled=not source.strip(),
            on_click=_plan,
            args=(name,),
        )
        plan = st.session_state.get(PLAN, {}).get(name)
        if plan is None or plan["source"] != source.strip():
            return
        _preview(plan)
        st.button(
            plain(f"Load {name} now"),
            key=f"load-now-{name}",
            type="primary",
            width="stretch",
            disabled=not plan["fits"],
            on_click=_load,
            args=(name,),
        )


def _preview(plan: dict[str, Any]) -> None:
    both = plan["weights_bytes"] + plan["kv_bytes"]
    verdict, colour = ("fits", palette.GOOD) if plan["fits"] else ("does not fit", palette.BAD)
    rows = (
        ("Weights", shaping.size(plan["weights_bytes"])),
        ("Keys and values", shaping.size(plan["kv_bytes"])),
        ("Together", shaping.size(both)),
        ("Free now", shaping.size(plan["free_bytes"])),
    )
    body = "".join(f'<tr><td>{label}</td><td class="num">{text}</td></tr>' for label, text in rows)
    st.html(
        f'<table class="pl-table">{body}</table>'
        f'<div class="pl-note" style="overflow-wrap:anywhere"><span class="pl-pill" '
        f'style="--c:{colour}">{verdict}</span> {escape(plan["path"])}</div>'
    )


def _plan(name: str) -> None:
    answers.drop(_place(name))
    source = st.session_state[f"source-{name}"].strip()
    try:
        plan = chrome.client().load_drafter(name, source, dry_run=True)
    except ApiError as error:
        answers.keep(_place(name), error.message, good=False)
        plan = None
    st.session_state[PLAN] = {**st.session_state.get(PLAN, {}), name: plan}


def _load(name: str) -> None:
    """Begin the load, and wait a little for its end."""
    source = st.session_state[f"source-{name}"].strip()
    client, refused = chrome.client(), list[str]()

    def work() -> None:
        try:
            client.load_drafter(name, source)
        except ApiError as error:
            refused.append(error.message)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    st.session_state[PLAN] = {**st.session_state.get(PLAN, {}), name: None}
    if refused:
        answers.keep(_place(name), refused[0], good=False)
    elif not thread.is_alive():
        answers.keep(_place(name), f"Loaded {name}.", good=True)


def _unload(name: str) -> None:
    try:
        chrome.client().unload_drafter(name)
    except ApiError as error:
        answers.keep(_place(name), error.message, good=False)
    else:
        answers.keep(_place(name), f"Unloaded {name}.", good=True)


def _place(name: str) -> str:
    return f"model-{name}"


def _source(model: dict[str, Any]) -> str:
    return str(model["source"] or "auto")
