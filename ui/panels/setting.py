"""The form of the controller's setting: mode, drafter, draft length and limits, set together."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ui import answers, chrome, shaping
from ui.client import ApiError
from ui.setting_form import Setting, SettingForm, in_force

FORM = SettingForm(
    "switch",
    (
        "mode",
        "drafter",
        "draft_length",
        "schedule",
        "max_drafting_requests",
        "tpot_target_ms",
        "draft_budget",
    ),
)
MODES = {"auto": "Auto", "pinned": "Pinned", "off": "Off"}
MEANINGS = {
    "auto": "The controller chooses drafter and draft length for every request and step.",
    "pinned": "Every request uses the drafter you choose; requests with a wish of their own keep "
    "it.",
    "off": "Plain decoding for every request, whatever it asks for.",
}


def changed(setting: Setting) -> bool:
    """Whether the form was drawn from another setting."""
    return FORM.changed(setting)


# Not refreshed by time: a refresh must not come between the operator's clicks. It is drawn anew
# when the setting was changed elsewhere (see `switching`).
@st.fragment(key="switch-form")
def show(drawn: dict[str, Any]) -> None:
    """drawn: the setting to begin from, while the API does not tell a newer one."""
    setting = in_force() or drawn
    form = FORM.key(setting, _told)
    with st.container(border=True, key="card-switch"):
        st.html('<div class="pl-head">Mode</div>')
        mode = st.segmented_control(
            "Mode",
            list(MODES),
            format_func=lambda name: MODES[name],
            default=setting["mode"],
            key=f"{form}-mode",
            label_visibility="collapsed",
            required=True,
            width="stretch",
        )
        st.html(f'<div class="pl-note" style="min-height:2.4rem">{MEANINGS[mode or "auto"]}</div>')
        pin = _pin(form, setting, mode == "pinned")
        limits = _limits(form, setting, mode == "off")
        if st.button("Apply", type="primary", key=f"{form}-apply", width="stretch"):
            wanted = {"mode": mode} | (pin if mode == "pinned" else {}) | limits
            FORM.apply(lambda: chrome.client().set_controller(wanted), shaping.setting_sentence)
        with st.container(key="switch-answer"):
            if not answers.show(FORM.name):  # keeps the place, so that the answer moves nothing
                st.html("&nbsp;")


def _pin(form: str, setting: Setting, pinned: bool) -> dict[str, Any]:
    """The inputs of mode pinned: drafter, and draft_length or schedule."""
    enabled, longest = _enabled(), max(1, setting["max_draft_length"])
    now = setting.get("drafter")
    names = enabled if now is None or now in enabled else [*enabled, now]
    wanted = now or next((name for name in names if name != "none"), "none")
    drafter = st.selectbox(
        "Drafter",
        names,
        index=names.index(wanted) if wanted in names else 0,
        format_func=lambda name: name if name in enabled else f"{name} (disabled)",
        key=f"{form}-drafter",
        disabled=not pinned,
    )
    drafting = pinned and drafter != "none"
    length = setting.get("draft_length")
    fixed = st.toggle(
        "Fixed draft length",
        value=length is not None,
        key=f"{form}-fixed",
        disabled=not drafting,
    )
    chosen = st.slider(
        "Draft length D (tokens)",
        0,
        longest,
        value=min(4, longest) if length is None else length,
        key=f"{form}-length",
        disabled=not (drafting and fixed),
        help="Drafted tokens per request and step; otherwise the controller chooses",
    )
    schedule = setting.get("schedule") or []
    free = drafting and not fixed and drafter == now
    kept = bool(schedule) and st.checkbox(
        f"Draft schedule: D {shaping.schedule(schedule)}",
        value=True,
        key=f"{form}-schedule",
        disabled=not free,
        help="D by the number of decoding requests, for this drafter, in place of a fixed one. "
        "Taken away here, it can be set again over the API only",
    )
    return {
        "drafter": drafter,
        "draft_length": chosen if fixed and drafter != "none" else None,
        "schedule": schedule if kept and free else [],
    }


def _limits(form: str, setting: Setting, off: bool) -> dict[str, Any]:
    """The inputs of the limits, which every mode but off has."""
    most = _whole(
        form,
        setting,
        "max_drafting_requests",
        "Draft while at most … requests decode",
        off,
        "While more requests decode, all decode plainly; empty for no limit",
    )
    left, right = st.columns(2)
    with left:
        target = _target(form, setting, off)
    with right:
        budget = _whole(
            form,
            setting,
            "draft_budget",
            "Draft budget (tokens)",
            off,
            "Most drafted tokens of a step, over all requests, pins and wishes too; empty or 0 for "
            "none",
        )
    given = {"max_drafting_requests": most, "tpot_target_ms": target, "draft_budget": budget}
    return {} if off else given


def _whole(
    form: str, setting: Setting, field: str, label: str, off: bool, meaning: str
) -> int | None:
    # Seeded this way an input can be emptied; with a first value of its own it would return to it.
    st.session_state.setdefault(f"{form}-{field}", setting.get(field))
    return st.number_input(
        label,
        min_value=0,
        max_value=1_000_000,
        value=None,
        placeholder="none",
        key=f"{form}-{field}",
        disabled=off,
        help=meaning,
    )


def _target(form: str, setting: Setting, off: bool) -> float | None:
    st.session_state.setdefault(f"{form}-tpot_target_ms", setting.get("tpot_target_ms"))
    return st.number_input(
        "TPOT target (ms)",
        min_value=0.0,
        max_value=600_000.0,
        value=None,
        step=1.0,
        format="%g",
        placeholder="none",
        key=f"{form}-tpot_target_ms",
        disabled=off,
        help="Time per output token that drafting keeps for every request of a step, where it can; "
        "empty or 0 for none",
    )


def _enabled() -> list[str]:
    """Names of the enabled drafters, as last seen."""
    try:
        names = [item["name"] for item in chrome.client().drafters() if item["enabled"]]
        st.session_state["switch_names"] = names or ["none"]
    except ApiError:
        pass  # the banner says why
    return st.session_state.get("switch_names", ["none"])


def _told(setting: Setting) -> str:
    by = setting.get("set_by") or "somebody"
    return (
        f"Changed elsewhere, by {by} at {shaping.clock(setting.get('set_at'))} UTC; the form shows "
        f"it now, and what was not applied is gone. {shaping.setting_sentence(setting)}"
    )
