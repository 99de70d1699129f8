"""Length-prefixed msgpack frames over a blocking stream socket."""

from __future__ import annotations

import socket
import struct

import msgspec

from engine.wire import MAX_FRAME_BYTES, FromEngine, ToEngine

_HEADER = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)


class Connection:
    """The engine's end. `receive` from one thread and `send` from another are safe."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def receive(self) -> ToEngine | None:
        """The next message; None when the other side has closed.

        Raises msgspec.MsgspecError for a frame that is no message (the stream stays in step) and
        ConnectionError for one that is too large."""
        header = self._read(_HEADER.size)
        if header is None:
            return None
        (length,) = _HEADER.unpack(header)
        if length > MAX_FRAME_BYTES:
            raise ConnectionError(f"a frame of {length} bytes is above {MAX_FRAME_BYTES}")
        body = self._read(length)
        return None if body is None else _decoder.decode(body)

    def send(self, message: FromEngine) -> None:
        body = _encoder.encode(message)
        self._socket.sendall(_HEADER.pack(len(body)) + body)

    def close(self) -> None:
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
