"""docs/architecture.md lists every source file with the file's own first line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.packaging import layout


@pytest.mark.parametrize("path", layout.source_files(), ids=str)
def test_every_module_says_in_one_line_what_it_is(path: Path) -> None:
    line = layout.first_line(path)
    assert line, f"{path} has no docstring"
    assert len(line) <= 110


def test_the_layout_page_is_up_to_date() -> None:
    page = layout.PAGE.read_text("utf-8")
    assert layout.listing() in page, "run: make docs"


@pytest.mark.parametrize(
    "page", sorted([layout.ROOT / "README.md", *layout.PAGE.parent.glob("*.md")])
)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8"))
    missing = [
        link for link in links if ":" not in link and not (page.parent / link).resolve().exists()
    ]
    assert not missing
