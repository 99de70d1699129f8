"""Text in and out: what is encoded is all of the text, what is streamed is what decoding gives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from engine.build import Target
from engine.calls import answer
from engine.detokenizer import MOST_PENDING, WINDOW, ByteDetokenizer, WindowDetokenizer
from engine.text import Text
from engine.wire import Message, Tokenize

SPACE = "\u2581"
BYTES = [f"<0x{value:02X}>" for value in range(256)]
WORDS = [SPACE, f"{SPACE}the", f"{SPACE}{SPACE}the", "s", "\u00e9", "日本", ".", "<0xZZ>", "\ufffd"]
FIRST_BYTE = 3


def sentencepiece(*last: decoders.Decoder) -> Tokenizer:
    """Llama 2's way: bytes stand for unknown letters, a space is U+2581."""
    names = ["<unk>", "<s>", "</s>", *BYTES, *WORDS]
    vocabulary = {name: token for token, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    )
    made.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.add_tokens([AddedToken("<tool>", special=False)])
    return made


def byte_level() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, "Ġthe", "âĤ", "Ã©", "¬x", "abâ"]
    made = Tokenizer(models.BPE({word: token for token, word in enumerate(words)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    made.add_tokens([AddedToken("日 x", special=False)])
    return made


def words(decoder: decoders.Decoder | None, names: Sequence[str]) -> Tokenizer:
    made = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, names[0]))
    if decoder is not None:
        made.decoder = decoder
    made.add_special_tokens(["<end>"])
    return made


LLAMA = sentencepiece(decoders.Strip(" ", 1, 0))
TOKENIZERS = {
    "byte level": byte_level(),
    "llama": LLAMA,
    "gemma": sentencepiece(),
    "metaspace": words(decoders.Metaspace(), ["<unk>", f"{SPACE}the", SPACE, f"s{SPACE}", "é"]),
    "wordpiece": words(decoders.WordPiece(), ["[UNK]", "un", "##do", ".", "'s", "do not", "é"]),
    "no decoder": words(None, ["<unk>", "the", "end", "é"]),
    "whole words": words(decoders.BPEDecoder(), ["<unk>", "the</w>", "en", "d</w>", "é</w>"]),
}


def text_of(tokenizer: Tokenizer, **names: str) -> Text:
    return Text(PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names))


def id_of(tokenizer: Tokenizer, name: str) -> int:
    token = tokenizer.token_to_id(name)
    assert token is not None
    return token


def streamed(text: Text, ids: Sequence[int], before: Sequence[int] = ()) -> str:
    stream = text.stream(before)
    return "".join(stream.add(token) for token in ids) + stream.flush()


def expected(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The library's own decoding, with the bytes of a broken run of byte tokens (for which it
    gives one U+FFFD each) replaced as everywhere else."""
    kept = [token for token in ids if token >= FIRST_BYTE and tokenizer.id_to_token(token)]
    if tokenizer.model.__class__ is not models.BPE or "<0x00>" not in tokenizer.get_vocab():
        return tokenizer.decode(list(ids), skip_special_tokens=True)
    text, run = "", b""
    for token in [*kept, None]:
        if token is not None and token < FIRST_BYTE + 256:
            run += bytes([token - FIRST_BYTE])
            continue
        text += run.decode("utf-8", "replace")
        run = b""
        if token is not None:
            text += (tokenizer.id_to_token(token) or "").replace(SPACE, " ")
    strips = tokenizer is LLAMA
    return text.removeprefix(" ") if strips else text


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(0, 60))
def test_any_ids_stream_as_the_library_decodes_them(name: str, seed: int, length: int) -> None:
    tokenizer = TOKENIZERS[name]
    size = tokenizer.get_vocab_size() + 3  # ids without a token are no text
    chance = random.Random(seed)
    some = [chance.randrange(size) for _ in range(6)]
    ids = [chance.choice([*some, chance.randrange(size)]) for _ in range(length)]
    shown = streamed(text_of(tokenizer), ids)
    assert shown == expected(tokenizer, ids)
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert shown == whole or "\ufffd" in whole


@pytest.mark.parametrize("name", ["byte level", "llama", "gemma"])
@settings(max_examples=200, deadline=None)
@given(sample=st.text(max_size=40))
@example("é\xffb 日本語 🚴‍♀️ the  the.")
@example(" leading")
def test_valid_text_comes_back_without_replacement_characters(name: str, sample: str) -> None:
    if "\ufffd" in sample or (name != "byte level" and SPACE in sample):
        return
    tokenizer = TOKENIZERS[name]
    text = text_of(tokenizer)
    ids = text.encode(sample)
    stream = text.stream()
    parts = [stream.add(token) for token in ids]
    assert not any("\ufffd" in part for part in parts)
    assert stream.flush() == ""
    assert "".join(parts) == tokenizer.decode(ids, skip_special_tokens=True) == text.decode(ids)
    assert "".join(parts).lstrip(" ") == sample.lstrip(" ")


def test_the_real_tokenizer_streams_any_ids_as_it_decodes_them(target: Target) -> None:
    chance = random.Random(7)
    size = target.loaded.decoder.shape.vocabulary
    for _ in range(50):
        ids = [chance.randrange(size) for _ in range(100)]
        assert streamed(target.text, ids) == target.text.decode(ids)


def test_a_broken_byte_run_of_a_byte_fallback_tokenizer_raises_nothing() -> None:
    tokenizer = TOKENIZERS["gemma"]
    text = text_of(tokenizer)
    ids = [id_of(tokenizer, name) for name in ("é", "<0xFF>", "s", "<0xE2>", "<0x82>")]
    assert streamed(text, ids) == "é\ufffds\ufffd"
    stream = text.stream()
    assert [stream.add(token) for token in ids] == ["é", "\ufffd", "s", "", ""]


def test_special_tokens_are_no_text_and_break_no_character() -> None:
    tokenizer = TOKENIZERS["byte level"]
    end, *parts = (id_of(tokenizer, name) for name in ("<end>", "âĤ", "¬x"))
    text = text_of(tokenizer)
    assert streamed(text, [end, parts[0], end, end, parts[1], end]) == "€x"


@pytest.mark.parametrize(("name", "silent"), [("byte level", "<end>"), ("gemma", "</s>")])
def test_tokens_without_text_leave_nothing_to_do_again(name: str, silent: str) -> None:
    """What earlier tokens were costs a later one nothing: the stream keeps no list of them."""
    tokenizer = TOKENIZERS[name]
    stream = text_of(tokenizer).stream()
    assert isinstance(stream, ByteDetokenizer)
    token = id_of(tokenizer, silent)
    assert {stream.add(token) for _ in range(1000)} == {""}
    lead = id_of(tokenizer, "â" if name == "byte level" else "<0xE2>")
    assert "".join(stream.add(lead) for _ in range(1000)) + stream.flush() == "\ufffd" * 1000
    assert len(stream._decoder.getstate()[0]) == 0


def test_a_decoder_without_text_per_token_keeps_few_tokens() -> None:
    tokenizer = TOKENIZERS["whole words"]
    stream = text_of(tokenizer).stream()
    assert isinstance(stream, WindowDetokenizer)
    the, end = id_of(tokenizer, "the</w>"), id_of(tokenizer, "<end>")
    for step in range(500):
        stream.add(the if step % 3 else end)
        assert len(stream._old) <= WINDOW
        assert len(stream._new) < MOST_PENDING


def test_an_answer_that_goes_on_from_a_text_keeps_its_space() -> None:
    text = text_of(LLAMA, bos_token="<s>")
    the = id_of(LLAMA, f"{SPACE}the")
    assert streamed(text, [the, the]) == "the the"
    assert streamed(text, [the, the], before=text.encode_whole("s")[-WINDOW:]) == " the the"
    assert streamed(text, [the, the], before=[id_of(LLAMA, "<s>")]) == "the the"


def test_a_files_truncation_padding_and_dropout_do_not_touch_prompts() -> None:
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    sample = "the whole text, " * 20
    whole = tokenizer.encode(sample).ids
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=1000)
    assert text_of(tokenizer).encode(sample) == whole
    merged = models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5)
    text = text_of(Tokenizer(merged))
    assert text.encode("ab" * 50) == [2] * 50


def test_a_whole_text_begins_once() -> None:
    text = text_of(LLAMA, bos_token="<s>")
    begin = id_of(LLAMA, "<s>")
    plain = text.encode("the end")
    assert text.encode_whole("the end") == [begin, *plain]
    assert text.encode_whole("<s>the end").count(begin) == 1
    assert begin not in plain


def test_tokenize_gives_the_ids_that_a_request_would_have() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=LLAMA, bos_token="<s>")
    tokenizer.chat_template = "{% for m in messages %}<s>{{ m['content'] }}{% endfor %}"
    text, begin = Text(tokenizer), id_of(LLAMA, "<s>")
    engine: Any = None

    def ids(*given: Any) -> list[int]:
        reply: Any = answer(Tokenize(*given), engine, text)
        return reply["tokens"]

    messages = (Message("user", "the"),)
    plain = text.encode("the")
    assert ids("the") == ids("the", None, True) == [begin, *plain]
    assert ids("the", None, False) == plain
    assert ids(None, messages) == ids(None, messages, False) == text.render(messages)
    assert ids(None, messages).count(begin) == ids(None, messages, True).count(begin) == 1
    assert ids("") == [begin]


def test_a_tokenizer_that_adds_nothing_adds_nothing(target: Target) -> None:
    assert target.text.encode_whole("The capital") == target.text.encode("The capital")


def test_the_text_that_a_token_may_stand_for_is_known_where_there_is_a_limit(
    target: Target,
) -> None:
    assert text_of(byte_level()).most_bytes == len("日 x".encode())
    assert text_of(LLAMA).most_bytes == max(len(f"{SPACE}{SPACE}the".encode()), 6)
    assert text_of(TOKENIZERS["wordpiece"]).most_bytes is None, "an unknown word has any length"
    composing = byte_level()
    composing.normalizer = normalizers.NFC()
    assert text_of(composing).most_bytes == 3 * len("日 x".encode())
    dropping = byte_level()
    dropping.normalizer = normalizers.Strip()
    assert text_of(dropping).most_bytes is None
    spell = target.text.spell
    longest = max(spell.length(token) for token in range(49_152))
    assert target.text.most_bytes == longest
