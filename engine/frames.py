"""Length-prefixed msgpack frames over a blocking stream socket."""

from __future__ import annotations

import contextlib
import socket
import struct

import msgspec

from engine.wire import MAX_FRAME_BYTES, Failed, FromEngine, Reply, ToEngine

_HEADER = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)


class BadFrame(Exception):
    """A frame in step that is no message of the contract. `answer` is for its sender, when the
    frame says which request or call it was."""

    def __init__(self, reason: str, answer: Failed | Reply | None) -> None:
        super().__init__(reason)
        self.answer = answer


def encode(message: FromEngine | ToEngine) -> bytes:
    """Header and body. Raises ValueError for a message above MAX_FRAME_BYTES, or with a number or
    a text that msgpack cannot hold."""
    try:
        body = _encoder.encode(message)
    except OverflowError as error:
        raise ValueError(str(error)) from None
    if len(body) > MAX_FRAME_BYTES:
        kind = type(message).__name__
        raise ValueError(f"a {kind} of {len(body):,} bytes is above {MAX_FRAME_BYTES:,}")
    return _HEADER.pack(len(body)) + body


class Connection:
    """The engine's end. `receive` from one thread and `send` from another are safe."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def receive(self) -> ToEngine | None:
        """The next message; None when the other side has closed, also in the middle of a frame.

        Raises BadFrame for a frame that is no message (the stream stays in step) and
        ConnectionError for one that is too large."""
        header = self._read(_HEADER.size)
        if header is None:
            return None
        (length,) = _HEADER.unpack(header)
        if length > MAX_FRAME_BYTES:
            raise ConnectionError(f"a frame of {length} bytes is above {MAX_FRAME_BYTES}")
        body = self._read(length)
        if body is None:
            return None
        try:
            return _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise BadFrame(str(error), _answer(body, str(error))) from None

    def send(self, message: FromEngine) -> None:
        """Blocks while the other side does not read. Raises ValueError as `encode`."""
        self.send_frame(encode(message))

    def send_frame(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def close(self) -> None:
        """Ends it for the other side too while a thread is still in `receive`, which then ends."""
        with contextlib.suppress(OSError):  # the other side has gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, count: int) -> bytes | None:
        parts: list[bytes] = []
        while count:
            try:
                part = self._socket.recv(min(count, 1 << 20))
            except ConnectionError:
                return None
            if not part:
                return None
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _answer(body: bytes, reason: str) -> Failed | Reply | None:
    """Nobody waits for ever for the answer to a message that was not understood."""
    try:
        fields = msgspec.msgpack.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    match fields:
        case {"type": "submit", "id": str(name)}:
            return Failed(name, "invalid_request", f"the request is malformed: {reason}.")
        case {"type": "call", "call": int(call)}:
            return Reply(call, None, "invalid_request", f"the call is malformed: {reason}.")
        case _:
            return None
