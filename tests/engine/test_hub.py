"""Hugging Face ids: what is taken from the hub and what is left there, against a local hub."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants
import pytest

from engine.errors import StartError
from engine.locate import find_model

COMMIT = "0" * 39 + "1"


def mark(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Hub(ThreadingHTTPServer):
    """Answers what the hub's client asks for: a repository's listing and its files."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Repository)
        self.files: dict[str, bytes] = {}
        self.taken: set[str] = set()


class Repository(BaseHTTPRequestHandler):
    server: Hub  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        files = self.server.files
        if path.startswith("/api/models/owner/name/tree"):
            listing = [
                {"type": "file", "path": name, "size": len(data), "oid": mark(data)}
                for name, data in files.items()
            ]
            return self.send(json.dumps(listing).encode(), body)
        if path.startswith("/api/models/owner/name"):
            siblings = [{"rfilename": name} for name in files]
            info = {"id": "owner/name", "sha": COMMIT, "siblings": siblings}
            return self.send(json.dumps(info).encode(), body)
        name = path.rsplit("/", 1)[1]
        if not path.startswith("/owner/name/resolve/") or name not in files:
            return self.send(b"", body, status=404)
        if body:
            self.server.taken.add(name)
        return self.send(files[name], body)

    def send(self, data: bytes, body: bool, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{mark(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        monkeypatch.setattr(
            huggingface_hub.constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            address + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        yield server
        server.shutdown()


def test_a_hub_id_takes_safetensors_and_text_and_leaves_pickles_and_code(
    hub: Hub, tmp_path: Path
) -> None:
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
    left = {"pytorch_model.bin", "modeling_mine.py", "model.Q4.gguf", "model.onnx"}
    hub.files = {name: name.encode() for name in sorted(wanted | left)}
    folder = find_model("owner/name", tmp_path)
    assert {path.name for path in folder.iterdir()} == wanted
    assert hub.taken == wanted


def test_a_hub_id_of_several_gguf_files_asks_for_one(hub: Hub, tmp_path: Path) -> None:
    hub.files = {name: b"GGUF" for name in ("README.md", "a.Q4.gguf", "a.Q8.gguf")}
    with pytest.raises(StartError, match=r"2 GGUF files .a\.Q4\.gguf, a\.Q8\.gguf") as caught:
        find_model("owner/name", tmp_path)
    assert caught.value.code == "model_ambiguous"
    assert not hub.taken


def test_the_only_gguf_file_of_a_hub_id_is_taken(hub: Hub, tmp_path: Path) -> None:
    hub.files = {"README.md": b"#", "only.gguf": b"not a model"}
    with pytest.raises(StartError, match=r"only\.gguf does not begin as a GGUF file"):
        find_model("owner/name", tmp_path)
    assert hub.taken == {"only.gguf"}


def test_a_hub_id_that_is_not_there_says_so(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="neither a local folder nor reachable") as caught:
        find_model("owner/other", tmp_path)
    assert caught.value.code == "model_download_failed"
