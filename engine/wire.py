"""Messages between the API process and the engine process.

Frames on a Unix stream socket: a 4-byte big-endian length, then one msgpack-encoded message
(msgspec tagged structs). The engine listens, the client connects. Both sides validate.

A frame in step that is no message of the contract is answered by the engine with Failed or a Reply
where it names a request or a call, else logged and ignored; one above MAX_FRAME_BYTES, or half of
one, ends the connection. The client ends the engine on either: a lost delta would be a silent hole
in an answer.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from controller.contract import Decision, HarmTotals, Mode, StepRecord, Wish

MAX_FRAME_BYTES = 64 * 1024 * 1024

MAX_RECORDING_S = 86_400
MAX_RECORDING_BYTES = 2**30

MAX_CORPUS_TOKENS = 65_536
MAX_CORPUS_CHARACTERS = 16_384
"""Of one message: a few milliseconds of tokenising."""

TokenKind = Literal["plain", "accepted", "correction", "bonus"]
FinishReason = Literal["stop", "length", "cancelled"]
RecordingEnd = Literal["", "stopped", "duration", "size", "failed", "engine_died"]


class Grammar(msgspec.Struct, frozen=True):
    """What the output must match. source: a JSON schema, a regular expression or a grammar in
    the notation of the grammar library; empty for json_object."""

    kind: Literal["json_object", "json_schema", "regex", "grammar"]
    source: str = ""

    @property
    def field(self) -> str:
        """The request field that it comes from."""
        return "response_format" if self.kind.startswith("json") else "structured_outputs"


class Sampling(msgspec.Struct, frozen=True):
    """temperature 0 is greedy. top_k 0, top_p 1.0 and min_p 0.0 mean no filter. seed None:
    unseeded. max_tokens None: as many as the context holds. min_tokens: no end or stop token
    before so many. bad_words: texts whose last token is never drawn after their first ones.
    allowed_token_ids None: all. logprobs: how many alternatives besides the token's own, None for
    no logprobs at all; prompt_logprobs likewise for every prompt token after the first."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str


# --- client -> engine ---------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Exactly one of messages, prompt and prompt_ids is set. id is unique per connection.
    priority: lower runs first; equal ones in order of arrival. cache_salt: only requests with the
    same one share computed pages and past answers; at most MAX_SALT characters."""

    id: str
    sampling: Sampling
    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    speculation: Wish = Wish()
    tenant: str = ""
    priority: int = 0
    cache_salt: str = ""


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Unknown or finished ids are ignored. Answered by Finished(finish_reason="cancelled")."""

    id: str


class SetController(msgspec.Struct, frozen=True, tag="set_controller"):
    """Reply: ControllerState. Errors: unknown_drafter, draft_length_out_of_range, bad_setting.
    schedule: (largest number of decoding requests, D) in rising order, for mode pinned. Of
    tpot_target_ms and draft_budget 0 is none, like None."""

    mode: Mode
    drafter: str | None = None
    draft_length: int | None = None
    schedule: tuple[tuple[int, int], ...] = ()
    max_drafting_requests: int | None = None
    tpot_target_ms: float | None = None
    draft_budget: int | None = None


class SetPolicy(msgspec.Struct, frozen=True, tag="set_policy"):
    """Another policy from the next step on, or two with ab_policy: the share ab_share of the
    requests then has that one. Options as "KEY=VALUE KEY=VALUE". Reply: ControllerState. Errors:
    bad_setting, which names the field."""

    policy: str
    policy_options: str = ""
    ab_policy: str = ""
    ab_options: str = ""
    ab_share: float = 0.5


ParameterValue = bool | int | float


class SetDrafter(msgspec.Struct, frozen=True, tag="set_drafter"):
    """Change what is given: whether it may draft (None: as it is), and parameters of its own, all
    of them or none. Reply: DrafterState. Errors: unknown_drafter, unknown_parameter,
    parameter_out_of_range."""

    name: str
    enabled: bool | None = None
    parameters: dict[str, ParameterValue] = {}

    def after(self, earlier: SetDrafter | None) -> SetDrafter:
        """One change that does what both do, one after the other."""
        if earlier is None:
            return self
        enabled = earlier.enabled if self.enabled is None else self.enabled
        return SetDrafter(self.name, enabled, earlier.parameters | self.parameters)


class LoadDrafter(msgspec.Struct, frozen=True, tag="load_drafter"):
    """Load a drafter with a model of its own while requests run. source: "auto" (what ships for the
    target or its checkpoint holds), a folder, or for a draft model a Hugging Face id. Reply:
    DrafterState when it can draft, or LoadPlan at once with dry_run, which loads nothing. Errors:
    unknown_drafter, drafter_not_loadable, drafter_loaded, drafter_loading, drafter_unfit,
    memory_too_small."""

    name: str
    source: str = "auto"
    dry_run: bool = False


class UnloadDrafter(msgspec.Struct, frozen=True, tag="unload_drafter"):
    """Give its memory back; requests that it drafted for go on without it. Reply: DrafterState.
    Errors: unknown_drafter, drafter_not_loadable, drafter_not_loaded, drafter_loading,
    drafter_pinned."""

    name: str


class GetReport(msgspec.Struct, frozen=True, tag="get_report"):
    """Reply: the controller's report (JSON-able dict)."""


class GetWhatIf(msgspec.Struct, frozen=True, tag="get_what_if"):
    """Reply: WhatIf as a dict."""

    batch_size: int
    context_len: int


class Tokenize(msgspec.Struct, frozen=True, tag="tokenize"):
    """Reply: {"tokens": [int]}. One of prompt and messages is set. add_special_tokens: those that
    the tokenizer puts around a text; None as in a Submit: for a prompt, not for messages."""

    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    add_special_tokens: bool | None = None


class Detokenize(msgspec.Struct, frozen=True, tag="detokenize"):
    """Reply: {"text": str}."""

    tokens: tuple[int, ...]


class PutCorpus(msgspec.Struct, frozen=True, tag="put_corpus"):
    """Text that drafters may copy from, in parts: `first` replaces what the name held, the others
    add to it. tokens: 1 to MAX_CORPUS_TOKENS ids as little-endian int32, the sequences one after
    the other; lengths: ids of each. Reply: {}. Errors: invalid_request, corpus_refused."""

    name: str
    first: bool
    lengths: tuple[int, ...]
    tokens: bytes


class DropCorpus(msgspec.Struct, frozen=True, tag="drop_corpus"):
    """Reply: {}; unknown names are ignored."""

    name: str


class GetCorpora(msgspec.Struct, frozen=True, tag="get_corpora"):
    """Reply: {"corpora": {name: {sequences, tokens, indexed, bytes, failed}}}."""


class EncodeCorpus(msgspec.Struct, frozen=True, tag="encode_corpus"):
    """Token ids of texts without special tokens around them, at most MAX_CORPUS_CHARACTERS
    together. Reply: {"lengths": [int], "tokens": little-endian int32}."""

    texts: tuple[str, ...]


class StartRecording(msgspec.Struct, frozen=True, tag="start_recording"):
    """Send what every step from now on gives, as Recorded, for so many seconds and bytes at most.
    Reply: {}. Errors: recording_running, invalid_request."""

    name: str
    seconds: float
    limit_bytes: int


class StopRecording(msgspec.Struct, frozen=True, tag="stop_recording"):
    """Reply: {}, after the last Recorded; also where none runs."""


CallBody = (
    SetController
    | SetPolicy
    | SetDrafter
    | LoadDrafter
    | UnloadDrafter
    | GetReport
    | GetWhatIf
    | Tokenize
    | Detokenize
    | PutCorpus
    | DropCorpus
    | GetCorpora
    | EncodeCorpus
    | StartRecording
    | StopRecording
)


class Call(msgspec.Struct, frozen=True, tag="call"):
    call: int
    body: CallBody


ToEngine = Submit | Cancel | Call

# --- engine -> client ---------------------------------------------------------------------------


class ParameterState(msgspec.Struct, frozen=True):
    """A parameter of a drafter with its present value; low and high are allowed themselves."""

    name: str
    kind: Literal["int", "float", "bool"]
    low: ParameterValue
    high: ParameterValue
    default: ParameterValue
    value: ParameterValue
    text: str


class MemoryState(msgspec.Struct, frozen=True):
    """What a drafter keeps of texts, in bytes. truncated: texts that it took in only in part or not
    at all since the start of the engine."""

    used_bytes: int
    limit_bytes: int
    truncated: int


class ModelState(msgspec.Struct, frozen=True):
    """Of a drafter with a model of its own. source: what was asked for, "" when nothing is loaded.
    weights_bytes, kv_bytes: memory that it takes; kv_bytes of its layers over all pages. coverage:
    share 0..1 of the target's vocabulary that it can draft. message: what a load does, why the
    last one failed, or what is to be known of what is loaded. progress: of a load, 0..1."""

    state: Literal["unloaded", "loading", "loaded"] = "unloaded"
    source: str = ""
    weights_bytes: int = 0
    kv_bytes: int = 0
    coverage: float = 0.0
    message: str = ""
    progress: float = 0.0


class LoadPlan(msgspec.Struct, frozen=True):
    """What loading a drafter would take, in bytes. path: where its files are. free_bytes: on the
    device now. fits: whether it would be loaded."""

    name: str
    source: str
    path: str
    weights_bytes: int
    kv_bytes: int
    free_bytes: int
    fits: bool


class DrafterState(msgspec.Struct, frozen=True):
    """memory: of a drafter that keeps texts. model: of one with a model of its own; while that is
    not loaded, it is not enabled and its max_draft_length is 0."""

    name: str
    kind: Literal["none", "model_free", "model"]
    enabled: bool
    max_draft_length: int
    parameters: tuple[ParameterState, ...] = ()
    memory: MemoryState | None = None
    model: ModelState | None = None


class ControllerState(msgspec.Struct, frozen=True):
    mode: Mode
    drafter: str | None
    draft_length: int | None
    max_draft_length: int
    schedule: tuple[tuple[int, int], ...] = ()
    max_drafting_requests: int | None = None
    tpot_target_ms: float | None = None
    draft_budget: int | None = None
    policy: str = "adaptive"
    policy_options: str = ""
    ab_policy: str = ""
    ab_options: str = ""
    ab_share: float = 0.5


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Start-up progress. stage: "load", "calibrate"; fraction 0..1."""

    stage: str
    fraction: float
    message: str


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """Sent once when the engine can serve. Lengths in tokens. tokenizer: a hash of what
    its token ids stand for, so that those of another one are recognised."""

    model: str
    architecture: str
    dtype: str
    device: str
    attention: str
    threads: int
    context_length: int
    vocabulary: int
    max_draft_length: int
    max_batch: int
    total_pages: int
    page_size: int
    drafters: tuple[DrafterState, ...]
    controller: ControllerState
    pid: int
    load_ms: float
    calibration_ms: float
    calibration_cached: bool
    tokenizer: str


class StartFailed(msgspec.Struct, frozen=True, tag="start_failed"):
    """The engine cannot start, and restarting will not help (say, a wrong model path)."""

    code: str
    message: str


class Alternative(msgspec.Struct, frozen=True, array_like=True):
    """A token with its own text (replacement characters where data is not whole UTF-8), its bytes
    and its natural log probability in the target's raw distribution: temperature 1, no filter,
    penalty or mask."""

    token: int
    text: str
    data: bytes
    logprob: float


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """A token's log probability and its rank (1: the most likely), and the most likely tokens,
    best first."""

    chosen: Alternative
    rank: int
    top: tuple[Alternative, ...]


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """One committed token with the text it released (may be empty) and where it came from."""

    token: int
    text: str
    kind: TokenKind
    logprob: Logprob | None = None


class Delta(msgspec.Struct, frozen=True):
    """What one step gave one request. text is the concatenation of the pieces' texts.
    drafted and accepted are the counts of the steps whose text it releases."""

    id: str
    text: str
    pieces: tuple[Piece, ...]
    step: int
    drafter: str
    drafted: int
    accepted: int


class Deltas(msgspec.Struct, frozen=True, tag="deltas"):
    items: tuple[Delta, ...]


class PromptLogprobs(msgspec.Struct, frozen=True, tag="prompt_logprobs"):
    """Sent before the first Delta of a request that asked: one entry per prompt token, None for
    the first, which nothing predicts."""

    id: str
    items: tuple[Logprob | None, ...]


class Speculation(msgspec.Struct, frozen=True):
    """Per-request counters. steps counts every verify step after prefill, D = 0 too (the step
    that ends the prefill commits the first token and is not counted). histogram[a] = steps that
    accepted a tokens. drafters: request-steps by drafter name, or by that of a chain,
    "head+tail". parts: drafter -> tokens that it drafted, and those accepted; each drafter of a
    chain its own, those after a rejected one not accepted."""

    steps: int
    drafted: int
    accepted: int
    histogram: tuple[int, ...]
    max_draft_length: int
    drafters: dict[str, int]
    parts: dict[str, tuple[int, int]] = {}


class Timing(msgspec.Struct, frozen=True):
    """Milliseconds measured in the engine. tpot_ms is None below two output tokens."""

    queue_ms: float
    ttft_ms: float
    e2e_ms: float
    tpot_ms: float | None


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """stop: the stop string or token id that ended the request, or None (EOS). cached_tokens: those
    prompt tokens that the prefix cache held when the request was first admitted."""

    id: str
    finish_reason: FinishReason
    stop: str | int | None
    prompt_tokens: int
    completion_tokens: int
    speculation: Speculation
    timing: Timing
    cached_tokens: int = 0


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request ended with an error and nothing more follows. code is one of: invalid_request,
    context_length_exceeded, unknown_drafter, draft_length_out_of_range, drafter_disabled,
    queue_full, out_of_memory, internal. The client itself adds queue_full (the engine takes
    nothing at the moment), engine_starting, engine_restarting, engine_failed and draining. param
    names the offending field, when there is one."""

    id: str
    code: str
    message: str
    param: str | None = None


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """Answer to a Call: result as msgpack-able value, or error code and message, with the field at
    fault if it is one."""

    call: int
    result: object = None
    error: str | None = None
    message: str = ""
    param: str | None = None


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Sent at least once a second, from before the model is loaded, by a thread that does not
    depend on the loop. step: number of the step that runs or comes next, 0 before the first.
    step_ms: how long it has been running; None while the loop waits for work or for the client."""

    step: int
    step_ms: float | None


class Cell(msgspec.Struct, frozen=True):
    """One second of request-steps that ran with (drafter, draft_length).

    reached[k] and accepted_at[k]: position k + 1 was reached and verified / was accepted.
    verify_ms, draft_ms, overhead_ms: step time shared out by rows, so that cells add up."""

    drafter: str
    draft_length: int
    request_steps: int
    tokens: int
    drafted: int
    accepted: int
    reached: tuple[int, ...]
    accepted_at: tuple[int, ...]
    verify_ms: float
    draft_ms: float
    overhead_ms: float


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """Once a second while the engine runs, also when idle; no new one is made before the last
    one is sent, so a slow client gets fewer that cover more. Counts are of the past interval.

    time: seconds since the epoch. tokens counts all output tokens; drafted_tokens those of them
    that were accepted drafts. tpot_ms: mean time per output token and request over the interval,
    None when nothing decoded. prefix_*: prompt tokens looked up in the prefix cache and found
    there. decisions: opened or updated since the last snapshot. step_records: sampled since
    then. harm: since the controller's start."""

    time: float
    interval_s: float
    steps: int
    forwards: int
    tokens: int
    drafted_tokens: int
    prefill_tokens: int
    running: int
    waiting: int
    batch_mean: float
    batch_max: int
    free_pages: int
    total_pages: int
    tpot_ms: float | None
    step_ms_p50: float | None
    step_ms_p99: float | None
    cells: tuple[Cell, ...]
    decisions: tuple[Decision, ...]
    controller: ControllerState
    drafters: tuple[DrafterState, ...]
    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    step_records: tuple[StepRecord, ...] = ()
    harm: HarmTotals | None = None


class Recorded(msgspec.Struct, frozen=True, tag="recorded"):
    """Whole lines of a recording, each with its line end. end: why it ended with them, "" while it
    goes on; engine_died is the client's own word."""

    name: str
    lines: bytes
    end: RecordingEnd = ""


FromEngine = (
    Progress
    | Hello
    | StartFailed
    | Deltas
    | PromptLogprobs
    | Finished
    | Failed
    | Reply
    | Heartbeat
    | Snapshot
    | Recorded
)
