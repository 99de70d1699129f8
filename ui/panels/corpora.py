"""The corpora of the controller page: which there are and how far each is; load and remove."""

from __future__ import annotations

import re
from html import escape
from typing import Any

import streamlit as st

from ui import answers, chrome, palette, shaping
from ui.client import ApiError
from ui.markdown import plain

TYPES = {"txt": "text/plain", "jsonl": "application/x-ndjson", "ndjson": "application/x-ndjson"}
ANSWER = "corpus"
REFUSED = "corpus-refused"
LIMIT = "corpus_limit_mb"
"""Of an upload, as the server says; asked for once in a session."""
NO_CONNECTION = "No data: the API does not answer."
NONE = "No corpus is loaded."
COLOURS = {"ready": palette.GOOD, "loading": palette.WARNING, "failed": palette.BAD}


def show() -> None:
    with st.container(border=True, key="card-corpora"):
        st.html(
            '<div class="pl-head">Corpora</div><div class="pl-note">Texts that the suffix drafter '
            "may copy from, for every tenant: a draft shows by its speed what they hold, so load "
            "no secrets.</div>"
        )
        left, right = st.columns([1.9, 1], gap="medium")
        with left:
            _list()
        with right:
            _form()


@st.fragment(run_every=2.0, key="corpora-list")
def _list() -> None:
    try:
        found = chrome.client().corpora()["corpora"]
    except ApiError as error:
        text = NO_CONNECTION if error.unreachable else error.message
        st.html(f'<div class="pl-empty" style="height:120px">{escape(text)}</div>')
        return
    if not found:
        st.html(f'<div class="pl-empty" style="height:120px">{NONE}</div>')
    for corpus in found:
        _corpus(corpus)
    answers.show(REFUSED)


def _corpus(corpus: dict[str, Any]) -> None:
    name, state = corpus["name"], corpus["state"]
    colour = COLOURS.get(state, palette.INK)
    facts = [
        shaping.counted(corpus["documents"], "document"),
        shaping.size(corpus["bytes"]),
        "comes with Paceline for this model"
        if corpus.get("shipped")
        else f"loaded by {corpus['created_by']} at "
        f"{shaping.day_and_clock(corpus['created_at'])} UTC",
    ]
    if corpus["tokens"] is not None:
        facts.insert(1, shaping.counted(corpus["tokens"], "token"))
    with st.container(
        horizontal=True, vertical_alignment="center", key=f"corpus-{_slug(name)}", gap="small"
    ):
        why = (
            f"<div class='pl-note' style='overflow-wrap:anywhere'>{escape(corpus['reason'])}</div>"
            if corpus["reason"]
            else ""
        )
        st.html(
            f'<span class="pl-pill" style="--c:{colour}">{escape(state)}</span> '
            f'<b style="overflow-wrap:anywhere">{escape(name)}</b>'
            f'<div class="pl-note">{escape(", ".join(facts))}</div>{why}',
            width="stretch",
        )
        if state == "loading":
            st.progress(corpus["progress"], width=120)
        with st.popover("Remove", key=f"ask-{_slug(name)}"):
            st.button(
                plain(f"Remove {name}"),
                key=f"remove-{_slug(name)}",
                type="primary",
                on_click=_remove,
                args=(name,),
            )


# Not refreshed by time: a refresh must not come between the operator's clicks.
@st.fragment(key="corpora-form")
def _form() -> None:
    if LIMIT not in st.session_state:
        try:
            limits = chrome.client().corpora()["limits"]
        except ApiError:
            text = "Reload the page when the API answers, to load one."
            st.html(f'<div class="pl-note">{text}</div>')
            return
        st.session_state[LIMIT] = limits["corpus_limit_mb"]
    file = st.file_uploader(
        "Text, or JSON lines with text or token_ids",
        type=list(TYPES),
        key="corpus_file",
        max_upload_size=st.session_state[
            LIMIT
        ],  # with another one a chosen file would be forgotten
    )
    # The file's name is only shown in the field: a value set from here may not reach a busy page.
    suggested = _suggestion(file.name) if file else ""
    written = st.text_input(
        "Name",
        max_chars=64,
        key="corpus_name",
        placeholder=suggested,
        help="A-Z a-z 0-9 . _ -; empty: the file's own; a corpus of this name is replaced",
    )
    name = written or suggested
    loading = st.button(
        "Load", type="primary", key="corpus_load", width="stretch", disabled=not (file and name)
    )
    if loading and file:
        kind = TYPES[file.name.rsplit(".", 1)[-1].lower()]
        try:
            with st.spinner("Uploading"):
                corpus = chrome.client().put_corpus(name, file.getvalue(), kind)
        except ApiError as error:
            answers.keep(ANSWER, error.message, good=False)
        else:
            text = f"Stored {name}: {shaping.counted(corpus['documents'], 'document')}."
            answers.keep(ANSWER, text, good=True)
    with st.container(key="corpora-answer"):
        answers.show(ANSWER)


def _remove(name: str) -> None:
    try:
        chrome.client().remove_corpus(name)
    except ApiError as error:
        answers.keep(REFUSED, error.message, good=False)
    else:
        answers.drop(REFUSED)


def _suggestion(file: str) -> str:
    """A corpus's name from a file's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", file.rsplit(".", 1)[0]).strip("-")[:64]


def _slug(name: str) -> str:
    """The name as a part of a widget's key, which becomes a CSS class; still unique."""
    return "".join(c if c.isalnum() or c == "-" else f"_{ord(c):x}" for c in name)
