"""Entry of the console: page set-up, sign-in, shared parts and navigation."""

from __future__ import annotations

import streamlit as st

from ui import chrome

st.set_page_config(
    page_title="Paceline", page_icon=chrome.ICON, layout="wide", initial_sidebar_state=260
)
st.logo(chrome.LOGO, size="large", icon_image=chrome.ICON)
st.html(chrome.STYLE)

page = st.navigation(
    [
        st.Page("app_pages/overview.py", title="Overview", icon=":material/monitoring:"),
        st.Page("app_pages/chat.py", title="Chat", icon=":material/chat:"),
        st.Page("app_pages/controller.py", title="Controller", icon=":material/tune:"),
        st.Page("app_pages/benchmarks.py", title="Benchmarks", icon=":material/speed:"),
    ]
)
chrome.require_key()
chrome.sidebar()
chrome.banner()
page.run()
