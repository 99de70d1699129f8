"""The command and the environment with which the console starts."""

from __future__ import annotations

import pytest

from ui.launch import command, environment

KEY = "pl-secret-of-the-console"


def test_the_console_listens_on_loopback_and_sends_no_statistics() -> None:
    arguments = command(8501, "http://127.0.0.1:8000")
    for flag in (
        "--server.address=127.0.0.1",
        "--server.port=8501",
        "--server.headless=true",
        "--server.enableXsrfProtection=true",
        "--browser.gatherUsageStats=false",
        "--client.showErrorDetails=none",
    ):
        assert flag in arguments


def test_a_foreign_host_name_is_refused_unless_the_address_is_a_wildcard() -> None:
    assert "--server.allowedHosts=localhost" in command(8501, "http://127.0.0.1:8000")
    everywhere = command(8501, "http://server:8000", "0.0.0.0")
    assert not any(argument.startswith("--server.allowedHosts") for argument in everywhere)


def test_the_key_travels_in_the_environment_only() -> None:
    made = environment("http://127.0.0.1:8000/", KEY, base={"PATH": "/bin"})
    assert made["PACELINE_CONSOLE_KEY"] == KEY
    assert made["PACELINE_API_URL"] == "http://127.0.0.1:8000"
    assert "PACELINE_PUBLIC_API_URL" not in made
    assert not any(KEY in argument for argument in command(8501, "http://127.0.0.1:8000"))


def test_the_console_inherits_no_secret_of_the_server() -> None:
    names = ("ADMIN_KEY", "DATABASE_URL", "CONSOLE_KEY")
    secrets = {f"PACELINE_{name}{end}": "x" for name in names for end in ("", "_FILE")}
    base = {"PATH": "/bin", "PACELINE_UI_PORT": "8501", **secrets}
    made = environment("http://127.0.0.1:8000", None, base=base)
    assert set(made) == {"PATH", "PACELINE_UI_PORT", "PACELINE_API_URL", "PYTHONPATH"}
    made = environment("http://127.0.0.1:8000", KEY, base=base)
    assert made["PACELINE_CONSOLE_KEY"] == KEY


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="must start with http"):
        command(8501, "127.0.0.1:8000")
