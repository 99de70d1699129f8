"""Compiles grammars off the loop: tried first in a process of their own, cached, bounded."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llguidance import LLMatcher, LLTokenizer

from engine.errors import RequestError
from engine.grammar import Constraint
from engine.grammar_trial import Setup, TooCostly, Trial, TrialEnded
from engine.notation import GrammarError, TokenBytes, matcher, open_vocabulary
from engine.wire import Grammar, Sampling

log = logging.getLogger(__name__)

MAX_SOURCE_CHARACTERS = 128 * 1024
COMPILE_SECONDS = 5.0
CACHED_GRAMMARS = 32
CACHED_CHARACTERS = 1024 * 1024
"""Together with the limits of engine.notation: measured at most 20 bytes per character of source
and, for the worst expressions, 10 MB of lexer states per grammar."""

RENEWAL_SECONDS = 0.1
"""A matcher that must be made anew while its request runs may not keep the loop longer."""

REFUSED_SECONDS = 300.0
REFUSED_GRAMMARS = 1024
"""How long, and of how many sources, it is known that they took too much time or memory."""

MAX_TRIALS = 3
"""Processes for trials. Each holds the vocabulary once more."""


@dataclass(frozen=True, slots=True)
class _Root:
    """A compiled grammar that requests copy. seconds: what compiling it took."""

    matcher: LLMatcher
    vocabulary: LLTokenizer
    translated: str
    seconds: float


class Compiler:
    """One per engine. `constraint` may be called from any thread but the loop's.

    The vocabulary is read at the first grammar, in the trial process; this process then takes
    0.1 s to lay out 49,152 tokens and 0.3 s for 128,000, once, while the loop waits."""

    def __init__(
        self,
        definition: Callable[[], str],
        encode: Callable[[str], Sequence[int]],
        vocabulary: int,
        end_ids: frozenset[int],
        seconds: float = COMPILE_SECONDS,
    ) -> None:
        """definition: gives the text of the tokenizer's tokenizer.json. encode: that tokenizer at
        work. vocabulary: logits per row. end_ids: the model's end-of-sequence ids. seconds: what
        one trial may take."""
        self._definition = definition
        self._encode = encode
        self._size = vocabulary
        self._end_ids = end_ids
        self._seconds = seconds
        self._setup: Setup | None = None
        self._vocabulary: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._cache: OrderedDict[Grammar, _Root] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, str]] = OrderedDict()  # until, why
        self._trials: queue.SimpleQueue[Trial | None] = queue.SimpleQueue()
        for _ in range(MAX_TRIALS):
            self._trials.put(None)

    def constraint(self, sampling: Sampling) -> Constraint | None:
        """The constraint of a request, None without a grammar. Raises RequestError."""
        grammar = sampling.grammar
        if grammar is None:
            return None
        field = grammar.field
        if len(grammar.source) > MAX_SOURCE_CHARACTERS:
            raise RequestError(
                "invalid_request",
                f"the {grammar.kind} has {len(grammar.source):,} characters; the limit is "
                f"{MAX_SOURCE_CHARACTERS:,}. Shorten it.",
                field,
            )
        if not self._end_ids:
            raise RequestError(
                "invalid_request",
                "this model names no end-of-sequence token, so a grammar could not end its text.",
                field,
            )
        try:
            root = self._root(grammar)
        except GrammarError as error:
            raise RequestError(
                "invalid_request", f"the {grammar.kind} cannot be used: {error}.", field
            ) from error
        return Constraint(
            root.matcher.deep_copy,
            lambda: self._renewed(grammar, root),
            self._size,
            self._end_ids,
            stop_token_ids=sampling.stop_token_ids,
            min_tokens=sampling.min_tokens,
            ignore_eos=sampling.ignore_eos,
        )

    def knows(self, grammar: Grammar) -> bool:
        """Whether `constraint` gives or refuses this grammar without compiling it."""
        with self._lock:
            return grammar in self._cache or self._refusal(_digest(grammar)) is not None

    def close(self) -> None:
        """End the trial processes that are not at work; those that are end with their trial."""
        for _ in range(MAX_TRIALS):
            try:
                trial = self._trials.get_nowait()
            except queue.Empty:
                return
            if trial is not None:
                trial.close()

    def _root(self, grammar: Grammar) -> _Root:
        with self._lock:
            root = self._cache.get(grammar)
            if root is not None:
                self._cache.move_to_end(grammar)
                return root
            why = self._refusal(digest := _digest(grammar))
        if why is not None:
            minutes = f"{REFUSED_SECONDS / 60:g} minutes"
            raise GrammarError(f"{why} (so it was found less than {minutes} ago)")
        try:
            known, translated = self._try(grammar)
        except TooCostly as error:
            with self._lock:
                self._refused[digest] = (time.monotonic() + REFUSED_SECONDS, str(error))
                self._refused.move_to_end(digest)
                while len(self._refused) > REFUSED_GRAMMARS:
                    self._refused.popitem(last=False)
            raise
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = open_vocabulary(known, self._encode)
            vocabulary = self._vocabulary
        begin = time.perf_counter()
        made = matcher(vocabulary, translated)
        root = _Root(made, vocabulary, translated, time.perf_counter() - begin)
        with self._lock:
            self._cache[grammar] = root
            while len(self._cache) > CACHED_GRAMMARS or (
                sum(len(kept.source) for kept in self._cache) > CACHED_CHARACTERS
            ):
                self._cache.popitem(last=False)
        return root

    def _refusal(self, digest: bytes) -> str | None:
        """Why a source was refused a short time ago. Called with the lock held."""
        until, why = self._refused.get(digest, (0.0, ""))
        return why if time.monotonic() < until else None

    def _try(self, grammar: Grammar) -> tuple[TokenBytes, str]:
        """The bytes of the vocabulary and the translated grammar, after a trial in a process
        that is started when needed. One that ends after it has tried others may have been short
        of memory for what those took, so a new one has the last word."""
        trial = self._trials.get()
        try:
            if trial is not None and trial.alive:
                try:
                    return trial.token_bytes, trial.run(grammar)
                except TrialEnded:
                    log.info("trying a grammar again in a new process")
            trial = Trial(self._open())
            return trial.token_bytes, trial.run(grammar)
        except OSError as error:
            log.exception("a grammar could not be tried")
            raise RequestError(
                "internal", "the engine could not compile the grammar; please retry."
            ) from error
        finally:
            self._trials.put(trial)

    def _open(self) -> Setup:
        with self._lock:
            if self._setup is None:
                ends = tuple(sorted(self._end_ids))
                self._setup = Setup(self._definition(), self._size, ends, self._seconds)
            return self._setup

    def _renewed(self, grammar: Grammar, root: _Root) -> LLMatcher:
        """A matcher with a lexer of its own, for a request whose shared lexer is used up: its
        states are bounded. Later requests compile the grammar anew."""
        with self._lock:
            self._cache.pop(grammar, None)
        if root.seconds > RENEWAL_SECONDS:
            raise GrammarError("too many states")
        return matcher(root.vocabulary, root.translated)


def _digest(grammar: Grammar) -> bytes:
    text = f"{grammar.kind}:{grammar.source}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
