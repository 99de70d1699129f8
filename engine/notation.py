"""The seam to llguidance: from a grammar's source to a matcher over the model's vocabulary."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from engine.wire import Grammar

WHITESPACE = r"[\x20\x0A\x0D\x09]{1,100}"
"""Blanks allowed at one place of a JSON document: a model that only emits blanks must go on."""

MAX_STATES = 20_000
"""Lexer states of one grammar, at 0.25 to 2 kB each; all requests with one source share them."""

WALK = 24
"""Tokens of the trial walk over a new grammar."""

_GBNF_RULE = re.compile(r"^[ \t]*[A-Za-z][\w-]*[ \t]*::=", re.MULTILINE)
_LARK_START = re.compile(r"^[ \t]*(?:%llguidance\b|[?!]*start[ \t\d.]*[:{\[(])", re.MULTILINE)


class GrammarError(Exception):
    """A grammar that cannot be used; the message says why in a sentence without a full stop."""


class TokenBytes(msgspec.Struct, frozen=True):
    """The bytes of every token, by id (none for ids without a token), the ids that are no text,
    and those of them that end a text."""

    tokens: tuple[bytes, ...]
    special: tuple[int, ...]
    end_ids: tuple[int, ...]


def token_bytes(definition: str, size: int, end_ids: Iterable[int]) -> TokenBytes:
    """Read a tokenizer.json: 0.25 s for 49,152 tokens, 0.65 s for 128,000. size: logits per row.
    Raises GrammarError for tokenizers whose tokens have no bytes of their own."""
    ends = tuple(sorted(end_ids))
    try:
        known = LLTokenizer(definition, eos_token=list(ends))
    except Exception as error:  # whatever the library raises for an unknown kind of tokenizer
        why = _short(str(error))
        raise GrammarError(f"this model's tokenizer cannot be constrained ({why})") from error
    ids = range(known.vocab_size)
    special = {token for token in ids if known.is_special_token(token)}
    tokens = [known.decode_bytes([token]) for token in ids]
    tokens.extend([b""] * (size - len(tokens)))
    return TokenBytes(tuple(tokens), tuple(sorted(special.union(ends))), ends)


class _Writer:
    """Spells text that a grammar forces, the way the model would, and never with special tokens:
    the library's own reading of a tokenizer.json takes "<|im_end|>" in a text for the token."""

    bos_token_id = None

    def __init__(self, known: TokenBytes, encode: Callable[[str], Sequence[int]] | None) -> None:
        self.tokens = known.tokens
        self.special_token_ids = known.special
        self.eos_token_id = known.end_ids[0]
        self._special = frozenset(known.special)
        self._encode = encode
        self._ids = {token: i for i, token in enumerate(self.tokens) if i not in self._special}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str) -> list[int]:
        data = text.encode()
        if self._encode is not None:
            ids = list(self._encode(text))
            if self._special.isdisjoint(ids) and b"".join(self.tokens[i] for i in ids) == data:
                return ids
        return self._greedy(data)

    def _greedy(self, data: bytes) -> list[int]:
        """The longest token at each place; stops where there is none."""
        ids: list[int] = []
        at = 0
        while at < len(data):
            ends = range(min(len(data), at + self._longest), at, -1)
            end = next((end for end in ends if data[at:end] in self._ids), None)
            if end is None:
                break
            ids.append(self._ids[data[at:end]])
            at = end
        return ids


def open_vocabulary(
    known: TokenBytes, encode: Callable[[str], Sequence[int]] | None = None
) -> LLTokenizer:
    """The vocabulary that matchers work on. encode: the model's tokenizer, for forced text; the
    longest tokens without it, or where it does not give exactly that text."""
    wrapper = TokenizerWrapper(_Writer(known, encode))
    return LLTokenizer(wrapper, eos_token=list(known.end_ids))


def translate(grammar: Grammar) -> str:
    """The grammar in the library's own notation. Raises GrammarError."""
    source = grammar.source
    try:
        match grammar.kind:
            case "json_object":
                return _json('{"type": "object"}')
            case "json_schema":
                if source.strip() == "false":
                    raise GrammarError("no text matches it")
                return _json("{}" if source.strip() == "true" else source)
            case "regex":
                return LLMatcher.grammar_from_regex(source)
            case "grammar":
                return LLMatcher.grammar_from_lark(_lark(source))
    except (ValueError, RecursionError) as error:
        raise GrammarError(_short(str(error))) from error


def matcher(vocabulary: LLTokenizer, translated: str) -> LLMatcher:
    """A matcher at the start of a translated grammar, its first mask computed.

    Copies made with deep_copy have a state of their own and share the lexer and its limits: only
    one thread may make and use them. Text that a grammar forces is allowed in one spelling only.
    Raises GrammarError."""
    made = LLMatcher(vocabulary, translated, log_level=0, limits=_limits())
    if not made.is_error():
        made.compute_bitmask()
    if made.is_error():
        raise GrammarError(_short(made.get_error()))
    if made.is_stopped() and not made.is_accepting():
        raise GrammarError("no text matches it")
    return made


def walk(vocabulary: LLTokenizer, translated: str) -> None:
    """Compile a translated grammar and follow it for a few random tokens. Raises GrammarError."""
    chance = random.Random(0)
    state = matcher(vocabulary, translated)
    for _ in range(WALK):
        mask = state.compute_bitmask()
        if state.is_error():
            raise GrammarError(_short(state.get_error()))
        at = chance.randrange(len(mask))
        tail = mask[at:].lstrip(b"\0") or mask.lstrip(b"\0")
        if state.is_stopped() or not tail:
            return
        lowest = (tail[0] & -tail[0]).bit_length() - 1
        state.consume_token(8 * (len(mask) - len(tail)) + lowest)


def reason(state: LLMatcher) -> str:
    """Why a matcher has failed, in short."""
    return _short(state.get_error())


def _lark(source: str) -> str:
    """A grammar in Lark notation: it is in GBNF when a line of it begins `name ::=`, and in Lark
    else. Raises GrammarError."""
    if _GBNF_RULE.search(source):
        try:
            return gbnf_to_lark(source)
        except Exception as error:  # its author raises that very class
            raise GrammarError(f"as GBNF: {_short(str(error))}") from error
    if not _LARK_START.search(source):
        raise GrammarError(
            "as Lark (no line begins `name ::=`, as in GBNF): it has no rule `start: …`"
        )
    return source


def _json(schema: str) -> str:
    return LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": WHITESPACE})


def _limits() -> LLParserLimits:
    """Bounds in the library's own units; the rates are its authors'. A step above them puts the
    matcher into an error state: the worst one found took 40 ms, mostly for memory it then freed."""
    return LLParserLimits(
        initial_lexer_fuel=300_000,  # 50,000 a ms, while compiling
        step_lexer_fuel=50_000,  # 14,000 a ms
        step_max_items=50_000,  # 20,000 a ms
        max_items_in_row=2_000,
        max_lexer_states=MAX_STATES,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def _short(message: str) -> str:
    """What a library message says in one line of at most 200 characters."""
    lines = [line.strip() for line in message.splitlines()]
    lines = [line for line in lines if line and not line.startswith("<")] or ["it was refused"]
    if lines[0] == "NoExtensionBias":
        return "no text matches it"
    detail = next((line for line in lines if line.startswith("error: ")), None)
    text = lines[0] if detail is None else f"{lines[0][:80]} {detail.removeprefix('error: ')}"
    return text.rstrip(".:")[:200]
