"""Client commands against what is not Paceline, and with what is no key."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from app.cli import main
from app.failures import Failure, SettingsError, StartError
from app.remote import api_key, call, connected, message_of, served_model

DEEP = b"[" * 100_000
FOREIGN = (
    b"<html>Welcome</html>",
    b'{"ok": true}',
    b'{"data": []}',
    b"[1]",
    b"\xff\xfe",
    DEEP,
    b"",
)


class Foreign(BaseHTTPRequestHandler):
    body: ClassVar[bytes] = b""
    status: ClassVar[int] = 200

    def do_GET(self) -> None:
        self.send_response(Foreign.status)
        self.send_header("Content-Length", str(len(Foreign.body)))
        self.end_headers()
        self.wfile.write(Foreign.body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Foreign.status = 200
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("body", FOREIGN)
def test_what_answers_with_something_else_is_named(
    url: str, body: bytes, capsys: pytest.CaptureFixture[str]
):
    Foreign.body = body
    for command in (["corpus", "list"], ["drafter", "list"], ["chat"]):
        assert main([*command, "--url", url, "--key", "k"]) == 3
        assert f"{url}/" in (said := capsys.readouterr().err)
        assert "does not answer like Paceline. Check --url." in said


def test_an_answer_of_ours_is_its_fields(url: str):
    with connected(argparse.Namespace(url=url, key="k")) as client:
        Foreign.body = b'{"name": "x", "size": 2}'
        assert call(client, "GET", "/api/x") == {"name": "x", "size": 2}
        Foreign.body = b"null"
        assert not call(client, "GET", "/api/x")
        Foreign.body = b'{"data": [{"id": "m", "object": "model"}, {"id": "n"}]}'
        assert served_model(url, "k") == "m"
        Foreign.status, Foreign.body = 403, b'{"status": 403, "detail": "not for you"}'
        with pytest.raises(Failure, match="HTTP 403: not for you"):
            call(client, "GET", "/api/x")
        with pytest.raises(StartError, match="HTTP 403: not for you Check --url and --key"):
            served_model(url, "k")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"detail": "gone"}', "gone"),
        (b'["error"]', '["error"]'),
        (b'{"error": null}', '{"error": null}'),
        (b"<html>" + b"x" * 1000, "<html>" + "x" * 294),
        (DEEP, "[" * 300),
        (b"\xff", "\ufffd"),
    ],
)
def test_an_error_has_its_words_whatever_came(body: bytes, words: str):
    assert message_of(body) == words


@pytest.mark.parametrize("key", ["pl-…", "clé", "two\nlines", "tab\t"])
def test_what_no_header_carries_is_no_key(key: str, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SettingsError, match="--key holds characters that no key has"):
        api_key(key)
    monkeypatch.setenv("PACELINE_API_KEY", key)
    with pytest.raises(SettingsError, match="PACELINE_API_KEY holds characters"):
        api_key(None)
    assert api_key("pl-good") == "pl-good"


def test_the_key_of_the_readme_is_a_usage_error(capsys: pytest.CaptureFixture[str]):
    for command in (["chat"], ["corpus", "list"], ["bench", "--prompts", "adversarial"]):
        assert main([*command, "--url", "http://127.0.0.1:9", "--key", "pl-…"]) == 2
        assert "Give the whole key" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_said():
    with (
        pytest.raises(StartError, match="Is the server running"),
        connected(argparse.Namespace(url="http://127.0.0.1:9", key="k")) as client,
    ):
        client.get("/")
