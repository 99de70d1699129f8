"""A server that answers as OpenAI's would, or fails in the way that the prompt names."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

MODEL = "fake-model"


class Fake(msgspec.Struct):
    """url: of the running server. bodies: of the requests that came, in order; headers: theirs.
    recording: the status of an answer to rows that are to be recorded."""

    url: str = ""
    recording: int = 404
    bodies: list[dict[str, Any]] = []
    headers: list[dict[str, str]] = []


def event(content: str | None = None, **more: Any) -> bytes:
    choice: dict[str, Any] = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    return b"data: " + json.dumps({"choices": [choice | more]}).encode() + b"\n\n"


def words(count: int) -> list[bytes]:
    return [event(f"w{n} ") for n in range(count)]


def usage(tokens: Any, **more: Any) -> bytes:
    counts = {"prompt_tokens": 7, "completion_tokens": tokens}
    return b"data: " + json.dumps({"choices": [], "usage": counts, **more}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
END = event(None, finish_reason="stop")

SCRIPTS: dict[str, Sequence[bytes | float]] = {
    "fine": [*words(4), END, usage(6), DONE],
    "lines": [
        b": a comment\r\n\r\nevent: message\r\n",
        b'data:{"choices": [{"delta": {"cont',
        b'ent": "split \xe2\x80',
        b'\xa8 text"}}]}\r\n\r\n',
        usage(3),
        DONE,
    ],
    "uncounted": [*words(5), END, DONE],
    "cut": words(3),
    "finished, no done": [*words(2), END, usage(2)],
    "stall": [*words(1), 30.0, *words(1), DONE],
    "garbage": [*words(1), b"data: {nonsense\n\n", DONE],
    "wrong type": [b'data: {"choices": {"0": "x"}}\n\n', DONE],
    "negative": [*words(2), END, usage(-5), DONE],
    "infinite": [*words(2), END, b'data: {"usage": {"completion_tokens": 1e999}}\n\n', DONE],
    "error event": [*words(2), b'data: {"error": {"message": "out of memory"}}\n\n', DONE],
    "no text": [END, usage(1), DONE],
    "odd metrics": [*words(2), END, usage(2, metrics=[1, 2]), DONE],
    "deep": [*words(1), b'data: {"choices": [], "x": ' + b"[" * 100_000 + b"\n\n", DONE],
    "deep error": [b'data: {"error": ' + b'{"error":' * 900 + b'"x"' + b"}" * 901 + b"\n\n", DONE],
    "endless line": [b"x" * (9 << 20), DONE],
}
"""What is sent after a 200, a number being seconds of silence. Then the connection closes."""


@contextmanager
def fake_server() -> Generator[Fake]:
    loop = asyncio.new_event_loop()
    fake = Fake()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def begin() -> asyncio.Server:
        return await asyncio.start_server(lambda r, w: answer(fake, r, w), "127.0.0.1", 0)

    server = asyncio.run_coroutine_threadsafe(begin(), loop).result(10)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        asyncio.run_coroutine_threadsafe(finish(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def finish(server: asyncio.Server) -> None:
    """Stop listening, and end the answers that are still being given."""
    server.close()
    answers = asyncio.all_tasks() - {asyncio.current_task()}
    for task in answers:
        task.cancel()
    await asyncio.gather(*answers, return_exceptions=True)


async def answer(fake: Fake, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
    body = await reader.readexactly(int(fields.get("content-length", "0")))
    try:
        await respond(fake, head.split(" ")[1], fields, body, writer)
        await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def respond(
    fake: Fake, path: str, fields: dict[str, str], body: bytes, writer: asyncio.StreamWriter
) -> None:
    if path == "/v1/models":
        return whole(writer, 200, json.dumps({"data": [{"id": MODEL}]}).encode())
    if path == "/api/benchmarks":
        return whole(writer, fake.recording, b'{"detail": "as it was told"}')
    request = json.loads(body)
    fake.bodies.append(request)
    fake.headers.append(fields)
    what = request["messages"][-1]["content"]
    if what == "500":
        return whole(writer, 500, b'{"error": {"message": "it broke"}}')
    if what == "html":
        return whole(writer, 502, b"<html>Bad gateway</html>")
    if what == "hang up":
        return None
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
    if what == "half a chunk":
        writer.write(b"transfer-encoding: chunked\r\n\r\n100\r\n" + words(1)[0])
        return None
    writer.write(b"connection: close\r\n\r\n")
    for part in SCRIPTS.get(what, SCRIPTS["fine"]):
        if isinstance(part, bytes):
            writer.write(part)
            await writer.drain()
        else:
            await asyncio.sleep(part)
    return None


def whole(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + body)
