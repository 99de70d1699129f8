"""Who chooses drafter and draft length: switch the policy, or compare two on the same traffic."""

from __future__ import annotations

from html import escape
from typing import Any

import streamlit as st

from ui import answers, chrome, policies
from ui.client import ApiError
from ui.policies import POLICIES, Policy
from ui.setting_form import Setting, SettingForm, in_force

FORM = SettingForm("policy", ("policy", "policy_options", "ab_policy", "ab_options", "ab_share"))
HELP = "KEY=VALUE with spaces in between; what is left out has its default"
EMPTY_AB = "No request has ended since the comparison began."


def changed(setting: Setting) -> bool:
    """Whether the form was drawn from another policy."""
    return FORM.changed(setting)


def show(setting: dict[str, Any]) -> None:
    """setting: the controller's setting in force."""
    with st.container(border=True, key="card-policy"):
        st.html(
            '<div class="pl-head">Policy</div><div class="pl-note">Who chooses in mode auto: '
            "Paceline's controller or the rule of another engine. Mode, pin and limits stay as "
            "they are; what the old policy had learned of acceptance is gone.</div>"
        )
        _form(setting)
        _results()


# Not refreshed by time: a refresh must not come between the operator's clicks. It is drawn anew
# when the policies were changed elsewhere (see `switching`).
@st.fragment(key="policy-form")
def _form(drawn: dict[str, Any]) -> None:
    setting = in_force() or drawn
    form = FORM.key(setting, _told)
    left, right = st.columns(2, gap="medium")
    with left:
        policy, options = _choice(form, "Policy", setting, "policy", "policy_options")
    second, second_options, share = None, "", 0.5
    with right:
        if st.toggle(
            "Compare with a second policy (A/B)",
            value=bool(setting.get("ab_policy")),
            key=f"{form}-ab",
            help="Each request belongs to arm A or B by a hash of its number",
        ):
            second, second_options = _choice(
                f"{form}-b", "Second policy (arm B)", setting, "ab_policy", "ab_options"
            )
            percent = st.slider(
                "Requests in arm B (%)",
                0,
                100,
                round(100 * setting.get("ab_share", 0.5)),
                key=f"{form}-share",
            )
            share = percent / 100.0
        else:
            st.html(
                '<div class="pl-note">Two policies share the traffic, each with its own '
                "acceptance and decisions; their results appear here.</div>"
            )
    if st.button("Apply policy", key=f"{form}-apply", type="primary"):
        wanted = policies.change(policy, options, second, second_options, share)
        FORM.apply(lambda: chrome.client().set_policy(wanted), _said)
    answers.show(FORM.name)


def _choice(
    key: str, label: str, setting: dict[str, Any], name: str, options: str
) -> tuple[str, str]:
    """A policy and its options; the text starts from what is in force."""
    names = list(POLICIES)
    now = setting.get(name) or "off"
    if now not in names:
        names.append(now)  # of a newer server
    start = names.index(now)
    chosen = st.selectbox(label, names, index=start, key=f"{key}-name")
    known = POLICIES.get(chosen, Policy("", "no list of its options here"))
    st.html(f'<div class="pl-note">{escape(known.meaning)}</div>')
    text = st.text_input(
        "Options",
        value=(setting.get(options) or "") if chosen == now else "",
        placeholder=known.options or "takes no options",
        key=f"{key}-options-{chosen}",
        max_chars=4096,
        disabled=not known.options,
        help=HELP,
    )
    if known.options:
        st.html(
            f'<div class="pl-note" style="overflow-wrap:anywhere">Defaults: '
            f"<code>{escape(known.options)}</code></div>"
        )
    return chosen, text


def _said(setting: Setting) -> str:
    return f"In force: {policies.in_force(setting)}."


def _told(setting: Setting) -> str:
    by = setting.get("set_by") or "somebody"
    return (
        f"Changed elsewhere, by {by}; the form shows it now, and what was not applied is gone. "
        f"{_said(setting)}"
    )


@st.fragment(run_every=10.0, key="policy-results")
def _results() -> None:
    """The arms' results, while there are two."""
    try:
        split = (chrome.client().state().get("controller") or {}).get("ab_policy")
        report = chrome.client().report() if split else {}
    except ApiError:
        return  # the banner says why
    if not split:
        return
    arms = policies.counts(report)
    text = ". ".join(f"Arm {label}, {said}" for label, said in arms.items())
    st.html(
        '<div class="pl-head" data-testid="ab-results">Results so far</div>'
        f'<div class="pl-note">{escape(text or EMPTY_AB)}. In brackets 90 % intervals over '
        "requests that have ended.</div>"
    )
    if found := policies.comparison(report):
        st.html(_table(found))


def _table(found: list[policies.Compared]) -> str:
    heads = ("Measure", "Arm A", "Arm B", "B over A", "So far")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(
        f'<tr><td><b>{escape(one.name)}</b><div class="pl-note">{escape(one.meaning)}</div></td>'
        + "".join(f'<td class="nowrap">{escape(text)}</td>' for text in (one.a, one.b, one.ratio))
        + f"<td>{escape(one.verdict)}</td></tr>"
        for one in found
    )
    return f'<table class="pl-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
