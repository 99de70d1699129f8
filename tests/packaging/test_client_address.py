"""Where client commands look for the server when they are not told."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator

import pytest

from app.cli import main
from app.options import build_parser


def with_url(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The option --url of every command that has it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from with_url(one)
        elif "--url" in action.option_strings:
            yield action


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("", "", "http://127.0.0.1:8000"),
        ("", "8123", "http://127.0.0.1:8123"),
        ("0.0.0.0", "8123", "http://127.0.0.1:8123"),
        ("10.0.0.5", "", "http://10.0.0.5:8000"),
        ("::", "8123", "http://[::1]:8123"),
    ],
)
def test_every_client_command_calls_the_server_that_the_variables_start(
    monkeypatch: pytest.MonkeyPatch, host: str, port: str, expected: str
) -> None:
    monkeypatch.setenv("PACELINE_HOST", host)
    monkeypatch.setenv("PACELINE_PORT", port)
    found = [action.default for action in with_url(build_parser())]
    assert len(found) > 8
    assert set(found) == {expected}


@pytest.mark.parametrize("port", ["99999", "many", "0"])
def test_a_wrong_port_is_told_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], port: str
) -> None:
    monkeypatch.setenv("PACELINE_PORT", port)
    assert main(["version"]) == 0
    with pytest.raises(SystemExit) as stopped:
        main(["drafter", "list", "--key", "k"])
    assert stopped.value.code == 2
    assert "PACELINE_PORT" in capsys.readouterr().err


def test_the_address_that_is_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_PORT", "8123")
    given = ["drafter", "list", "--url", "https://example.org/base"]
    assert build_parser().parse_args(given).url == "https://example.org/base"


def test_the_console_calls_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from app import console

    called: list[str] = []
    monkeypatch.setenv("PACELINE_PORT", "8123")
    monkeypatch.delenv("PACELINE_API_URL", raising=False)
    monkeypatch.setattr(console, "claim_port", lambda *told: socket.socket())
    monkeypatch.setattr(
        console.os, "execve", lambda *told: called.append(told[2]["PACELINE_API_URL"])
    )
    main(["ui"])
    assert called == ["http://127.0.0.1:8123"]
