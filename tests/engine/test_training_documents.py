"""Prompts made of documents: whole sentences, bounded, each passage once."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from app.cli import main
from engine.errors import StartError
from engine.training.documents import make_prompts, passages, prompts_of
from engine.training.prompts import read_prompts

WORDS = ("tide", "moon", "river", "stone", "bridge", "lamp", "winter", "paper", "orange", "cloud")


def document(seed: int, sentences: int = 60) -> str:
    source = random.Random(seed)
    written = (
        " ".join(source.choices(WORDS, k=source.randint(3, 14))) + source.choice(".!?")
        for _ in range(sentences)
    )
    return f"{source.choice((' ', chr(10)))}".join(written)


def test_passages_are_whole_sentences_in_their_order_and_bounded() -> None:
    for seed in range(50):
        text = document(seed)
        found = passages(text, 20, 45, random.Random(seed))
        assert len(found) > 3
        place = 0
        plain = " ".join(text.split())
        for passage in found:
            assert 20 <= len(passage.split()) <= 45
            assert passage[-1] in ".!?"
            begin = plain.index(passage, place)
            assert plain[:begin].rstrip()[-1:] in ("", ".", "!", "?")
            place = begin + len(passage)


def test_passages_have_all_lengths() -> None:
    lengths = {
        len(passage.split())
        for seed in range(50)
        for passage in passages(document(seed), 20, 45, random.Random(seed))
    }
    assert min(lengths) < 24
    assert max(lengths) > 41


def test_a_sentence_above_the_bound_is_left_out_with_what_stood_before_it() -> None:
    long = " ".join(["word"] * 30) + "."
    text = f"One two three. {long} Four five six seven."
    assert passages(text, 3, 10, random.Random(0)) == ["One two three.", "Four five six seven."]
    assert passages(f"One two. {long} Three four.", 3, 10, random.Random(0)) == []
    assert passages(long, 3, 10, random.Random(0)) == []
    assert passages("", 1, 10, random.Random(0)) == []


def test_one_passage_of_every_document_before_a_second_and_none_twice() -> None:
    texts = [document(seed) for seed in range(8)]
    prompts = prompts_of([*texts, texts[0]], ["{text}"], 10, 20, 8, 0)
    homes = [
        next(n for n, text in enumerate(texts) if p in " ".join(text.split())) for p in prompts
    ]
    assert sorted(homes) == list(range(8))
    everything = prompts_of(texts, ["{text}"], 10, 20, 10_000, 0)
    assert len(everything) == len(set(everything)) > 80
    assert set(prompts_of([*texts, texts[0]], ["{text}"], 10, 20, 10_000, 0)) == set(everything)
    firsts = [
        next(n for n, text in enumerate(texts) if p in " ".join(text.split())) for p in everything
    ]
    assert sorted(firsts[:8]) != list(range(8))  # rounds are mixed in the end


def test_only_the_place_of_the_text_is_filled_and_the_seed_picks_the_ask() -> None:
    texts = [f"Number {number} is a whole text." for number in range(40)]
    asks = ['Give {"a": 1} for: {text}', "{text} Why?"]
    found = [set(prompts_of(texts, asks, 6, 6, 40, seed)) for seed in (1, 2)]
    assert all(
        f'Give {{"a": 1}} for: {text}' in prompts or f"{text} Why?" in prompts
        for prompts in found
        for text in texts
    )
    assert found[0] != found[1]


def test_the_seed_decides_passages_asks_and_order() -> None:
    texts = [document(seed) for seed in range(8)]
    asks = ["Say it again: {text}", "{text}\n\nShorter, please."]
    first = prompts_of(texts, asks, 10, 40, 20, 3)
    assert first == prompts_of(texts, asks, 10, 40, 20, 3)
    assert first != prompts_of(texts, asks, 10, 40, 20, 4)
    assert 4 < sum(prompt.startswith("Say it") for prompt in first) < 16
    assert all(
        prompt.startswith("Say it again: ") or prompt.endswith("\n\nShorter, please.")
        for prompt in first
    )


def test_the_command_writes_prompts_that_generate_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "texts.jsonl", tmp_path / "prompts.jsonl"
    separator = "\u2028"
    lines = [{"text": f"Braces {{text}} stay{separator} as they are."}, {"turns": [document(1)]}]
    source.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), "utf-8")
    command = ["train", "prompts", str(out), str(source), "--ask", "Sum up: {text}"]
    assert main([*command, "--words", "4:20", "--most", "5", "--category", "sums"]) == 0
    assert "5 prompts of 2 documents" in capsys.readouterr().out
    prompts = read_prompts(str(out))
    assert [one.category for one in prompts] == ["sums"] * 5
    assert any(f"Braces {{text}} stay{separator} as" in one.text for one in prompts)
    before = out.read_bytes()
    assert main([*command, "--words", "4:20", "--most", "5", "--category", "sums"]) == 0
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"asks": ["Sum up: text"]}, "{text} stands nowhere"),
        ({"words": (30, 10)}, "the first is above the second"),
        (
            {"words": (5000, 9000)},
            "none of the 1 documents holds a passage of 5,000 to 9,000 words",
        ),
        ({"documents": ["missing.jsonl"]}, "missing.jsonl: cannot read it"),
        ({"out": Path("/proc/none/prompts.jsonl")}, "cannot write /proc/none/prompts.jsonl"),
    ],
)
def test_what_cannot_be_done_is_a_clear_error(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    source = tmp_path / "texts.jsonl"
    source.write_text(json.dumps({"text": document(2)}), "utf-8")
    job: dict[str, object] = {
        "documents": [str(source)],
        "out": tmp_path / "prompts.jsonl",
        "asks": ["Sum up: {text}"],
        "words": (5, 20),
        "most": 4,
        "category": "",
        "seed": 0,
    } | change
    with pytest.raises(StartError) as refused:
        make_prompts(**job)  # pyright: ignore[reportArgumentType]  # one key differs in each case
    assert said in str(refused.value)
    assert [one.name for one in tmp_path.iterdir()] == ["texts.jsonl"]


def test_wrong_words_are_refused_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("0:5", "5", "a:b", "3:99999999999"):
        with pytest.raises(SystemExit):
            main(["train", "prompts", "out", "in", "--ask", "{text}", "--words", words])
        assert "--words" in capsys.readouterr().err
