"""What the engine still has to send, bounded, and the pulse that says that its loop moves."""

from __future__ import annotations

import threading
import time
from collections import deque

from engine.errors import RequestError
from engine.frames import encode
from engine.wire import Deltas, Finished, FromEngine, Heartbeat, PromptLogprobs, Snapshot

_OUTPUT = (Deltas, Finished, PromptLogprobs)
LIMIT_BYTES = 8 * 1024 * 1024


class Outbox:
    """Encoded frames in order. Nothing is ever lost: above its limit the threads that produce
    wait in `room` before they go on, so it holds at most the limit and what one step, or the
    answer to one message, puts in. Any thread may call any method."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._frames: deque[tuple[bytes, bool]] = deque()
        self._changed = threading.Condition()
        self._size = 0
        self._taken = 0
        self._snapshots = 0
        self._closed = False

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return self._size

    @property
    def snapshot_waits(self) -> bool:
        """True until the last snapshot is taken; the next one should cover its time as well."""
        return self._snapshots > 0

    def put(self, message: FromEngine) -> None:
        """Never blocks. Raises RequestError for a message that no frame can hold."""
        try:
            frame = encode(message)
        except ValueError as error:
            advice = " Ask for fewer log probabilities." if isinstance(message, _OUTPUT) else ""
            text = f"the answer cannot be sent: {error}.{advice}"
            raise RequestError("invalid_request", text) from None
        is_snapshot = isinstance(message, Snapshot)
        with self._changed:
            self._frames.append((frame, is_snapshot))
            self._size += len(frame)
            self._snapshots += is_snapshot
            self._changed.notify_all()

    def take(self, timeout_s: float) -> bytes | None:
        """The oldest frame; b"" when there is none within the time, None once closed and empty."""
        with self._changed:
            if not self._frames and not self._closed:
                self._changed.wait(timeout_s)
            if not self._frames:
                return None if self._closed else b""
            frame, is_snapshot = self._frames.popleft()
            self._size -= len(frame)
            self._taken += 1
            self._snapshots -= is_snapshot
            self._changed.notify_all()
            return frame

    @property
    def full(self) -> bool:
        return self._size > self._limit

    def room(self, patience_s: float) -> bool:
        """Wait while it is full. False when nothing was taken for so long, or it was closed."""
        with self._changed:
            while self._size > self._limit and not self._closed:
                taken = self._taken
                if not self._changed.wait_for(
                    lambda seen=taken: self._closed or self._taken != seen, patience_s
                ):
                    return False
            return not self._closed

    def close(self) -> None:
        """Nothing follows; what waits can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Pulse:
    """What the loop does, read by the thread that sends heartbeats."""

    def __init__(self) -> None:
        self._step = 0
        self._since: float | None = None

    def begin(self, step: int) -> None:
        """The loop works from now on towards this step."""
        self._since = time.monotonic()
        self._step = step

    def rest(self) -> None:
        """The loop waits for work or for the client."""
        self._since = None

    def read(self) -> Heartbeat:
        since, step = self._since, self._step
        return Heartbeat(step, None if since is None else 1e3 * (time.monotonic() - since))
