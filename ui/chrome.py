"""What every page shares: sign-in, connection to the API, logo, status, banner, cards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import streamlit as st

from ui import palette, shaping
from ui.client import ApiError, Client
from ui.markdown import plain
from ui.shaping import escape

LOGO = """<svg xmlns="http://www.w3.org/2000/svg" width="176" height="36" viewBox="0 0 176 36">
<g fill="none" stroke-width="4.2" stroke-linecap="round" stroke-linejoin="round">
<path d="M4 8l10 10L4 28" stroke="#4f74c9"/><path d="M15 8l10 10-10 10" stroke="#86a8f5"/>
<path d="M26 8l10 10-10 10" stroke="#ffffff"/></g>
<text x="48" y="25" font-family="Source Sans, Source Sans Pro, Helvetica, Arial, sans-serif"
 font-size="23" font-weight="650" letter-spacing="0.2" fill="#ffffff">Paceline</text></svg>"""

ICON = """<svg xmlns="http://www.w3.org/2000/svg" width="36" height="36" viewBox="0 0 36 36">
<rect width="36" height="36" rx="8" fill="#121a2b"/>
<g fill="none" stroke-width="4" stroke-linecap="round" stroke-linejoin="round">
<path d="M6 9l8 9-8 9" stroke="#4f74c9"/><path d="M14 9l8 9-8 9" stroke="#86a8f5"/>
<path d="M22 9l8 9-8 9" stroke="#ffffff"/></g></svg>"""

STACKED = ", ".join(
    f".st-key-{key}"
    for key in (
        "controller", "card-policy", "card-models", "card-corpora", "card-decisions",
        "card-recordings",
    )
)  # fmt: skip
"""Containers whose columns need room."""

STYLE = f"""<style>
[data-testid="stMainBlockContainer"] {{ max-width: 1560px; padding: 2.6rem 2.6rem 2rem; }}
[data-testid="stMetric"] {{ background: #fff;
  box-shadow: 0 1px 2px rgba(16, 24, 40, 0.05); }}
[data-testid="stMetricLabel"] {{ color: {palette.MUTED}; }}
[data-testid="stMetricValue"] {{ font-variant-numeric: tabular-nums; line-height: 1.25; }}
[class*="st-key-card-"] {{ box-shadow: 0 1px 2px rgba(16, 24, 40, 0.05); }}
.pl-title {{ font-size: 1.6rem; font-weight: 650; letter-spacing: -0.01em; line-height: 1.2; }}
.pl-sub {{ color: {palette.MUTED}; margin-top: 0.15rem; }}
.pl-head {{ font-weight: 600; line-height: 1.3; }}
.pl-note {{ color: {palette.MUTED}; font-size: 0.86rem; line-height: 1.35; }}
.pl-row {{ display: flex; justify-content: space-between; gap: 1rem; }}
.pl-legend {{ display: flex; flex-wrap: wrap; gap: 0 0.9rem; font-size: 0.86rem;
  color: {palette.MUTED}; }}
.pl-legend i {{ display: inline-block; width: 0.7rem; height: 0.7rem; border-radius: 3px;
  margin-right: 0.35rem; }}
.pl-empty {{ display: flex; align-items: center; justify-content: center; text-align: center;
  color: {palette.MUTED}; padding: 0 1.5rem; }}
.pl-table {{ width: 100%; border-collapse: collapse; font-size: 0.92rem; }}
.pl-table th {{ text-align: left; font-weight: 600; color: {palette.MUTED};
  border-bottom: 1px solid {palette.LINE}; padding: 0.35rem 0.6rem; white-space: nowrap; }}
.pl-table td {{ border-bottom: 1px solid #eef1f6; padding: 0.5rem 0.6rem; vertical-align: top; }}
.pl-table tr:last-child td {{ border-bottom: 0; }}
.pl-table .num {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
@media (max-width: 1150px) {{  /* columns that would be too narrow come one below the other */
  :is({STACKED}) [data-testid="stColumn"] {{ min-width: 20rem; }} }}
.pl-wide {{ overflow-x: auto; }}
.pl-wide .pl-table :is(td, th) {{ padding: 0.3rem 0.55rem; white-space: normal; }}
.pl-wide .pl-table td.num {{ white-space: pre; }}
.pl-wide .pl-table th.num {{ white-space: pre-line; }}
.pl-note li {{ font-size: inherit; }}
[data-testid="stMain"] [data-stale="true"] {{ opacity: 1; }}  /* pages refresh all the time */
.pl-groups tr:not(.pl-first) td {{ border-top: 0; }}
.pl-groups tr.pl-first td {{ border-top: 1px solid {palette.LINE}; }}
.pl-groups td:first-child {{ font-weight: 600; }}
.pl-pairs {{ display: grid; grid-template-columns: max-content 1fr; gap: 0.15rem 1rem;
  font-size: 0.92rem; margin-top: 0.4rem; }}
.pl-pairs span:nth-child(odd) {{ color: {palette.MUTED}; }}
.pl-pairs span:nth-child(even) {{ overflow-wrap: anywhere; }}
.pl-table .nowrap {{ white-space: nowrap; }}
.pl-pill {{ display: inline-block; border-radius: 999px; padding: 0.02rem 0.55rem;
  font-size: 0.86rem; font-weight: 600; color: var(--c);
  border: 1px solid color-mix(in srgb, var(--c) 45%, transparent);
  background: color-mix(in srgb, var(--c) 10%, white); }}
.pl-banner {{ border-radius: 0.55rem; padding: 0.7rem 1rem; border: 1px solid;
  border-left-width: 5px; line-height: 1.4; }}
.pl-notice {{ border-left: 4px solid var(--c); border-radius: 0.4rem; padding: 0.5rem 0.8rem;
  background: color-mix(in srgb, var(--c) 8%, white); font-size: 0.93rem; line-height: 1.4; }}
.st-key-switch-answer {{ min-height: 4.2rem; }}
[data-testid]:is([class*="st-key-corpus-"], [class*="st-key-row-"]) {{ flex-wrap: nowrap;
  > :first-child {{ min-width: 0; flex: 1 1 0; }}
  > :not(:first-child) {{ flex-shrink: 0; }} }}
.pl-side {{ font-size: 0.88rem; line-height: 1.65; }}
.pl-side .dot {{ display: inline-block; width: 0.6rem; height: 0.6rem; border-radius: 50%;
  margin-right: 0.45rem; }}
.pl-facts {{ display: grid; grid-template-columns: auto 1fr; gap: 0.1rem 0.9rem;
  margin-top: 0.5rem; }}
.pl-facts span:nth-child(odd) {{ color: #98a4bd; }}
.pl-facts span:nth-child(even) {{ text-align: right; overflow-wrap: anywhere; }}
</style>"""


@st.cache_resource(max_entries=64, ttl=86_400, show_spinner=False)
def _client(url: str, key: str) -> Client:
    return Client(url, key)


def api_url() -> str:
    return os.environ.get("PACELINE_API_URL", "http://127.0.0.1:8000").rstrip("/")


def public_api_url() -> str:
    """Address of the API as the browser reaches it."""
    return os.environ.get("PACELINE_PUBLIC_API_URL", api_url()).rstrip("/")


def _key() -> str:
    return os.environ.get("PACELINE_CONSOLE_KEY") or st.session_state.get("api_key", "")


def client() -> Client:
    """The client of this session's key."""
    return _client(api_url(), _key())


def require_key() -> None:
    """Ends the run with a sign-in form while this session has no key. The key entered stays in
    the session's memory: never in a URL, a cookie or a file."""
    if _key():
        return
    _, middle, _ = st.columns([1, 1.4, 1])
    with middle.form("sign-in", enter_to_submit=True):
        st.html('<div class="pl-title">Sign in</div>')
        st.html(
            '<div class="pl-note">Enter a key with operator or admin scopes. <code>paceline '
            "up</code> prints one at its first start; <code>paceline keys create</code> makes "
            "another.</div>"
        )
        key = st.text_input("API key", type="password", autocomplete="off")
        if st.form_submit_button("Sign in", type="primary") and key:
            _try(key.strip())
    st.stop()


def _try(key: str) -> None:
    if not all("!" <= character <= "~" for character in key):
        st.error("A key has only ASCII letters, digits and signs, without spaces: copy it again.")
        return
    try:
        Client(api_url(), key, fresh_s=0).state()
    except ApiError as error:
        st.error(plain(_explain(error)))
        return
    st.session_state["api_key"] = key
    st.rerun()


def state() -> dict[str, Any] | None:
    """The live state, or None while the API does not give it; the banner then says why."""
    try:
        return client().state()
    except ApiError:
        return None


@st.fragment(run_every=1.0, key="banner")
def banner() -> None:
    """One line over every page while something is wrong with API, engine or storage."""
    text, colour = _trouble()
    with st.container(key="banner", gap=None):
        if text:
            tint = f"color-mix(in srgb, {colour} 7%, white)"
            st.html(
                f'<div class="pl-banner" role="alert" style="border-color:{colour};'
                f'background:{tint};color:{palette.INK}">{text}</div>'
            )


def _trouble() -> tuple[str, str]:
    """(HTML text, colour) of the worst trouble, or ("", "")."""
    try:
        now = client().state()
    except ApiError as error:
        waiting = " The page comes back by itself as soon as it answers."
        return escape(_explain(error)) + (waiting if error.unreachable else ""), palette.BAD
    engine = now.get("engine") or {}
    if engine.get("state") not in ("ready", None):
        return escape(_engine_sentence(engine)), palette.WARNING
    storage = now.get("storage") or {}
    if storage.get("degraded"):
        lost = storage.get("dropped") or 0
        text = "The database is not available. Serving goes on; history is kept aside"
        text += f" ({lost:,} records dropped so far)." if lost else " and stored later."
        return escape(text), palette.WARNING
    return "", ""


def _explain(error: ApiError) -> str:
    if error.status == 401:
        return "The API does not know this key, or the key has expired."
    if error.status == 403:
        return "This key lacks the scope for the console: use one with operator or admin scopes."
    return error.message


def _engine_sentence(engine: dict[str, Any]) -> str:
    try:
        progress = (client().readiness().get("engine") or {}).get("progress") or {}
    except ApiError:
        progress = {}
    detail = ""
    if progress:
        share = shaping.percent(progress.get("fraction"))
        detail = f" {progress.get('message') or progress.get('stage')} ({share})."
    match engine.get("state"):
        case "starting":
            return f"The engine is starting.{detail}"
        case "restarting":
            text = f"The engine has stopped and is starting again.{detail} Requests get a 503."
        case "failed":
            text = "The engine cannot start. Its log is logs/engine.log in the data directory."
        case other:
            return f"The engine is {other}."
    reason = (engine.get("last_death") or {}).get("reason")
    return f"{text} {reason}" if reason else text


@st.fragment(run_every=2.0, key="sidebar-status")
def status() -> None:
    """State of engine and model, under the navigation."""
    now = state()
    engine = (now or {}).get("engine") or {}
    ready = engine.get("state") == "ready"
    colour = "#4cc38a" if ready else "#f2b44b" if now else "#f27979"
    word = str(engine.get("state") or "unknown").capitalize() if now else "No connection"
    model = (now or {}).get("model") or {}
    facts = {
        "Model": model.get("name"),
        "Device": model.get("device"),
        "Precision": model.get("dtype"),
        "Attention": model.get("attention"),
        "Controller": ((now or {}).get("controller") or {}).get("mode"),
        "Up": shaping.duration((now or {}).get("uptime_s")) if now else None,
        "Restarts": engine.get("restarts") if engine.get("restarts") else None,
    }
    rows = "".join(
        f"<span>{name}</span><span>{escape(value)}</span>" for name, value in facts.items() if value
    )
    st.html(
        f'<div class="pl-side"><div role="status"><span class="dot" style="background:{colour}">'
        f'</span>{escape(word)}</div><div class="pl-facts">{rows}</div></div>'
    )


def sidebar() -> None:
    with st.sidebar:
        status()
        if not os.environ.get("PACELINE_CONSOLE_KEY") and st.button("Sign out", key="sign-out"):
            st.session_state.clear()
            st.rerun()


def title(text: str, sub: str) -> None:
    st.html(
        f'<h1 class="pl-title" style="padding:0;margin:0">{escape(text)}</h1>'
        f'<div class="pl-sub">{escape(sub)}</div>'
    )


def card(
    key: str,
    head: str,
    note: str,
    draw: Callable[[], Any] | None,
    empty: str,
    height: int,
    legend: Mapping[str, str] | None = None,
) -> None:
    """A bordered card with a heading, a note and a legend (colour by name); draw puts the content
    in. Without draw, `empty` says why there is none, in the same height, so that nothing jumps
    when data comes."""
    with st.container(border=True, key=f"card-{key}", gap="xxsmall"):
        st.html(
            f'<div class="pl-row"><div class="pl-head">{escape(head)}</div>'
            f'{legend_marks(legend or {})}</div><div class="pl-note">{escape(note)}</div>'
        )
        if draw:
            draw()
        else:
            st.html(f'<div class="pl-empty" style="height:{height}px">{escape(empty)}</div>')


def notice(text: str, *, good: bool) -> None:
    """A confirmation or an error, in place."""
    colour = palette.GOOD if good else palette.BAD
    st.html(
        f'<div class="pl-notice" role="{"status" if good else "alert"}" '
        f'style="--c:{colour}">{escape(text)}</div>'
    )


def legend_marks(legend: Mapping[str, str]) -> str:
    """HTML of a legend: colour by name."""
    marks = "".join(
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in legend.items()
    )
    return f'<div class="pl-legend">{marks}</div>'


def drafter_legend(names: Iterable[str]) -> dict[str, str]:
    """Colour by drafter name, `none` first."""
    ordered = sorted(set(names), key=lambda name: (name != "none", name))
    return {name: palette.drafter_colour(name) for name in ordered}


def pill(drafter: Any) -> str:
    """HTML of a drafter's name in its colour."""
    name = str(drafter)
    return f'<span class="pl-pill" style="--c:{palette.drafter_colour(name)}">{escape(name)}</span>'
