"""The engine's two socket threads: one reads and checks what comes in, one writes what goes out."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time

from engine.admission import Admission
from engine.calls import answer
from engine.errors import RequestError
from engine.frames import BadFrame, Connection
from engine.intake import Intake
from engine.loop import Engine
from engine.outbox import Outbox, Pulse
from engine.request import Request
from engine.text import Text
from engine.wire import Call, Cancel, Detokenize, EncodeCorpus, Reply, Submit, Tokenize

log = logging.getLogger("engine.worker")

HEARTBEAT_S = 0.5
CLIENT_PATIENCE_S = 60.0
"""A client that takes nothing for so long while the outbox is full counts as gone."""

Incoming = Request | Cancel | Call


class Inbox:
    """What the loop is to do next. Holds at most `limit` messages: the reader then waits, and with
    it the client, whose socket fills up."""

    def __init__(self, limit: int) -> None:
        self._messages: queue.Queue[Incoming | None] = queue.Queue(limit)
        self._closed = threading.Event()

    @property
    def closed(self) -> bool:
        """True when the client has gone."""
        return self._closed.is_set()

    def put(self, message: Incoming) -> None:
        self._messages.put(message)

    def get(self, timeout_s: float) -> Incoming | None:
        """The next message, or None when there is none within the time or the client has gone."""
        try:
            return self._messages.get(timeout_s > 0, timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(queue.Full):  # a loop with so much to do does not wait
            self._messages.put_nowait(None)


def write(connection: Connection, outbox: Outbox, pulse: Pulse, inbox: Inbox) -> None:
    """Send frames in order until the outbox is closed, with a heartbeat in between. An engine that
    cannot answer any more ends."""
    due = time.monotonic()
    try:
        while True:
            now = time.monotonic()
            if now >= due:
                connection.send(pulse.read())
                due = now + HEARTBEAT_S
            frame = outbox.take(due - now)
            if frame is None:
                break
            if frame:
                connection.send_frame(frame)
    except OSError:
        log.info("the client has gone")
    except Exception:
        log.exception("a message could not be sent")
    finally:
        outbox.close()
        inbox.close()


def read(
    connection: Connection,
    intake: Intake,
    text: Text,
    engine: Engine,
    inbox: Inbox,
    outbox: Outbox,
) -> None:
    """Check and tokenise what comes in, so that the loop never waits for text."""
    admission = Admission(intake, inbox.put, outbox.put)
    try:
        while outbox.room(CLIENT_PATIENCE_S):
            try:
                message = connection.receive()
            except BadFrame as error:
                log.error("ignored a frame that is no message of the contract: %s", error)
                if error.answer is not None:
                    outbox.put(error.answer)
                continue
            match message:
                case None:
                    break
                case Submit():
                    admission.submit(message)
                case Cancel():
                    admission.cancel(message)
                case Call(body=Tokenize() | Detokenize() | EncodeCorpus()):
                    reply(message, engine, text, outbox)
                case _:
                    inbox.put(message)
    except Exception:
        log.exception("closing the connection")
    finally:  # whatever ends this thread, the engine does not serve on without it
        inbox.close()


def reply(call: Call, engine: Engine, text: Text, outbox: Outbox) -> None:
    """Answer a call, with an error at least."""
    try:
        outbox.put(Reply(call.call, answer(call.body, engine, text)))
    except RequestError as error:
        outbox.put(Reply(call.call, None, error.code, error.message, error.param))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic of a library in Rust is no Exception
        log.exception("a call failed")
        outbox.put(Reply(call.call, None, "internal", "the engine failed to answer."))
