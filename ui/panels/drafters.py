"""The drafters of the controller page: a switch for each, and its parameters."""

from __future__ import annotations

from html import escape
from typing import Any

import streamlit as st

from ui import answers, chrome, fields
from ui.client import ApiError
from ui.markdown import plain
from ui.panels import model_drafters

NO_CONNECTION = "No data: the API does not answer."


@st.fragment(run_every=5.0, key="switch-drafters")
def show() -> None:
    with st.container(border=True, key="card-drafters"):
        st.html(
            '<div class="pl-head">Drafters</div>'
            '<div class="pl-note">A disabled drafter is used by no request. Changes hold from the '
            "next step on.</div>"
        )
        try:
            found = chrome.client().drafters()
        except ApiError:
            found = []
            st.html(f'<div class="pl-note">{NO_CONNECTION}</div>')
        for item in found:
            _drafter(item)
            answers.show(_place(item["name"]))


def _drafter(item: dict[str, Any]) -> None:
    """Its row, and below it what can be changed."""
    _row(item)
    if item.get("model"):
        model_drafters.show(item)
    if parameters := item.get("parameters"):
        name = item["name"]
        with st.expander(plain(f"Parameters of {name}"), key=f"parameters-{name}", type="compact"):
            columns = st.columns(2, gap="small")
            for place, parameter in enumerate(parameters):
                with columns[place % 2]:
                    _parameter(name, parameter)


def _row(item: dict[str, Any]) -> None:
    name = item["name"]
    own = model_drafters.facts(item) if item.get("model") else ""
    facts = _kind(item) + _memory(item) + own
    with st.container(horizontal=True, vertical_alignment="center", key=f"row-{name}"):
        st.html(
            f"{chrome.pill(name)} <span class='pl-note'>&nbsp;{facts}</span>",
            width="stretch",
        )
        if name == "none":
            st.html('<span class="pl-note">always on</span>', width="content")
            return
        if own and item["model"]["state"] != "loaded":
            return
        key = fields.key(f"enable_{name}", item["enabled"])
        st.toggle(
            plain(f"Enable {name}"),
            value=item["enabled"],
            key=key,
            label_visibility="collapsed",
            on_change=_enable,
            args=(name, key),
            width="content",
        )


def _parameter(drafter: str, parameter: dict[str, Any]) -> None:
    """An input that starts from the server's value."""
    name, value = parameter["name"], parameter["value"]
    if parameter["kind"] == "float":
        value = float(value)
    key = fields.key(f"parameter_{drafter}_{name}", value)
    label = plain(name)
    text = plain(f"{parameter['text']}. Default {parameter['default']}")
    changed = (drafter, name, key)
    if parameter["kind"] == "bool":
        st.toggle(label, value=bool(value), key=key, help=text, on_change=_change, args=changed)
        return
    whole = parameter["kind"] == "int"
    kind = int if whole else float
    low, high = kind(parameter["low"]), kind(parameter["high"])
    st.number_input(
        label,
        min_value=low,
        max_value=high,
        value=value,
        step=1 if whole else min(0.5, (high - low) / 20),
        format="%d" if whole else "%.2f",
        key=key,
        help=f"{text}, {low} to {high}",
        on_change=_change,
        args=changed,
    )


def _kind(item: dict[str, Any]) -> str:
    kinds = {"none": "plain decoding", "model_free": "no model needed", "model": "model"}
    kind = kinds.get(item["kind"], str(item["kind"]))
    longest = item.get("max_draft_length")
    return escape(f"{kind}, D up to {longest}" if longest else kind)


def _memory(item: dict[str, Any]) -> str:
    """What a drafter's texts take, and whether some did not fit."""
    memory = item.get("memory")
    if not memory:
        return ""
    used, limit = (memory[key] / 2**20 for key in ("used_bytes", "limit_bytes"))
    text = f", {used:,.0f} of {limit:,.0f} MiB"
    return text + (f", {count:,} texts cut short" if (count := memory["truncated"]) else "")


def _enable(name: str, key: str) -> None:
    field, value = f"enable_{name}", st.session_state[key]
    if not fields.is_current(field, key):
        return
    try:
        chrome.client().set_drafter(name, enabled=value)
    except ApiError as error:
        answers.keep(_place(name), error.message, good=False)
        fields.put_back(field)
    else:
        answers.drop(_place(name))
        fields.keep(field, value)


def _change(drafter: str, name: str, key: str) -> None:
    field, value = f"parameter_{drafter}_{name}", st.session_state[key]
    if not fields.is_current(field, key):
        return
    if value is None:  # the field was emptied
        fields.put_back(field)
        return
    try:
        chrome.client().set_drafter(drafter, parameters={name: value})
    except ApiError as error:
        answers.keep(_place(drafter), error.message, good=False)
        fields.put_back(field)
    else:
        answers.drop(_place(drafter))
        fields.keep(field, value)


def _place(name: str) -> str:
    return f"drafter-{name}"
