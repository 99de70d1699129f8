"""The engine process: `python -m engine.worker --socket PATH --config JSON`.

Listens on a Unix socket (mode 0600), serves one client, and ends when that client goes. Three
threads: one reads and tokenises, one runs the loop, one writes; queues are the only meeting
points."""

from __future__ import annotations

import argparse
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass

import msgspec
import torch

from engine.build import adaptive, calibrate, open_engine, open_target
from engine.calls import answer, controller_state, drafter_states
from engine.config import EngineConfig
from engine.errors import RequestError, StartError
from engine.frames import Connection
from engine.intake import Intake
from engine.loop import Engine
from engine.request import Request
from engine.text import Text
from engine.wire import (
    Call,
    Cancel,
    Detokenize,
    Failed,
    FromEngine,
    Hello,
    Progress,
    Reply,
    Snapshot,
    StartFailed,
    Submit,
    Tokenize,
)

log = logging.getLogger("engine.worker")

SNAPSHOT_SECONDS = 1.0
CONNECT_SECONDS = 60.0
EXIT_CANNOT_START = 3


@dataclass(frozen=True, slots=True)
class _Closed:
    """The client has gone."""


Inbox = queue.SimpleQueue[Request | Cancel | Call | _Closed]
Outbox = queue.SimpleQueue[FromEngine | None]


def main() -> int:
    parser = argparse.ArgumentParser(prog="engine.worker", description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--config", required=True, help="EngineConfig as JSON")
    arguments = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the API process decides when to stop
    config = msgspec.json.decode(arguments.config, type=EngineConfig)
    connection = _accept(arguments.socket)
    try:
        return _serve(config, connection)
    finally:
        connection.close()


def _accept(path: str) -> Connection:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        old = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(old)
        listener.listen(1)
        listener.settimeout(CONNECT_SECONDS)  # an API process that died leaves no orphan
        sock, _ = listener.accept()
    sock.setblocking(True)
    return Connection(sock)


def _serve(config: EngineConfig, connection: Connection) -> int:
    outbox: Outbox = queue.SimpleQueue()
    inbox: Inbox = queue.SimpleQueue()
    writer = threading.Thread(
        target=_write, args=(connection, outbox, inbox), name="writer", daemon=True
    )
    writer.start()

    def report(stage: str, fraction: float, message: str) -> None:
        outbox.put(Progress(stage, fraction, message))

    try:
        begin = time.perf_counter()
        target = open_target(config, report)
        loaded = time.perf_counter()
        calibration = calibrate(config, target, report)
        calibrated = time.perf_counter()
    except StartError as error:
        log.error("cannot start: %s", error.message)
        outbox.put(StartFailed(error.code, error.message))
        outbox.put(None)
        writer.join(timeout=5)
        return EXIT_CANNOT_START
    controller = adaptive(config, calibration.points)
    engine, intake = open_engine(config, target, controller, outbox.put)
    outbox.put(
        Hello(
            model=config.served_name or config.model,
            architecture=target.loaded.architecture,
            dtype=str(target.device.dtype).removeprefix("torch."),
            device=str(target.device.torch_device),
            attention=target.executor.attention.name,
            threads=torch.get_num_threads(),
            context_length=target.loaded.decoder.shape.context_length,
            vocabulary=target.loaded.decoder.shape.vocabulary,
            max_draft_length=config.max_draft_length,
            max_batch=config.max_batch,
            total_pages=target.pool.pages,
            page_size=target.pool.page_size,
            drafters=drafter_states(engine),
            controller=controller_state(engine),
            pid=os.getpid(),
            load_ms=1e3 * (loaded - begin),
            calibration_ms=1e3 * (calibrated - loaded),
            calibration_cached=calibration.cached,
        )
    )
    reader = threading.Thread(
        target=_read,
        args=(connection, intake, target.text, engine, inbox, outbox),
        name="reader",
        daemon=True,
    )
    reader.start()
    _loop(engine, target.text, inbox, outbox)
    return 0


def _write(connection: Connection, outbox: Outbox, inbox: Inbox) -> None:
    """Send messages in order until None. An engine that cannot answer any more ends."""
    try:
        while (message := outbox.get()) is not None:
            connection.send(message)
    except OSError:
        log.info("the client has gone")
    except Exception:
        log.exception("a message could not be sent")
    inbox.put(_Closed())


def _read(
    connection: Connection,
    intake: Intake,
    text: Text,
    engine: Engine,
    inbox: Inbox,
    outbox: Outbox,
) -> None:
    """Check and tokenise what comes in, so that the loop never waits for text."""
    while True:
        try:
            message = connection.receive()
        except msgspec.MsgspecError as error:
            log.error("ignored a message that is not part of the contract: %s", error)
            continue
        except Exception:
            log.exception("closing the connection")
            message = None
        match message:
            case None:
                inbox.put(_Closed())
                return
            case Submit():
                try:
                    inbox.put(intake.request(message))
                except RequestError as error:
                    outbox.put(Failed(message.id, error.code, error.message, error.param))
                except Exception:
                    log.exception("request %s could not be read", message.id)
                    outbox.put(Failed(message.id, "internal", "the request could not be read."))
            case Call(body=Tokenize() | Detokenize()):
                outbox.put(_reply(message, engine, text))
            case _:
                inbox.put(message)


def _reply(call: Call, engine: Engine, text: Text) -> Reply:
    try:
        return Reply(call.call, answer(call.body, engine, text))
    except RequestError as error:
        return Reply(call.call, None, error.code, error.message)
    except Exception:
        log.exception("a call failed")
        return Reply(call.call, None, "internal", "the engine failed to answer.")


def _loop(engine: Engine, text: Text, inbox: Inbox, outbox: Outbox) -> None:
    """Run steps while there is work, else wait for some; a snapshot every second."""
    last = time.monotonic()
    forwards = engine.executor.forwards
    worked = False
    while True:
        now = time.monotonic()
        if now - last >= SNAPSHOT_SECONDS:
            outbox.put(_snapshot(engine, now - last, engine.executor.forwards - forwards))
            last, forwards = now, engine.executor.forwards
        try:
            wait = 0.0 if worked else max(0.0, last + SNAPSHOT_SECONDS - now)
            while True:
                message = inbox.get(timeout=wait) if wait else inbox.get_nowait()
                wait = 0.0
                match message:
                    case _Closed():
                        return
                    case Request():
                        engine.submit(message)
                    case Cancel(id=name):
                        engine.cancel(name)
                    case Call():
                        outbox.put(_reply(message, engine, text))
        except queue.Empty:
            pass
        worked = engine.step()


def _snapshot(engine: Engine, interval_s: float, forwards: int) -> Snapshot:
    interval = engine.meter.take()
    scheduler = engine.scheduler
    return Snapshot(
        time=time.time(),
        interval_s=interval_s,
        steps=interval.steps,
        forwards=forwards,
        tokens=interval.tokens,
        drafted_tokens=interval.drafted_tokens,
        prefill_tokens=interval.prefill_tokens,
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        batch_mean=interval.batch_mean,
        batch_max=interval.batch_max,
        free_pages=scheduler.pages.free,
        total_pages=scheduler.pages.total,
        tpot_ms=interval.tpot_ms,
        step_ms_p50=interval.step_ms_p50,
        step_ms_p99=interval.step_ms_p99,
        cells=interval.cells,
        decisions=tuple(engine.controller.take_decisions()),
        controller=controller_state(engine),
        drafters=drafter_states(engine),
        preemptions=scheduler.preemptions,
        prefix_queried_tokens=scheduler.prefix_queried_tokens,
        prefix_hit_tokens=scheduler.prefix_hit_tokens,
    )


if __name__ == "__main__":
    raise SystemExit(main())
