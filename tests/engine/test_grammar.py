"""Structured output: masks, drafts that break the grammar, and hostile grammars."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.admission import MOST_PER_TENANT, MOST_WAITING, Admission
from engine.batch import Chunk
from engine.build import Target
from engine.compiler import CACHED_GRAMMARS, MAX_SOURCE_CHARACTERS, MAX_TRIALS, Compiler
from engine.drafts import Draft
from engine.draw import Draw
from engine.errors import RequestError
from engine.executor import Executor
from engine.grammar import Constraint
from engine.intake import Intake, Limits
from engine.notation import MAX_STATES
from engine.request import Request
from engine.wire import Cancel, Failed, Finished, Grammar, Message, Sampling, Submit
from tests.engine.scripted import Harness, ScriptedDrafter

LONGER = ['{"', '":', '",', '"}', "true", "null", "12", "name", '"name"', "Ã¤", "âĤ", "ab"]
"""Tokens of several bytes, in the letters that stand for bytes: Ã¤ is ä, âĤ the start of €."""


def byte_level(words: Sequence[str], special: Sequence[str]) -> str:
    """A byte-level tokenizer with exactly these tokens, special ones last."""
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return tokenizer.to_str()


ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
WORDS = [*ALPHABET, *(word for word in LONGER if word not in ALPHABET)]
DEFINITION = byte_level(WORDS, ["<end>", "<turn>", "<tool>"])
TOKENIZER = Tokenizer.from_str(DEFINITION)
END, TURN, TOOL = len(WORDS), len(WORDS) + 1, len(WORDS) + 2
ENDS = frozenset({END, TURN})
SIZE = TOOL + 6  # the model has more logits than its tokenizer has tokens

PERSON = {
    "$defs": {
        "mark": {"enum": ["ä€", "b", 3, None]},
        "node": {
            "type": "object",
            "properties": {
                "mark": {"$ref": "#/$defs/mark"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["mark"],
            "additionalProperties": False,
        },
    },
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tree": {"$ref": "#/$defs/node"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
GRAMMARS = [
    Grammar("json_object"),
    Grammar("json_schema", json.dumps(PERSON)),
    Grammar("regex", r"(ab|[0-9]{2,4}|ä€)+!?"),
    Grammar("grammar", 'start: "ab" NUMBER ("," NUMBER)*\nNUMBER: /[0-9]+/\n'),
    Grammar("grammar", 'root ::= item ("," item)*\nitem ::= "ab" | [0-9]+ | "(" root ")"\n'),
]


@pytest.fixture(scope="module")
def compiler() -> Generator[Compiler]:
    made = Compiler(lambda: DEFINITION, encode, SIZE, ENDS)
    yield made
    made.close()


def constrained(compiler: Compiler, grammar: Grammar, **sampling: object) -> Constraint:
    made = compiler.constraint(Sampling(grammar=grammar, **sampling))  # pyright: ignore[reportArgumentType]
    assert made is not None
    return made


def encode(text: str) -> list[int]:
    """The text byte by byte."""
    return TOKENIZER.encode(text).ids


def allowed(mask: torch.Tensor, row: int = 0) -> set[int]:
    words = [word & 0xFFFFFFFF for word in mask[row].tolist()]
    return {token for token in range(SIZE) if words[token // 32] >> token % 32 & 1}


def following(compiler: Compiler, grammar: Grammar, tokens: Sequence[int]) -> set[int]:
    """What a new constraint allows after these tokens."""
    fresh = constrained(compiler, grammar)
    for token in tokens:
        fresh.advance(token)
    return allowed(fresh.admit(Draft())[1])


def accepts(compiler: Compiler, grammar: Grammar, text: str) -> bool:
    tokens = [*encode(text), END]
    draft, _ = constrained(compiler, grammar).admit(Draft(tokens))
    return draft.tokens == tokens


# --- masks and drafts ---------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_row_of_a_draft_has_the_mask_of_a_fresh_matcher_and_the_state_stays(
    compiler: Compiler, data: st.DataObject
) -> None:
    grammar = data.draw(st.sampled_from(GRAMMARS))
    chance = data.draw(st.randoms(use_true_random=False))
    constraint = constrained(compiler, grammar)
    committed: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        tokens: list[int] = []
        legal = 0
        for place in range(data.draw(st.integers(0, 6))):
            junk = chance.choice([-1, SIZE, SIZE - 1, TOOL, chance.randrange(SIZE)])
            if legal < place:
                tokens.append(junk)
                continue
            choices = following(compiler, grammar, [*committed, *tokens])
            tokens.append(junk if chance.random() < 0.2 else chance.choice(sorted(choices)))
            legal += tokens[-1] in choices
            if tokens[-1] in ENDS:
                break
        q = torch.full((len(tokens), SIZE), 1 / SIZE) if chance.random() < 0.5 else None
        draft, mask = constraint.admit(Draft(tokens, q))
        kept = min(legal + (q is not None), len(tokens))
        assert draft.tokens == tokens[:kept]
        assert mask.dtype == torch.int32
        assert mask.shape == (1 + kept, (SIZE + 31) // 32)
        assert q is None or (draft.q is not None and len(draft.q) == kept)
        for row in range(1 + min(kept, legal)):
            before = tokens[:row]
            if ENDS.isdisjoint(before):
                assert allowed(mask, row) == following(compiler, grammar, [*committed, *before])
        assert torch.equal(constraint.admit(Draft(tokens, q))[1], mask)
        step = chance.choice(sorted(allowed(mask)))
        committed.append(step)
        constraint.advance(step)
        if step in ENDS:
            break


def test_a_one_hot_draft_is_cut_before_its_first_illegal_token(compiler: Compiler) -> None:
    constraint = constrained(compiler, Grammar("regex", "ab[0-9]{3}"))
    draft, mask = constraint.admit(Draft(encode("ab1x2")))
    assert draft.tokens == encode("ab1")
    assert draft.refused == "head"
    assert len(mask) == 4


def test_a_refused_token_is_the_heads_or_the_tails(compiler: Compiler) -> None:
    grammar, tokens = Grammar("regex", "ab[0-9]{3}"), encode("ab1x2")
    for head, part in ((5, "head"), (4, "head"), (3, "tail"), (1, "tail")):
        draft, _ = constrained(compiler, grammar).admit(Draft(tokens, head=head))
        assert (len(draft), draft.refused) == (3, part)
    draft, _ = constrained(compiler, grammar).admit(Draft(encode("x"), head=1))
    assert (len(draft), draft.refused) == (0, "head")


def test_a_draft_with_q_keeps_its_first_illegal_token_and_its_row_forbids_it(
    compiler: Compiler,
) -> None:
    constraint = constrained(compiler, Grammar("regex", "ab[0-9]{3}"))
    draft, mask = constraint.admit(Draft(encode("ab1x2"), torch.full((5, SIZE), 1 / SIZE)))
    assert draft.tokens == encode("ab1x")
    assert draft.refused == ""
    assert draft.q is not None
    assert len(draft.q) == 4
    assert encode("x")[0] not in allowed(mask, 3)
    assert len(mask) == 5


def test_a_complete_grammar_allows_every_end_id_and_nothing_else(compiler: Compiler) -> None:
    assert following(compiler, Grammar("regex", "ab"), encode("ab")) == ENDS


def test_a_draft_ends_with_a_legal_end_id(compiler: Compiler) -> None:
    constraint = constrained(compiler, Grammar("regex", "ab+"))
    draft, mask = constraint.admit(Draft([*encode("ab"), TURN, *encode("b")]))
    assert draft.tokens == [*encode("ab"), TURN]
    assert len(mask) == 4


def test_special_tokens_and_ids_without_a_token_are_never_text(compiler: Compiler) -> None:
    anything = following(compiler, Grammar("regex", "(?s:.*)"), [])
    assert TOOL not in anything
    assert anything.isdisjoint(range(TOOL + 1, SIZE))
    assert following(compiler, Grammar("grammar", 'start: <tool> "a"\n'), []) == {TOOL}


def test_text_that_spells_a_special_token_is_written_with_plain_ones(compiler: Compiler) -> None:
    grammar = Grammar("json_schema", '{"const": "<end>"}')
    written: list[int] = []
    while (may := following(compiler, grammar, written)) != ENDS:
        assert may.isdisjoint({END, TURN, TOOL})
        written.append(min(may))
    assert TOKENIZER.decode(written) == '"<end>"'


def test_a_character_may_be_cut_anywhere_between_tokens(compiler: Compiler) -> None:
    grammar = Grammar("regex", "[ä€]{2}")
    start, rest = WORDS.index("âĤ"), encode("€")[2:]
    draft, mask = constrained(compiler, grammar).admit(Draft([start, *rest, *encode("ä")]))
    assert len(draft) == 4
    assert allowed(mask, 1) == set(rest)  # in the middle of € only its last byte may follow
    assert allowed(mask, 4) == ENDS


def test_min_tokens_bars_end_and_stop_ids_until_nothing_else_may_follow(
    compiler: Compiler,
) -> None:
    digit, bang = encode("1")[0], encode("!")[0]
    grammar = Grammar("regex", "[0-9]{1,3}!?")
    constraint = constrained(compiler, grammar, min_tokens=3, stop_token_ids=(bang,))
    _, mask = constraint.admit(Draft([digit, digit, digit]))
    assert allowed(mask, 1).isdisjoint({END, TURN, bang})
    assert allowed(mask, 3) == {END, TURN, bang}
    complete = constrained(compiler, Grammar("regex", "[0-9]"), min_tokens=9)
    assert allowed(complete.admit(Draft([digit]))[1], 1) == ENDS


def test_ignore_eos_goes_on_while_the_grammar_lets_it(compiler: Compiler) -> None:
    constraint = constrained(compiler, Grammar("regex", "a{1,3}"), ignore_eos=True)
    letters = encode("aaa")
    draft, mask = constraint.admit(Draft([*letters[:2], END]))
    assert draft.tokens == letters[:2]
    assert allowed(mask, 1) == set(letters)
    for token in letters:
        constraint.advance(token)
    assert allowed(constraint.admit(Draft())[1]) == ENDS


def test_committing_what_the_mask_forbids_is_an_error_of_that_request(compiler: Compiler) -> None:
    constraint = constrained(compiler, Grammar("regex", "ab"))
    constraint.advance(encode("x")[0])
    for _ in range(2):
        with pytest.raises(RequestError, match="cannot follow"):
            constraint.admit(Draft(encode("b")))


def test_a_used_up_lexer_is_renewed_without_losing_the_place(compiler: Compiler) -> None:
    grammar = Grammar("regex", r"(.*a.{12}b|.*b.{13}c)+")
    second = constrained(compiler, grammar)
    with pytest.raises(RequestError, match="too many"):
        wander(constrained(compiler, grammar), encode("abcd"))
    committed: list[int] = []
    for token in encode("abcdabcdabcdabcdab"):
        committed.append(token)
        second.advance(token)
        assert allowed(second.admit(Draft())[1]) == following(compiler, grammar, committed)


@pytest.mark.parametrize("lawful", [False, True])
def test_a_draft_that_uses_up_the_lexer_is_cut_and_costs_the_request_nothing(
    compiler: Compiler, lawful: bool
) -> None:
    grammar = Grammar("regex", r"(.*b.{12}a|.*a.{13}d)+")
    chance = torch.Generator().manual_seed(0)
    letters = encode("abcd")
    path = [letters[i] for i in torch.randint(4, (MAX_STATES,), generator=chance).tolist()]
    q = torch.full((1, SIZE), 1 / SIZE).expand(len(path), -1) if lawful else None
    constraint = constrained(compiler, grammar)
    committed: list[int] = []
    draft = Draft(path)
    for token in encode("abcdab"):
        draft, mask = constraint.admit(Draft(path, q))
        assert len(draft) < len(path), "the limit was not met"
        assert mask.shape == (1 + len(draft), (SIZE + 31) // 32)
        assert allowed(mask) == following(compiler, grammar, committed)
        assert not len(draft) or not allowed(mask, len(draft)), "nothing is known there"
        committed.append(token)
        constraint.advance(token)
    assert len(draft) == 0, "it broke the matcher in every step"


@pytest.mark.parametrize("lawful", [False, True])
def test_a_dead_end_on_a_draft_ends_the_draft_only(letters: Compiler, lawful: bool) -> None:
    q = torch.full((3, 5), 0.2) if lawful else None
    constraint = constrained(letters, Grammar("regex", "a(b|cz)"))
    draft, mask = constraint.admit(Draft([0, 2, 3], q))  # no token is or begins with a z
    assert draft.tokens == [0, 2]
    assert [{t for t in range(5) if row >> t & 1} for row in mask[:, 0].tolist()] == [
        {0},
        {1, 2},
        set(),
    ]
    constraint.advance(0)
    constraint.advance(1)
    assert constraint.admit(Draft())[1].tolist() == [[1 << 4]]


@pytest.mark.parametrize("length", [0, 1, 2, 3])
@pytest.mark.parametrize(("favourite", "end"), [(1, Finished), (2, Failed)])
def test_only_a_dead_end_that_is_reached_ends_the_request_whatever_the_drafts(
    letters: Compiler, length: int, favourite: int, end: type
) -> None:
    """a, then b or c into the dead end, whichever the target likes better."""

    def likes(token: int, position: int) -> list[float]:
        return [2.0 if other == favourite else 0.0 for other in range(5)]

    def into_it(tokens: list[int], most: int) -> list[int]:
        return [0, 2, 3, 3][len(tokens) - 1 :][:most]

    run = Harness(5, likes, [ScriptedDrafter(into_it, "a")], lambda s, r, n: ("a", length))
    request = run.add([3], 9, end_ids=frozenset({4}))
    request.constraint = constrained(letters, Grammar("regex", "a(b|cz)"))
    run.drain()
    last = run.end(request)
    assert isinstance(last, end)
    streamed = [piece.token for piece in run.pieces(request)]
    assert streamed == ([0, 1, 4] if favourite == 1 else [0, 2])
    assert run.events[-1] is last, "something was streamed after the end"


def wander(constraint: Constraint, letters: Sequence[int]) -> None:
    """Follow random letters for a long time."""
    chance = torch.Generator().manual_seed(0)
    for choice in torch.randint(len(letters), (MAX_STATES,), generator=chance).tolist():
        constraint.admit(Draft())
        constraint.advance(letters[choice])


# --- the law ------------------------------------------------------------------------------------

LETTERS = ("a", "b", "c", "d")


def chain(token: int, position: int) -> list[float]:
    """Logits over a, b, c, d and the end, from the last token alone."""
    return [0.3 * ((3 * token + 2 * other) % 5) - 0.4 * (other == 4) for other in range(5)]


@pytest.fixture(scope="module")
def letters() -> Generator[Compiler]:
    made = Compiler(lambda: byte_level(LETTERS, ["<end>"]), lambda text: [], 5, frozenset({4}))
    yield made
    made.close()


def masked(token: int, may: set[int]) -> torch.Tensor:
    logits = torch.tensor(chain(token, 0))
    closed = torch.full((5,), float("-inf"))
    closed[list(may)] = 0.0
    return (logits + closed).softmax(0)


def test_drafts_with_q_that_break_the_grammar_leave_the_law_alone(letters: Compiler) -> None:
    """Two tokens of [ab][bc]d* after a first a, from drafts that are mostly illegal."""
    grammar = Grammar("regex", "[ab][bc]d*")
    expected = {
        (one, two): float(masked(0, {0, 1})[one] * masked(one, {1, 2})[two])
        for one, two in itertools.product((0, 1), (1, 2))
    }
    laws = torch.tensor([[0.1, 0.3, 0.2, 0.2, 0.2], [0.05, 0.15, 0.35, 0.35, 0.1]])
    executor = Harness(5, chain).executor
    chance = torch.Generator().manual_seed(7)
    count = 10_000
    drawn = torch.multinomial(laws.repeat(count, 1), 1, generator=chance).view(count, 2).tolist()
    seen: Counter[tuple[int, ...]] = Counter()
    for first in range(0, count, 2000):
        constraints = [constrained(letters, grammar) for _ in range(2000)]
        texts = [[0] for _ in constraints]
        drafts = [Draft(tokens, laws) for tokens in drawn[first : first + 2000]]
        step(executor, constraints, texts, drafts, Draw(temperature=1.0))
        short = [index for index, text in enumerate(texts) if len(text) < 3]
        step(
            executor,
            [constraints[index] for index in short],
            [texts[index] for index in short],
            [Draft() for _ in short],
            Draw(temperature=1.0),
        )
        seen.update(tuple(text[1:3]) for text in texts)
    assert set(seen) <= set(expected)
    chi_square = sum((seen[p] - count * e) ** 2 / (count * e) for p, e in expected.items())
    assert chi_square < 16.27  # 3 degrees of freedom, p = 0.001


def step(
    executor: Executor,
    constraints: Sequence[Constraint],
    texts: Sequence[list[int]],
    drafts: Sequence[Draft],
    draw: Draw,
    pages: Sequence[int] = tuple(range(256)),
) -> None:
    """One verify step; texts grow by what it commits."""
    chunks = []
    for index, (constraint, text, proposed) in enumerate(
        zip(constraints, texts, drafts, strict=True)
    ):
        draft, mask = constraint.admit(proposed)
        chunks.append(
            Chunk(
                request=index,
                ids=[text[-1], *draft.tokens],
                start=len(text) - 1,
                pages=pages,
                draw=draw,
                drafted=len(draft),
                q=draft.q,
                history=text,
                prompt_length=1,
                mask=mask,
            )
        )
    for result in executor.verify(chunks).result():
        assert result.bad is None
        for token in result.tokens[: result.accepted + 1]:
            texts[result.request].append(token)
            constraints[result.request].advance(token)


# --- valid text whatever the drafts -------------------------------------------------------------


def noise(token: int, position: int) -> list[float]:
    generator = torch.Generator().manual_seed(1009 * position + token)
    return torch.randn(SIZE, generator=generator).tolist()


def breaking(text: list[int]) -> Draft:
    return Draft([TOOL, *encode("}}}")])


def partly_legal(text: list[int]) -> Draft:
    """The last tokens again, then bytes that break most grammars."""
    return Draft([*text[-3:], *encode('"{1')])


def with_q(text: list[int]) -> Draft:
    generator = torch.Generator().manual_seed(len(text))
    q = torch.rand(4, SIZE, generator=generator)
    q /= q.sum(-1, keepdim=True)
    return Draft(torch.multinomial(q, 1, generator=generator).flatten().tolist(), q)


@pytest.mark.parametrize("drafter", [breaking, partly_legal, with_q])
@pytest.mark.parametrize("draw", [Draw(), Draw(temperature=1.0, seed=5)])
def test_drafts_that_break_a_schema_leave_the_plain_text(
    compiler: Compiler, drafter: Callable[[list[int]], Draft], draw: Draw
) -> None:
    grammar = Grammar("json_schema", json.dumps(PERSON))
    executor = Harness(SIZE, noise).executor

    def generated(propose: Callable[[list[int]], Draft]) -> list[int]:
        constraint, text = constrained(compiler, grammar), [0]
        while text[-1] not in ENDS:
            step(executor, [constraint], [text], [propose(text)], draw)
        return text[1:-1]

    text = generated(drafter)
    assert text == generated(lambda text: Draft())
    jsonschema.validate(json.loads(TOKENIZER.decode(text)), PERSON)


def test_the_loop_writes_the_schema_whatever_its_drafters_propose(compiler: Compiler) -> None:
    drafters = [
        ScriptedDrafter(lambda tokens, length: list(breaking(tokens).tokens), "ngram"),
        ScriptedDrafter(lambda tokens, length: list(partly_legal(tokens).tokens), "suffix"),
    ]
    grammar = Grammar("json_schema", json.dumps(PERSON))

    def generated(length: int) -> tuple[list[int], Harness]:
        harness = Harness(
            SIZE,
            noise,
            drafters,
            lambda step, request, names: (("ngram", "suffix")[step % 2], length),
        )
        request = harness.add([0], 400, end_ids=ENDS)
        request.constraint = constrained(compiler, grammar)
        harness.drain()
        done = harness.end(request)
        assert isinstance(done, Finished)
        assert done.finish_reason == "stop"
        return request.tokens[1:-1], harness

    text, plain = generated(0)
    drafted, harness = generated(5)
    assert drafted == text
    jsonschema.validate(json.loads(TOKENIZER.decode(text)), PERSON)
    accepted = [o.accepted for s in harness.controller.outcomes for o in s.per_request]
    assert sum(accepted) > 0
    assert harness.engine.steps < plain.engine.steps
    # A draft that ended before an illegal token is told as one that had a wrong token there.
    told = [o for s in harness.controller.outcomes for o in s.per_request]
    assert {o.refused for o in told} >= {"ngram", "suffix"}
    assert {o.drafter for o in told if o.refused == "ngram"} <= {"ngram", "none"}
    assert not [o for s in plain.controller.outcomes for o in s.per_request if o.refused != "none"]


def test_a_grammar_that_gets_stuck_ends_its_own_request_only(letters: Compiler) -> None:
    """No token of this vocabulary can write an x."""
    harness = Harness(5, chain)
    stuck, good = (harness.add([0], 99, end_ids=frozenset({4})) for _ in range(2))
    plain = harness.add([1], 40)
    stuck.constraint = constrained(letters, Grammar("regex", "a[bc]{30}x"))
    good.constraint = constrained(letters, Grammar("regex", "a[bc]{30}d"))
    harness.drain()
    failed = harness.end(stuck)
    assert isinstance(failed, Failed)
    assert failed.code == "invalid_request"
    assert stuck.produced == 31
    assert [getattr(harness.end(one), "finish_reason", None) for one in (good, plain)] == [
        "stop",
        "length",
    ]


def test_max_tokens_cuts_a_constrained_text_as_length(compiler: Compiler) -> None:
    harness = Harness(SIZE, noise)
    request = harness.add([0], 3, end_ids=ENDS)
    request.constraint = constrained(compiler, Grammar("regex", "[a-z]{9}"))
    harness.drain()
    done = harness.end(request)
    assert isinstance(done, Finished)
    assert (done.finish_reason, done.completion_tokens) == ("length", 3)


def test_the_real_model_writes_the_schema_with_drafts_from_its_own_text(target: Target) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Zürich", "東京"]},
            "inhabitants": {"type": "integer", "minimum": 1, "maximum": 99_999_999},
        },
        "required": ["city", "inhabitants"],
        "additionalProperties": False,
    }
    stop_ids, text_of = target.loaded.stop_ids, target.text
    vocabulary = target.loaded.decoder.shape.vocabulary
    compiler = Compiler(text_of.definition, text_of.encode, vocabulary, stop_ids)
    prompt = target.text.render([Message("user", "Name a city and its inhabitants as JSON.")])
    pages = list(range(16))
    executor = target.executor

    def generated(propose: Callable[[list[int]], Draft]) -> list[int]:
        constraint = constrained(compiler, Grammar("json_schema", json.dumps(schema)))
        _, mask = constraint.admit(Draft())
        chunk = Chunk(0, prompt, 0, pages, Draw(), mask=mask, history=prompt)
        text = [*prompt, *executor.verify([chunk]).result()[0].tokens]
        constraint.advance(text[-1])
        while text[-1] not in stop_ids:
            step(executor, [constraint], [text], [propose(text)], Draw(), pages)
        return text[len(prompt) : -1]

    def repeated(text: list[int]) -> Draft:
        """What followed the last token where it came before, or the prompt, which breaks it."""
        before = [i for i, token in enumerate(text[:-1]) if token == text[-1]]
        return Draft(text[before[-1] + 1 : before[-1] + 5] if before else prompt[:4])

    try:
        plain = generated(lambda text: Draft())
        assert generated(repeated) == plain
    finally:
        compiler.close()
    jsonschema.validate(json.loads(target.text.decode(plain)), schema)


# --- what a grammar can say ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "minimum": 3, "maximum": 17}, ["3", "17"], ["2", "18"]),
        ({"type": "number", "exclusiveMinimum": 0.5}, ["0.6", "712.25"], ["0.5"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"äö€"'], ['"a"', '"abcd"']),
        ({"type": "string", "pattern": "^[a-c]+x$"}, ['"abx"'], ['"x"']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-13-01"']),
        ({"enum": [1, "two", None, {"a": 1}]}, ["1", '"two"', "null", '{"a":1}'], ["2"]),
        ({"const": 'ü€😀"'}, ['"ü€😀\\""'], ['"u"']),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["1", "null"], ["true"]),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"a"'], ["true"]),
        ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]}, ["5"], ["2", "10"]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, ["[1,2]"], ["[1]"]),
        (
            {"prefixItems": [{"type": "integer"}], "items": False, "type": "array"},
            ["[1]"],
            ["[1,2]"],
        ),
        (
            PERSON,
            ['{"name":"x","age":9,"tree":{"mark":"ä€","kids":[{"mark":3}]}}'],
            ['{"name":"x"}'],
        ),
        (True, ["1", '{"a": [null, 1.5e3]}'], ["{a}"]),
    ],
)
def test_a_schema_accepts_its_instances_and_no_others(
    compiler: Compiler, schema: object, good: list[str], bad: list[str]
) -> None:
    grammar = Grammar("json_schema", json.dumps(schema))
    assert [text for text in good if not accepts(compiler, grammar, text)] == []
    assert [text for text in bad if accepts(compiler, grammar, text)] == []


def test_json_object_is_an_object(compiler: Compiler) -> None:
    grammar = Grammar("json_object")
    assert accepts(compiler, grammar, '{"a": [1, true, {"b": null}],\n  "ä": "€\\n"}')
    assert not accepts(compiler, grammar, "[1]")
    assert not accepts(compiler, grammar, '{"a": 1} and more')


def test_blanks_in_json_come_to_an_end(compiler: Compiler) -> None:
    """vllm#55313: a model wrote 250,000 blanks."""
    blank = encode("{") + encode(" ") * 100
    assert following(compiler, Grammar("json_object"), blank).isdisjoint(encode(" \n\t"))


def test_a_regex_matches_the_whole_text(compiler: Compiler) -> None:
    choice = Grammar("regex", r"yes|no|may\ be")
    assert [text for text in ("yes", "no", "may be") if not accepts(compiler, choice, text)] == []
    assert [text for text in ("", "ye", "yes!", "maybe") if accepts(compiler, choice, text)] == []


@pytest.mark.parametrize("grammar", GRAMMARS[3:])
def test_a_grammar_is_lark_or_gbnf(compiler: Compiler, grammar: Grammar) -> None:
    assert accepts(compiler, grammar, "ab1,2" if "start" in grammar.source else "ab,12,(ab,3)")
    assert not accepts(compiler, grammar, "ab,")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ('greeting: "hi"', "as Lark .* no rule `start"),
        ('root: "a"\n', "as Lark .* no rule `start"),
        ("", "as Lark .* no rule `start"),
        ('start: "a" (', "Expected token"),
        ('root ::= "a" | b', "as GBNF: Rule 'b' not found"),
        ('item ::= "a"', "as GBNF: No 'root' rule"),
        ('root ::= "a"\nstart: "b"', "as GBNF"),
    ],
)
def test_errors_of_a_grammar_are_those_of_its_notation(
    compiler: Compiler, source: str, says: str
) -> None:
    with pytest.raises(RequestError, match=says):
        constrained(compiler, Grammar("grammar", source))
    assert accepts(compiler, Grammar("grammar", "start: A\nA: /x ::= y/"), "x ::= y")


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"type": "string"}},
        {"if": {"type": "string"}, "then": {"maxLength": 3}},
        {"type": "array", "uniqueItems": True},
        {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 10}]},
        {"$ref": "https://example.org/schema.json"},
    ],
)
def test_what_cannot_be_guaranteed_is_refused_not_ignored(
    compiler: Compiler, schema: dict[str, object]
) -> None:
    with pytest.raises(RequestError) as caught:
        constrained(compiler, Grammar("json_schema", json.dumps(schema)))
    assert (caught.value.code, caught.value.param) == ("invalid_request", "response_format")


# --- hostile grammars ---------------------------------------------------------------------------


def nested(levels: int) -> str:
    return '{"type":"array","items":' * levels + '{"type":"integer"}' + "}" * levels


def doubling(keyword: str) -> str:
    definitions: dict[str, object] = {
        f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)
    }
    return json.dumps({"$defs": definitions | {"d30": {"type": "object"}}, "$ref": "#/$defs/d0"})


HOSTILE = {
    "no regex": Grammar("regex", "((("),
    "look-ahead": Grammar("regex", "(?=a)b"),
    "deep parentheses": Grammar("regex", "(" * 50_000 + "a" + ")" * 50_000),
    "expanding repetition": Grammar("regex", "(x{60000}){60000}"),
    "many optional": Grammar("regex", "a?" * 5000 + "a" * 5000),
    "no JSON": Grammar("json_schema", "{nope"),
    "empty": Grammar("json_schema", ""),
    "deep schema": Grammar("json_schema", nested(4000)),
    "never": Grammar("json_schema", "false"),
    "contradiction": Grammar("json_schema", '{"type":"integer","minimum":5,"maximum":4}'),
    "endless reference": Grammar(
        "json_schema", '{"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}'
    ),
    "cross product": Grammar(
        "json_schema",
        json.dumps(
            {
                "allOf": [
                    {"anyOf": [{"required": [f"p{i}{j}"], "type": "object"} for j in range(8)]}
                    for i in range(8)
                ]
            }
        ),
    ),
    "endless rule": Grammar("grammar", "start: a\na: a\n"),
    "deep rules": Grammar(
        "grammar",
        "start: r0\n"
        + "".join(f"r{i}: r{i + 1} r{i + 1} | /x/\n" for i in range(4000))
        + 'r4000: "z"\n',
    ),
    "deep GBNF": Grammar("grammar", "root ::= " + "(" * 50_000 + '"a"'),
    "raw format": Grammar("grammar", '{"grammars":[{"lark_grammar":"start: /a/"}]}'),
    "too long": Grammar("regex", "a" * (MAX_SOURCE_CHARACTERS + 1)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_with_its_field_and_the_next_one_works(
    compiler: Compiler, name: str
) -> None:
    before = resident_bytes()
    with pytest.raises(RequestError) as caught:
        constrained(compiler, HOSTILE[name])
    assert caught.value.code == "invalid_request"
    assert caught.value.param in ("response_format", "structured_outputs")
    assert len(caught.value.message) < 400
    assert resident_bytes() - before < 64 * 1024 * 1024
    assert accepts(compiler, Grammar("regex", f"next{len(name)}"), f"next{len(name)}")


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", nested(100)),
        Grammar("json_schema", doubling("anyOf")),
        Grammar("json_schema", doubling("allOf")),
        Grammar("json_schema", '{"type":"array","items":true,"minItems":1000000}'),
        Grammar("regex", "|".join(f"w{i}.*x{i}" for i in range(3000))),
        Grammar("grammar", 'start: s\ns: s s | s s s | "a" | "b" s | ""\n'),
    ],
)
def test_a_grammar_that_only_looks_hostile_works(compiler: Compiler, grammar: Grammar) -> None:
    assert allowed(constrained(compiler, grammar).admit(Draft())[1])


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_trial_that_hangs_is_ended_and_the_next_grammar_gets_a_new_process() -> None:
    others = children()
    compiler = Compiler(lambda: DEFINITION, encode, SIZE, ENDS, seconds=0.5)
    try:
        for source in "abc"[:MAX_TRIALS]:  # every process
            assert accepts(compiler, Grammar("regex", source), source)
        hung = children() - others
        assert len(hung) == MAX_TRIALS
        for process in hung:
            os.kill(process, signal.SIGSTOP)
        for source in "xyz"[:MAX_TRIALS]:
            with pytest.raises(RequestError, match=r"more than 0\.5 s"):
                constrained(compiler, Grammar("regex", source))
        assert children().isdisjoint(hung)
        assert accepts(compiler, Grammar("regex", "e"), "e")
    finally:
        compiler.close()


def children() -> set[int]:
    """Trial processes of this one."""
    path = f"/proc/self/task/{threading.get_native_id()}/children"
    with open(path, encoding="ascii") as file:
        return {int(word) for word in file.read().split() if _is_trial(word)}


def _is_trial(process: str) -> bool:
    with open(f"/proc/{process}/cmdline", encoding="utf-8") as file:
        return "engine.grammar_trial" in file.read()


def test_compiled_grammars_are_kept_up_to_a_number() -> None:
    calls = itertools.count()
    compiler = Compiler(lambda: (next(calls), DEFINITION)[1], encode, SIZE, ENDS)
    try:
        for number in range(CACHED_GRAMMARS + 5):
            constrained(compiler, Grammar("regex", f"a{number}"))
        assert len(compiler._cache) == CACHED_GRAMMARS
        big = "|".join(f"word{i}" for i in range(12_000))
        for number in range(12):
            constrained(compiler, Grammar("regex", f"{big}|{number}"))
        assert sum(len(kept.source) for kept in compiler._cache) <= 1024 * 1024
        assert next(calls) == 1  # the vocabulary was read once
    finally:
        compiler.close()


def test_a_model_without_an_end_token_takes_no_grammar() -> None:
    compiler = Compiler(lambda: DEFINITION, encode, SIZE, frozenset())
    with pytest.raises(RequestError, match="end-of-sequence"):
        constrained(compiler, Grammar("json_object"))


# --- admission ----------------------------------------------------------------------------------


class Door:
    """An Admission over the real Intake whose grammars compile when the test says so."""

    def __init__(self, target: Target, compiler: Compiler) -> None:
        self.go = threading.Event()
        self.taken: list[Request | Cancel | Failed] = []
        self._changed = threading.Condition()
        limits = Limits(1024, 1024, 8, 49_152)

        def constrain(sampling: Sampling) -> Constraint | None:
            if sampling.grammar is not None:
                assert self.go.wait(30)
            return compiler.constraint(sampling)

        intake = Intake(target.text, limits, frozenset({0}), lambda name: True, constrain)
        self.admission = Admission(intake, self._take, self._take)

    def _take(self, message: Request | Cancel | Failed) -> None:
        with self._changed:
            self.taken.append(message)
            self._changed.notify_all()

    def submit(self, name: str, grammar: Grammar | None = None, tenant: str = "t") -> None:
        sampling = Sampling(max_tokens=4, grammar=grammar)
        self.admission.submit(Submit(name, sampling, prompt="Hi", tenant=tenant))

    def names(self, count: int) -> list[str]:
        """What was taken in, once it is so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.taken) >= count, 30)
            return [_name(message) for message in self.taken]


def _name(message: Request | Cancel | Failed) -> str:
    if isinstance(message, Request):
        return message.name
    return f"{type(message).__name__} {message.id}"


@pytest.fixture
def door(target: Target, compiler: Compiler) -> Iterator[Door]:
    made = Door(target, compiler)
    yield made
    made.go.set()


def test_other_requests_overtake_one_whose_grammar_compiles(door: Door) -> None:
    door.submit("slow", Grammar("regex", "a+"))
    door.submit("quick")
    door.admission.cancel(Cancel("quick"))
    assert door.names(2) == ["quick", "Cancel quick"]
    door.go.set()
    assert door.names(3)[2] == "slow"


def test_a_cancel_waits_behind_its_own_request(door: Door) -> None:
    door.submit("one", Grammar("regex", "a+"))
    for _ in range(1000):
        door.admission.cancel(Cancel("one"))
    door.submit("two")
    assert door.names(1) == ["two"]
    door.go.set()
    assert door.names(3) == ["two", "one", "Cancel one"]


def test_a_bad_grammar_fails_its_own_request_only(door: Door) -> None:
    door.go.set()
    door.submit("good", Grammar("regex", "a+"))
    door.submit("bad", Grammar("regex", "((("))
    door.submit("plain")
    assert sorted(door.names(3)) == ["Failed bad", "good", "plain"]
    (failed,) = [message for message in door.taken if isinstance(message, Failed)]
    assert (failed.code, failed.param) == ("invalid_request", "structured_outputs")
    with_grammar = [m for m in door.taken if isinstance(m, Request) and m.constraint is not None]
    assert [request.name for request in with_grammar] == ["good"]


def test_waiting_grammars_are_bounded_by_tenant_and_together(door: Door) -> None:
    for number in range(MOST_PER_TENANT + 1):
        door.submit(f"r{number}", Grammar("regex", "a+"))
    assert door.names(1) == [f"Failed r{MOST_PER_TENANT}"]
    for number in range(MOST_PER_TENANT, MOST_WAITING + 1):
        door.submit(f"s{number}", Grammar("regex", "a+"), f"tenant {number // MOST_PER_TENANT}")
    assert door.names(2)[1] == f"Failed s{MOST_WAITING}"
    door.go.set()
    assert len(door.names(MOST_WAITING + 2)) == MOST_WAITING + 2
