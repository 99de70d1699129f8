"""The engine process: `python -m engine.worker --socket PATH --config JSON`.

Listens on a Unix socket (mode 0600), serves one client, and ends when that client goes. One thread
reads and tokenises, one runs the loop, one writes and sends heartbeats, and three compile grammars
once there are any; bounded queues are the only meeting points. SIGUSR1 writes the stacks of all
threads to standard error."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from typing import NoReturn

import msgspec
import torch

from engine.build import calibrate, open_controller, open_engine, open_target
from engine.calls import controller_state, drafter_states
from engine.config import EngineConfig
from engine.draft_models.live import LiveModels
from engine.errors import StartError
from engine.frames import Connection
from engine.loop import Engine
from engine.outbox import Outbox, Pulse
from engine.request import Request
from engine.text import Text
from engine.traffic import CLIENT_PATIENCE_S, Errand, Inbox, read, reply, write
from engine.wire import Call, Cancel, Hello, Progress, Snapshot, StartFailed

log = logging.getLogger("engine.worker")

SNAPSHOT_SECONDS = 1.0
CONNECT_SECONDS = 60.0
FLUSH_SECONDS = 5.0
EXIT_GAVE_UP = 1
EXIT_CANNOT_START = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="engine.worker", description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--config", required=True, help="EngineConfig as JSON")
    arguments = parser.parse_args()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # how the client asks what hangs
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
    outbox, pulse = Outbox(), Pulse()
    inbox = Inbox(config.max_batch + config.max_waiting)
    writer = threading.Thread(
        target=write, args=(connection, outbox, pulse, inbox), name="writer", daemon=True
    )
    writer.start()
    try:
        return _run(config, connection, outbox, pulse, inbox)
    finally:  # an engine that gives up has told its requests so
        outbox.close()
        writer.join(FLUSH_SECONDS)


def _run(
    config: EngineConfig, connection: Connection, outbox: Outbox, pulse: Pulse, inbox: Inbox
) -> int:
    def report(stage: str, fraction: float, message: str) -> None:
        outbox.put(Progress(stage, fraction, message))

    try:
        begin = time.perf_counter()
        target = open_target(config, report)
        loaded = time.perf_counter()
        calibration = calibrate(config, target, report)
        calibrated = time.perf_counter()
        shape = target.loaded.decoder.shape
        group = shape.heads // shape.kv_heads
        controller = open_controller(config, calibration.points, group, calibration.roofline)
        engine, intake = open_engine(config, target, controller, outbox.put)
        models = LiveModels(config, target, engine, lambda errand: inbox.put(Errand(errand)))
    except StartError as error:
        log.error("cannot start: %s", error.message)
        outbox.put(StartFailed(error.code, error.message))
        return EXIT_CANNOT_START
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
            drafters=drafter_states(engine, models),
            controller=controller_state(engine),
            pid=os.getpid(),
            load_ms=1e3 * (loaded - begin),
            calibration_ms=1e3 * (calibrated - loaded),
            calibration_cached=calibration.cached,
            tokenizer=target.text.fingerprint(),
        )
    )
    reader = threading.Thread(
        target=read,
        args=(connection, intake, target.text, engine, inbox, outbox),
        name="reader",
        daemon=True,
    )
    reader.start()
    _loop(engine, target.text, inbox, outbox, pulse, models)
    return 0


def _loop(
    engine: Engine,
    text: Text,
    inbox: Inbox,
    outbox: Outbox,
    pulse: Pulse,
    models: LiveModels | None = None,
) -> None:
    """Run steps while there is work, else wait for some; a snapshot every second, later while the
    client is slow."""
    last = time.monotonic()
    counted = _counts(engine)
    worked = False
    while not inbox.closed:
        if outbox.full:
            pulse.rest()
            if not outbox.room(CLIENT_PATIENCE_S):
                log.error("the client reads nothing any more; ending")
                return
        now = time.monotonic()
        if now - last >= SNAPSHOT_SECONDS and not outbox.snapshot_waits:
            counts = _counts(engine)
            outbox.put(_snapshot(engine, now - last, counts - counted, models))
            last, counted = now, counts
            engine.recorder.tick()
        if not worked:
            pulse.rest()
        message = inbox.get(0.0 if worked else SNAPSHOT_SECONDS - min(now - last, 0.9))
        pulse.begin(engine.steps + 1)
        while message is not None:
            match message:
                case Request():
                    engine.submit(message)
                case Cancel(id=name):
                    engine.cancel(name)
                case Call():
                    reply(message, engine, text, outbox, models)
                case Errand():
                    try:
                        message.run()  # by no name of its own, which would keep what it holds
                    except Exception:  # one call's fault, not the loop's
                        log.exception("an errand failed")
            message = inbox.get(0.0)
        worked = engine.step() or engine.upkeep()


def _counts(engine: Engine) -> Counter[str]:
    """What the engine has counted since it started."""
    scheduler = engine.scheduler
    return Counter(
        forwards=engine.executor.forwards,
        preemptions=scheduler.preemptions,
        prefix_queried_tokens=scheduler.prefix_queried_tokens,
        prefix_hit_tokens=scheduler.prefix_hit_tokens,
    )


def _snapshot(
    engine: Engine, interval_s: float, counts: Counter[str], models: LiveModels | None = None
) -> Snapshot:
    """counts: of the interval."""
    interval = engine.meter.take()
    scheduler = engine.scheduler
    return Snapshot(
        time=time.time(),
        interval_s=interval_s,
        steps=interval.steps,
        forwards=counts["forwards"],
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
        drafters=drafter_states(engine, models),
        preemptions=counts["preemptions"],
        prefix_queried_tokens=counts["prefix_queried_tokens"],
        prefix_hit_tokens=counts["prefix_hit_tokens"],
        step_records=tuple(engine.controller.take_step_records()),
        harm=engine.controller.harm_totals(),
    )


def run() -> NoReturn:
    """Run the process and end it at once: taking the interpreter down can last for seconds, in
    which no engine serves."""
    try:
        status = main()
    except Exception:
        log.exception("the engine gives up")
        status = EXIT_GAVE_UP
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    run()
