"""A small program that speaks the engine's protocol with scripted answers, for protocol tests.

An answer is the words "w0 w1 w2 …", two tokens a step. The last message (or prompt) may hold:
`slow` (20 ms a step), `queued` (no step until it is cancelled), `hang` (one step, then nothing),
`gate PATH` (one step, the others when there is a PATH),
`boom` (a Failed after the first step), `die` (the process ends), `refuse CODE` (Failed at once with
that code; context_length_exceeded blames max_tokens, `refuse CODE FIELD` blames that field), `echo`
(answers with the whole conversation), `sampling` (answers with the JSON of the request's sampling,
priority and cache salt), `held` (the tokens of the first step have no text), `stopped` (the first
stop string of the request ends the answer). Logprobs are made up: see `_logprob`.
Faults: `die-once PATH` (the process ends before any token unless PATH exists, which it makes),
`stuck` (the heartbeats tell of a step that does not end), `mute` (nothing is sent any more),
`garbage`, `oversize` and `half` (a frame that is no message, one with a huge length, half of one
and the end).
The drafter mtp can be loaded from the source `auto` (slowly), `until PATH` (as long as there is no
PATH) or any other but `huge` (no room) and `broken`; one that the config names is loaded at start,
unless it is `gone` (StartFailed).
The drafter ngram has the parameters of `Tuned` and takes corpora, of ROOM tokens together, indexing
some at every look; a byte is a token, and the config's dtype stands for the tokenizer's hash.
A recording has a line (LINE) for every answer that ends, and ends itself after 5 of them.
The config's model may be `no-start` (StartFailed), `crash` (ends before hello) or `late` (waits for
a file named by cache_dir before hello).
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from controller.contract import Candidate, Decision, HarmTotals, StepRecord
from engine.config import EngineConfig
from engine.corpora import corpus_states, drop_corpus, encode_corpus, put_corpus
from engine.errors import RequestError
from engine.frames import Connection
from engine.tuning import parameter_states, tune
from engine.wire import (
    Alternative,
    Call,
    Cancel,
    Cell,
    ControllerState,
    Delta,
    Deltas,
    Detokenize,
    DrafterState,
    DropCorpus,
    EncodeCorpus,
    Failed,
    Finished,
    FinishReason,
    GetCorpora,
    GetReport,
    GetWhatIf,
    Heartbeat,
    Hello,
    LoadDrafter,
    LoadPlan,
    Logprob,
    MemoryState,
    ModelState,
    Piece,
    Progress,
    PromptLogprobs,
    PutCorpus,
    Recorded,
    Reply,
    SetController,
    SetDrafter,
    SetPolicy,
    Snapshot,
    Speculation,
    StartFailed,
    StartRecording,
    StopRecording,
    Submit,
    Timing,
    Tokenize,
    UnloadDrafter,
)
from tests.engine.corpus_holder import Shelves, Tuned

CONTEXT = 512
VOCABULARY = 256
ROOM = 20_000
LINE = b'{"s":0.5,"verify_ms":1.0,"requests":[]}\n'
DEFAULT_TOKENS = 12


class Engine:
    """Answers one connection; every request has its own thread."""

    def __init__(self, connection: Connection, config: EngineConfig) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._cancelled: set[str] = set()
        self._running: set[str] = set()
        self._enabled = True
        self._tuned, self._shelves = Tuned(), Shelves(ROOM, slice=10_000)
        self._mtp = _loaded(config.mtp) if config.mtp not in ("auto", "off") else ModelState()
        self._mtp_enabled = True
        self._stuck = 0.0
        self._decision = 0
        self._recording, self._recorded = "", 0
        self.controller = ControllerState(
            "auto",
            None,
            None,
            16,
            policy=config.policy,
            policy_options=config.policy_options,
            ab_policy=config.ab_policy,
        )

    @property
    def drafters(self) -> tuple[DrafterState, ...]:
        return (
            DrafterState("none", "none", True, 0),
            DrafterState(
                "ngram",
                "model_free",
                self._enabled,
                16,
                parameter_states(self._tuned),
                MemoryState(3 << 20, 256 << 20, 2),
            ),
            self._mtp_state,
        )

    @property
    def _mtp_state(self) -> DrafterState:
        there = self._mtp.state == "loaded"
        enabled, longest = there and self._mtp_enabled, 16 if there else 0
        return DrafterState("mtp", "model", enabled, longest, model=self._mtp)

    def send(self, message: Any) -> None:
        with self._lock:
            self._connection.send(message)

    def serve(self) -> None:
        threading.Thread(target=self._snapshots, daemon=True).start()
        while (message := self._connection.receive()) is not None:
            match message:
                case Submit():
                    self._running.add(message.id)
                    threading.Thread(target=self._answer, args=(message,), daemon=True).start()
                case Cancel(id=id):
                    self._cancelled.add(id)
                case Call(call=call, body=LoadDrafter() as body):  # as long as it takes
                    threading.Thread(
                        target=lambda call=call, body=body: self.send(self._reply(call, body)),
                        daemon=True,
                    ).start()
                case Call(call=call, body=body):
                    self.send(self._reply(call, body))

    def _reply(self, call: int, body: Any) -> Reply:
        match body:
            case SetController():
                if body.drafter == "refused":
                    text = "The setting was refused."
                    return Reply(call, None, "bad_setting", text, "drafter")
                if body.drafter == "mtp" and self._mtp.state != "loaded":
                    text = "drafter mtp is not loaded."
                    return Reply(call, None, "unknown_drafter", text, "drafter")
                self.controller = ControllerState(
                    body.mode,
                    body.drafter,
                    body.draft_length,
                    16,
                    body.schedule,
                    body.max_drafting_requests,
                    body.tpot_target_ms or None,
                    body.draft_budget or None,
                )
                return Reply(call, msgspec.to_builtins(self.controller))
            case SetPolicy(policy="refused"):
                text = "policy: 'refused' is not one of adaptive, off."
                return Reply(call, None, "bad_setting", text, "policy")
            case SetPolicy():
                chosen = msgspec.structs.asdict(body)
                self.controller = msgspec.structs.replace(self.controller, **chosen)
                return Reply(call, msgspec.to_builtins(self.controller))
            case SetDrafter(name="mtp") if self._mtp.state != "loaded":
                return Reply(call, None, "unknown_drafter", "drafter mtp is not loaded.", "name")
            case SetDrafter(name="mtp", enabled=enabled):
                self._mtp_enabled = enabled is not False
                return Reply(call, msgspec.to_builtins(self._mtp_state))
            case UnloadDrafter(name="mtp"):
                self._mtp, self._mtp_enabled = ModelState(), True
                return Reply(call, msgspec.to_builtins(self._mtp_state))
            case LoadDrafter(name=name) | UnloadDrafter(name=name) if name != "mtp":
                text = f"drafter {name} has no model to load or unload."
                return Reply(call, None, "drafter_not_loadable", text, "name")
            case LoadDrafter(source=source, dry_run=True):
                fits = source != "huge"
                plan = LoadPlan("mtp", source, f"/models/{source}", 26 << 20, 4 << 20, 2**30, fits)
                return Reply(call, msgspec.to_builtins(plan))
            case LoadDrafter(source="huge"):
                text = "drafter mtp needs 26.00 MiB for its weights; 1.00 MiB are free on cpu."
                self._mtp = ModelState(message=text)
                return Reply(call, None, "memory_too_small", text, "source")
            case LoadDrafter(source="late"):
                self._mtp = _loaded("late")
                return Reply(call, None, "internal", "The engine did not answer in time.")
            case LoadDrafter(source="broken"):
                return Reply(call, None, "drafter_unfit", "It lacks fuse.weight.", "source")
            case LoadDrafter(source=source):
                word, _, path = source.partition(" ")
                if word in ("auto", "until"):
                    self._mtp = ModelState("loading", source, message="loading its weights")
                    time.sleep(0.5)
                while word == "until" and not Path(path).exists():
                    time.sleep(0.02)
                self._mtp = _loaded(source)
                return Reply(call, msgspec.to_builtins(self._mtp_state))
            case SetDrafter():
                try:
                    tune(body.name, self._tuned, body.parameters)
                except RequestError as error:
                    return Reply(call, None, error.code, error.message, error.param)
                if body.enabled is not None:
                    self._enabled = body.enabled
                return Reply(call, msgspec.to_builtins(self.drafters[1]))
            case PutCorpus():
                try:
                    return Reply(call, put_corpus([self._shelves], body, VOCABULARY))
                except RequestError as error:
                    return Reply(call, None, error.code, error.message, error.param)
            case DropCorpus(name=name):
                return Reply(call, drop_corpus([self._shelves], name))
            case GetCorpora():
                return Reply(call, corpus_states([self._shelves]))
            case EncodeCorpus():
                return Reply(call, encode_corpus(lambda text: list(text.encode()), body))
            case StartRecording(name=name):
                if self._recording:
                    return Reply(call, None, "recording_running", "A recording runs already.")
                self._recording, self._recorded = name, 0
                return Reply(call, {})
            case StopRecording():
                if self._recording:
                    self.send(Recorded(self._recording, b"", "stopped"))
                self._recording = ""
                return Reply(call, {})
            case GetReport():
                return Reply(call, {"acceptance": {}})
            case GetWhatIf():
                best = msgspec.to_builtins(Candidate("ngram", 4, 2.0, 10.0, 200.0, 190.0, 210.0))
                return Reply(
                    call,
                    {
                        "batch_size": body.batch_size,
                        "context_len": body.context_len,
                        "candidates": [best],
                        "best": best,
                    },
                )
            case Tokenize(prompt=prompt):
                return Reply(call, {"tokens": list((prompt or "chat").encode())})
            case Detokenize(tokens=tokens):
                return Reply(call, {"text": bytes(tokens).decode("utf-8", "replace")})
        return Reply(call, None, "internal", "unknown call")

    def _answer(self, submit: Submit) -> None:
        asked = submit.messages[-1].content if submit.messages else submit.prompt or ""
        words = [f"w{index} " for index in range(submit.sampling.max_tokens or DEFAULT_TOKENS)]
        if "echo" in asked and submit.messages:
            words = [f"[{message.role}:{message.content}] " for message in submit.messages]
        if "sampling" in asked:
            fields = msgspec.to_builtins(submit.sampling)
            fields |= {"priority": submit.priority, "cache_salt": submit.cache_salt}
            words = [msgspec.json.encode(fields).decode()]
        if "refuse" in asked:
            code, _, param = asked.split("refuse ", 1)[1].partition(" ")
            param = param or ("max_tokens" if code == "context_length_exceeded" else None)
            self._end(Failed(submit.id, code, f"Refused with {code} ({param}).", param))
            return
        if "die-once" in asked:
            marker = Path(asked.split("die-once ", 1)[1])
            if not marker.exists():
                marker.touch()
                os._exit(9)
        elif "die" in asked:
            print("2026-01-01 00:00:00,000 engine ERROR dying as told", flush=True)
            os._exit(9)
        self._misbehave(asked)
        time.sleep(0.01)
        while "queued" in asked and submit.id not in self._cancelled:
            time.sleep(0.01)
        if (top := submit.sampling.prompt_logprobs) is not None:
            prompt = (submit.prompt or "").encode() or bytes(submit.prompt_ids or b"chat")
            scored = (_logprob(chr(byte), byte, top) for byte in prompt[1:])
            self.send(PromptLogprobs(submit.id, (None, *scored)))
        if "cut" in asked:
            self._finish(submit, 2, "stop", "w0")
            return
        if "held" in asked:
            words[:2] = ["", ""]
        for step, start in enumerate(range(0, len(words), 2)):
            if submit.id in self._cancelled:
                self._finish(submit, start, "cancelled")
                return
            two = words[start : start + 2]
            pieces = tuple(
                Piece(
                    start + offset,
                    word,
                    ("accepted", "bonus")[offset],
                    _logprob(word, start + offset, submit.sampling.logprobs),
                )
                for offset, word in enumerate(two)
            )
            self.send(Deltas((Delta(submit.id, "".join(two), pieces, step, "ngram", 1, 1),)))
            if "boom" in asked:
                self._end(Failed(submit.id, "internal", "It broke at /srv/app/engine/x.py"))
                return
            while "hang" in asked and submit.id not in self._cancelled:
                time.sleep(0.01)
            while "gate " in asked and not Path(asked.split("gate ", 1)[1]).exists():
                time.sleep(0.01)
            if "slow" in asked:
                time.sleep(0.02)
        reason: FinishReason = "length" if submit.sampling.max_tokens else "stop"
        stop = submit.sampling.stop[0] if "stopped" in asked else None
        self._finish(submit, len(words), "stop" if stop else reason, stop)

    def _finish(
        self, submit: Submit, tokens: int, reason: FinishReason, stop: str | None = None
    ) -> None:
        steps = tokens // 2
        counts = Speculation(steps, steps, steps, (0, steps), 16, {"ngram": steps})
        timing = Timing(0.1, 5.0, 5.0 + tokens, 1.0 if tokens > 1 else None)
        if self._recording:
            self._recorded += 1
            over = self._recorded == 5
            self.send(Recorded(self._recording, LINE, "duration" if over else ""))
            self._recording = "" if over else self._recording
        self._end(Finished(submit.id, reason, stop, 7, tokens, counts, timing, cached_tokens=4))

    def _misbehave(self, asked: str) -> None:
        raw = self._connection.send_frame
        if "stuck" in asked:
            self._stuck = time.monotonic()
        elif "mute" in asked:
            self._lock.acquire()
        elif "garbage" in asked:
            raw(b"\x00\x00\x00\x03abc")
        elif "oversize" in asked:
            raw(b"\xff\xff\xff\xff")
        elif "half" in asked:
            raw(b"\x00\x00\x01\x00abc")
            os._exit(0)

    def _end(self, event: Finished | Failed) -> None:
        self._running.discard(event.id)
        self.send(event)

    def _snapshots(self) -> None:
        while True:
            time.sleep(0.1)
            running = 1e3 * (time.monotonic() - self._stuck) if self._stuck else None
            self.send(Heartbeat(7, running))
            self._decision += 1
            with self._lock:  # what a snapshot tells must not be older than a reply before it
                self._connection.send(self._snapshot())

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            time=time.time(),
            interval_s=0.1,
            steps=10,
            forwards=10,
            tokens=20,
            drafted_tokens=8,
            prefill_tokens=5,
            running=len(self._running),
            waiting=0,
            batch_mean=1.0,
            batch_max=1,
            free_pages=90,
            total_pages=100,
            tpot_ms=5.0,
            step_ms_p50=9.0,
            step_ms_p99=12.0,
            cells=(
                Cell("none", 0, 5, 5, 0, 0, (), (), 40.0, 0.0, 1.0),
                Cell("ngram", 2, 5, 15, 10, 8, (5, 4), (4, 3), 50.0, 0.1, 1.0),
            ),
            decisions=(_decision(self._decision),),
            step_records=(_step_record(self._decision),),
            harm=HarmTotals(1200, 40.5, 60.25, 42.0),
            controller=self.controller,
            drafters=self.drafters,
            preemptions=1,
            prefix_queried_tokens=8,
            prefix_hit_tokens=4,
        )


def _loaded(source: str) -> ModelState:
    return ModelState("loaded", source, 26 << 20, 4 << 20, 0.25)


def _logprob(text: str, token: int, top: int | None) -> Logprob | None:
    """-1.5 and rank 2; the alternatives are b, c, d … with the next ids and -1, -2, -3 …"""
    if top is None:
        return None
    found = [
        Alternative(token + place, chr(ord("a") + place), b"%c" % (ord("a") + place), -float(place))
        for place in range(1, top + 1)
    ]
    return Logprob(Alternative(token, text, text.encode(), -1.5), 2, tuple(found))


def _step_record(number: int) -> StepRecord:
    return StepRecord(
        id=f"{os.getpid()}-{number:06d}",
        step=number,
        time=time.time(),
        requests=2,
        context=120.0,
        prefill_rows=0,
        drafts={"ngram": (1, 4)},
        predicted_tokens=4.0,
        predicted_ms=10.0,
        realised_tokens=3,
        realised_ms=11.0,
        price=0.05,
        probe=False,
        guard=None,
        decision=f"{os.getpid()}-000001",
    )


def _decision(number: int) -> Decision:
    chosen = Candidate("ngram", 4.0, 2.0, 10.0, 200.0, 190.0, 210.0)
    return Decision(
        id=f"{os.getpid()}-{number:06d}",
        step=number,
        time=time.time(),
        drafter="ngram",
        draft_length=4.0,
        previous_drafter="none",
        previous_draft_length=0.0,
        inputs={"batch": 1},
        candidates=(chosen,),
        runner_up=None,
        margin=0.5,
        reason="goodput" if number % 2 else "probe",
        sentence="n-gram pays.",
        guard=None,
        predicted_goodput=200.0,
        predicted_tokens=chosen.predicted_tokens,
        predicted_ms=chosen.predicted_ms,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--config", required=True)
    arguments = parser.parse_args()
    config = msgspec.json.decode(arguments.config, type=EngineConfig)
    if config.model == "crash":
        raise SystemExit(1)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(arguments.socket)
    os.chmod(arguments.socket, 0o600)
    listener.listen(1)
    accepted, _ = listener.accept()
    engine = Engine(Connection(accepted), config)
    engine.send(Progress("load", 0.5, "Loading"))
    if config.mtp == "gone":
        engine.send(StartFailed("drafter_not_found", "There is no head here any more."))
        raise SystemExit(3)
    if config.mtp == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)  # as for the memory that it takes
    if config.model == "no-start":
        engine.send(StartFailed("model_not_found", "There is no model here. Give another."))
        raise SystemExit(3)
    while config.model == "late" and not Path(config.cache_dir).exists():
        time.sleep(0.02)
    engine.send(
        Hello(
            model=config.model,
            architecture="Scripted",
            dtype="float32",
            device="cpu",
            attention="torch",
            threads=1,
            context_length=CONTEXT,
            vocabulary=VOCABULARY,
            max_draft_length=16,
            max_batch=8,
            total_pages=100,
            page_size=16,
            drafters=engine.drafters,
            controller=engine.controller,
            pid=os.getpid(),
            load_ms=1.0,
            calibration_ms=1.0,
            calibration_cached=True,
            tokenizer=config.dtype,
        )
    )
    engine.serve()


if __name__ == "__main__":
    main()
