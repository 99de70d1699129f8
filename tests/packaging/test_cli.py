"""The command line: help for everything, exit codes, one-line errors for a user's mistakes."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app import options
from app.cli import main
from tests.conftest import ROOT, clean_environment, free_port


def commands(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple]:
    """(path, parser) of every command and its sub-commands."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from commands(sub, (*path, name))


ALL = dict(commands(options.build_parser()))


def paceline(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        cwd=ROOT,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """The command in this process: another takes seconds for its imports."""
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)

    def run(*arguments: str) -> Done:
        status, said = main(arguments), capsys.readouterr()
        return Done(status, said.out, said.err)

    return run


@pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(path) or "paceline")
def test_every_command_has_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*path, "--help"])
    assert stopped.value.code == 0
    assert "usage: paceline" in capsys.readouterr().out


@pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(path) or "paceline")
def test_every_option_says_what_it_does(path: tuple[str, ...]) -> None:
    for action in ALL[path]._actions:
        assert action.help or isinstance(action, argparse._SubParsersAction), action


@pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(path) or "paceline")
def test_every_command_names_a_function_that_exists(path: tuple[str, ...]) -> None:
    run = ALL[path].get_default("run")
    if run is not None:
        module, function = run.split(":")
        assert callable(getattr(__import__(module, fromlist=[function]), function))


def test_help_loads_neither_torch_nor_the_web_framework() -> None:
    code = (
        "import sys, app.cli as cli\n"
        "try: cli.main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'litestar', 'sqlalchemy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--port", "99999"],
        ["serve", "--mode", "pinned"],
        ["serve", "--drafter", "ngram"],
        ["bench", "--prompts", "gone"],
    ],
)
def test_a_wrong_option_ends_with_2_and_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("paceline: ")
    assert error.count("\n") == 1


def test_a_port_in_use_is_found_before_anything_slow(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        started = time.monotonic()
        done = paceline("serve", "--port", port, "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 3
    assert f"Cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()
    assert time.monotonic() - started < 10


def test_a_wrong_model_path_ends_with_3_and_says_what_to_give(tmp_path: Path) -> None:
    done = paceline(
        "serve", "--port", str(free_port()), "--data-dir", str(tmp_path), "--model", "./no-model"
    )
    assert done.returncode == 3
    assert "./no-model" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_key_pepper_ends_with_3(here: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "pepper").write_bytes(b"short")
    where = ("--data-dir", str(tmp_path))
    for run, command in (
        (paceline, ("serve", "--port", str(free_port()))),
        (here, ("keys", "list")),
    ):
        done = run(*command, *where)
        assert done.returncode == 3
        assert "pepper" in done.stderr
        assert "Restore it from a backup" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_missing_key_pepper_is_not_replaced_while_there_are_keys(
    here: Callable[..., Done], tmp_path: Path
) -> None:
    where = ("--data-dir", str(tmp_path))
    assert here("keys", "create", "laptop", *where).returncode == 0
    pepper = (tmp_path / "pepper").read_bytes()
    (tmp_path / "pepper").unlink()
    for run, command in (
        (paceline, ("serve", "--port", str(free_port()))),
        (here, ("keys", "list")),
    ):
        done = run(*command, *where)
        assert done.returncode == 3
        assert f"{tmp_path}/pepper is missing" in done.stderr
        assert "delete the keys" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "pepper").exists()
    (tmp_path / "pepper").write_bytes(pepper)
    assert "laptop" in here("keys", "list", *where).stdout


def test_keys_of_a_data_directory_that_is_not_there_end_with_3(
    here: Callable[..., Done], tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    for command in (("list",), ("revoke", "key_x")):
        done = here("keys", *command, "--data-dir", str(missing))
        assert done.returncode == 3
        assert f"There is no data directory {missing}" in done.stderr
        assert not missing.exists()


def test_an_unusable_data_directory_ends_with_3(here: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = here("db", "upgrade", "--data-dir", str(tmp_path / "file"))
    assert done.returncode == 3
    assert "Cannot write to the data directory" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("a\nb",), ("",), ("x" * 65,), ("\x1b[31m",), ("laptop", "--days", "9999999")]
)
def test_a_key_that_cannot_be_made_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert main(["keys", "create", *arguments, "--data-dir", str(tmp_path / "data")]) == 2
    assert "Cannot make this key" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_keys_with_odd_times_are_listed(here: Callable[..., Done], tmp_path: Path) -> None:
    import sqlite3

    where = ("--data-dir", str(tmp_path))
    assert here("keys", "create", "laptop", *where).returncode == 0
    for value in (1e300, -1e300, 9e999, 0):
        with sqlite3.connect(tmp_path / "paceline.db") as database:
            database.execute("UPDATE api_keys SET expires_at = ?, last_used = ?", (value, value))
        done = here("keys", "list", *where)
        assert done.returncode == 0, done.stderr
        assert "laptop" in done.stdout


def test_a_database_of_a_newer_version_ends_with_3(
    here: Callable[..., Done], tmp_path: Path
) -> None:
    import sqlite3

    assert here("db", "upgrade", "--data-dir", str(tmp_path)).returncode == 0
    with sqlite3.connect(tmp_path / "paceline.db") as database:
        database.execute("UPDATE alembic_version SET version_num = 'future'")
    done = paceline("serve", "--port", str(free_port()), "--data-dir", str(tmp_path))
    assert done.returncode == 3
    assert "future" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_schema_goes_up_and_down(here: Callable[..., Done], tmp_path: Path) -> None:
    where = ("--data-dir", str(tmp_path))
    assert here("db", "current", *where).stdout.strip() == "empty"
    newest = here("db", "upgrade", *where).stdout.strip()
    assert newest not in ("", "empty")
    assert here("db", "current", *where).stdout.strip() == newest
    assert here("db", "downgrade", "base", *where).stdout.strip() == "empty"


def test_a_key_is_made_listed_and_revoked(here: Callable[..., Done], tmp_path: Path) -> None:
    where = ("--data-dir", str(tmp_path))
    secret = paceline("keys", "create", "laptop", "--role", "operator", *where).stdout.strip()
    assert secret.startswith("pl-")
    listed = here("keys", "list", *where).stdout
    assert "laptop" in listed
    assert secret not in listed
    key_id = next(word for word in listed.split() if word.startswith("key_"))
    assert here("keys", "revoke", key_id, *where).returncode == 0
    assert "revoked" in here("keys", "list", *where).stdout
    assert here("keys", "revoke", "key_none", *where).returncode == 1


def test_clients_say_that_no_server_answers() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = paceline("chat", "--url", url, "--key", "k")
    assert done.returncode == 3
    assert "Is the server running?" in done.stderr
