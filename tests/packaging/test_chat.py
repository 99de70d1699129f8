"""`paceline chat` against the real server: turns, colours, refusals."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.chat import coloured, numbers
from tests.conftest import ROOT, Server, clean_environment


def talk(server: Server, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app.cli", "chat", "--url", server.url, "--temperature", "0"]
    return subprocess.run(
        [*command, "--max-tokens", "24", *options],
        cwd=ROOT,
        env=clean_environment(PACELINE_API_KEY=server.inference_key),
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_conversation_of_two_turns(server: Server) -> None:
    done = talk(server, "My name is Ada. Say hello.\nWhat is my name?\n/exit\nnever asked\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 2
    assert len(done.stdout.strip()) > 20


def test_the_answer_is_the_same_in_every_mode(server: Server) -> None:
    texts = {talk(server, "Count to five.\n", "--mode", m).stdout for m in ("none", "ngram:4")}
    assert len(texts) == 1
    assert texts.pop().strip()


def test_an_unknown_drafter_is_said_and_the_chat_goes_on(server: Server) -> None:
    done = talk(server, "Hi\n", "--mode", "nonsense")
    assert done.returncode == 0
    assert "nonsense" in done.stdout


def test_a_wrong_key_ends_with_3(server: Server) -> None:
    done = talk(server, "Hi\n", "--key", "wrong")
    assert done.returncode == 3
    assert "401" in done.stderr
    assert "Traceback" not in done.stderr


def test_each_token_has_the_colour_of_its_origin() -> None:
    pieces = [("Hi", "plain"), (" there", "accepted"), ("!", "bonus")]
    event = {
        "delta": "Hi there!",
        "x_spec": {
            "drafter": "ngram",
            "pieces": [{"token": 1, "text": text, "kind": kind} for text, kind in pieces],
        },
    }
    text = coloured(event)
    assert text.plain == "Hi there!"
    styles = {text.plain[span.start : span.end]: span.style for span in text.spans}
    assert styles[" there"].bgcolor.name == "#2f7ed8"  # type: ignore[union-attr]
    assert styles["!"].color.name == "#c9a227"  # type: ignore[union-attr]


@pytest.mark.parametrize("event", [{"delta": "x"}, {"delta": "x", "x_spec": {"pieces": []}}])
def test_text_without_matching_pieces_is_shown_plainly(event: dict) -> None:
    assert coloured(event).plain == "x"


def test_numbers_leave_out_what_is_not_known() -> None:
    assert numbers({"usage": {"output_tokens": 3}}) == "3 tokens"
