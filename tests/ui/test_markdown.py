"""Text from outside in labels: shown as it is, and nothing is fetched for it."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ui.markdown import plain

READER = MarkdownIt("commonmark").enable("strikethrough")


@given(st.text(st.sampled_from("ab 19.)(![]<>*_`~#+-&\\:;/=\n\t"), max_size=40))
def test_a_reader_of_markdown_sees_one_line_of_the_text_itself(text: str) -> None:
    wanted = " ".join(text.split())
    shown = READER.render(plain(text))
    if wanted:
        assert re.fullmatch(r"<p>[^<>]*</p>\n", shown)
        assert html.unescape(shown[3:-5]) == wanted
    else:
        assert shown == ""


@pytest.mark.parametrize(
    "text", ["![](http://evil/p.png)", "[here](http://evil)", "<b>x</b>", "# x", "1. x", "&lt;"]
)
def test_images_links_and_markup_stay_text(text: str) -> None:
    assert READER.render(plain(text)) == f"<p>{html.escape(text, quote=False)}</p>\n"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (":red[x] :smile: :material/home:", r"\:red\[x\] \:smile: \:material/home:"),
        ("$x$", r"\$x\$"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),  # else the mark is part of a link
    ],
)
def test_what_streamlit_alone_reads_is_no_mark_either(text: str, written: str) -> None:
    assert plain(text) == written


@pytest.mark.parametrize("name", ["draft_model", "chat: 8 at once", "ngram 45 %", "0.5 requests/s"])
def test_names_stay_as_they_are_for_those_to_whom_labels_are_read(name: str) -> None:
    assert plain(name) == name
