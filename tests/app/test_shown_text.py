"""Names and words of others on the terminal: shown as they are, whatever markup is in them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from app.chat import event_of, finish
from app.cli import main
from app.failures import Failure
from app.progress import Bars
from app.train_report import show

ODD = "a[/b] [de] :smile:"


def test_keys_are_listed_whatever_they_are_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    where = ["--data-dir", str(tmp_path)]
    assert main(["keys", "create", ODD, *where]) == 0
    assert main(["keys", "list", *where]) == 0
    assert ODD in capsys.readouterr().out


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_the_names_of_files(terminal: bool):
    out = io.StringIO()
    screen = Console(file=out, force_terminal=terminal, width=160, color_system=None)
    with Bars(screen) as bars:
        bars.update("upload", 0.5, ODD)
    assert ODD in out.getvalue()


def test_progress_on_a_terminal_that_is_gone_ends_quietly():
    class Gone(io.StringIO):
        gone = False

        def write(self, text: str) -> int:
            if self.gone:
                raise OSError(5, "Input/output error")
            return len(text)

    out = Gone()
    with Bars(Console(file=out, force_terminal=True)) as bars:
        bars.update("bench", 0.5, "x")
        out.gone = True


def test_categories_of_training_are_shown():
    numbers: dict[str, Any] = {
        "prompts": 3,
        "tokens_per_step": 1.5,
        "positions": {"mtp": [{"position": 1, "reached": 4, "rate": 0.5}]},
        "acceptance_length": {"mtp": 1.5},
    }
    found = {"modes": {"mtp": {"temperatures": {"0": {**numbers, "categories": {ODD: numbers}}}}}}
    out = io.StringIO()
    show(found, Console(file=out, width=120))
    assert ODD in out.getvalue()


def test_a_servers_words_are_shown_in_a_chat():
    out = io.StringIO()
    event = {"type": "error", "error": {"message": ODD}}
    assert finish(event, Console(file=out, width=120)) is None
    assert ODD in out.getvalue()


@pytest.mark.parametrize("message", ["<html>", "[1]", "{}", '{"type": 5}', "[" * 100_000, b"\xff"])
def test_what_is_no_event_ends_a_chat(message: str | bytes):
    with pytest.raises(Failure, match="The server sent something that is no event"):
        event_of(message)
    assert event_of('{"type": "x", "y": 1}') == {"type": "x", "y": 1}
