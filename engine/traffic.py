"""The engine's two socket threads: one reads and checks what comes in, one writes what goes out."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.admission import Admission
from engine.calls import answer, drafter_state
from engine.draft_models.live import LiveModels
from engine.errors import RequestError
from engine.frames import BadFrame, Connection
from engine.intake import Intake
from engine.loop import Engine
from engine.outbox import Outbox, Pulse
from engine.request import Request
from engine.text import Text
from engine.wire import (
    Call,
    Cancel,
    Detokenize,
    EncodeCorpus,
    LoadDrafter,
    LoadPlan,
    Reply,
    StartRecording,
    Submit,
    Tokenize,
    UnloadDrafter,
)

log = logging.getLogger("engine.worker")

HEARTBEAT_S = 0.5
CLIENT_PATIENCE_S = 60.0
"""A client that takes nothing for so long while the outbox is full counts as gone."""


@dataclass(frozen=True, slots=True)
class Errand:
    """Something to do between two steps, from another thread of the engine."""

    run: Callable[[], None]


Incoming = Request | Cancel | Call | Errand


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


def reply(
    call: Call, engine: Engine, text: Text, outbox: Outbox, models: LiveModels | None = None
) -> None:
    """Answer a call, with an error at least; one that loads a drafter later, from the loop."""

    def respond(result: object) -> None:
        if isinstance(result, RequestError):
            answered = Reply(call.call, None, result.code, result.message, result.param)
        else:
            answered = Reply(call.call, result)
        try:
            outbox.put(answered)
        except RequestError as error:  # a number or a text that no frame can hold
            log.error("the answer to a %s is lost: %s", type(call.body).__name__, error)
            outbox.put(Reply(call.call, None, "internal", "the answer cannot be sent."))

    def loaded(found: LoadPlan | str | RequestError) -> None:
        try:
            named = isinstance(found, str)
            respond(drafter_state(engine, found, models) if named else found)
        except Exception:  # an errand of the loop, which must not end with it
            log.exception("a call failed")
            respond(RequestError("internal", "the engine failed to answer."))

    try:
        match call.body:
            case LoadDrafter() if models is not None:
                models.load(call.body, loaded)
            case UnloadDrafter(name=name) if models is not None:
                models.unload(call.body)
                respond(drafter_state(engine, name, models))
            case StartRecording():
                engine.recorder.start(call.body, outbox.put)
                respond({})
            case body:
                respond(answer(body, engine, text, models))
    except RequestError as error:
        respond(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic of a library in Rust is no Exception
        log.exception("a call failed")
        respond(RequestError("internal", "the engine failed to answer."))
