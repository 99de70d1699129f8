"""The options of `paceline train`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from app.arguments import group, leaf, names, positive

MODEL = ("model", "cache_dir", "dtype", "device", "threads", "context_length")
"""Settings of the stages that run the target."""
SERVING = (*MODEL, "max_batch", "kv_tokens", "memory_fraction", "chunk_rows")
MOST_TOKENS = 1 << 20
MOST_IN_ALL = 1 << 40
MOST_SEED = 1 << 62


def add_train(commands: Any) -> None:
    stages = group(commands, "train", "drafters trained for a model on its own answers")
    for kind, what in (("mtp", "a multi-token prediction head"), ("draft", "a small draft model")):
        text = f"train {what}: all stages, in a folder where they go on"
        add_whole(leaf(stages, kind, text, "app.train:whole", SERVING), kind)
    text = "have the model answer prompts, and write some itself"
    stage = leaf(stages, "generate", text, "app.train:generate", (*SERVING, "max_draft_length"))
    stage.add_argument("out", help="the .npz file of answers to write")
    add_generate(stage)
    add_seed(stage)
    text = "make prompts of documents: a passage, and what is asked about it"
    stage = leaf(stages, "prompts", text, "app.train:prompts")
    stage.add_argument("out", help="the JSON lines file of prompts to write")
    stage.add_argument("documents", nargs="+", help="JSON lines with text, or with turns")
    add_prompts(stage)
    add_seed(stage)
    text = "pick the tokens that a drafter may draft"
    stage = leaf(stages, "vocabulary", text, "app.train:vocabulary", MODEL)
    stage.add_argument("out", help="the .npy file of token ids to write")
    add_answers(stage)
    add_vocabulary(stage)
    text = "pick answers for a corpus, of every prompt before more of any"
    stage = leaf(stages, "corpus", text, "app.train:corpus")
    stage.add_argument("answers", help="a file that `paceline train generate` wrote")
    stage.add_argument("out", help="the .npz file to write")
    stage.add_argument(
        "--tokens",
        dest="most_tokens",
        type=positive,
        default=900_000,
        help="at most so many (default: %(default)s)",
    )
    add_seed(stage)
    text = "store what the model sees in its answers"
    stage = leaf(stages, "extract", text, "app.train:extract", (*MODEL, "kv_tokens"))
    stage.add_argument("out", help="the folder of shards to write")
    add_answers(stage)
    add_extract(stage)
    add_seed(stage)
    text = "train a drafter on what was extracted"
    stage = leaf(stages, "fit", text, "app.train:fit", ("model", "cache_dir"))
    stage.add_argument("kind", choices=("mtp", "draft"), help="a head or a small draft model")
    stage.add_argument("out", help="the folder to write; OUT.run keeps what is needed to go on")
    stage.add_argument("--shards", required=True, help="folder of `paceline train extract`")
    stage.add_argument("--draft-ids", required=True, help="file of `paceline train vocabulary`")
    add_fit(stage)
    add_seed(stage)
    text = "measure drafters through the serving engine"
    models = ("max_draft_length", "mtp", "draft_model", "draft_vocabulary")
    stage = leaf(stages, "evaluate", text, "app.train:evaluate", (*SERVING, *models))
    stage.add_argument("--prompts", required=True, help="JSON lines: question_id, category, turns")
    stage.add_argument(
        "--modes",
        type=names,
        default=("mtp:3",),
        help="drafters with their draft length, or joined by + for the controller to choose: "
        "mtp:3,suffix:8,suffix+mtp (default: mtp:3)",
    )
    stage.add_argument(
        "--temperatures", type=temperatures, default=(0.0,), help="0 is greedy (default: 0)"
    )
    stage.add_argument(
        "--answer-tokens",
        type=between(2, MOST_TOKENS),
        default=160,
        help="of an answer, at most (default: %(default)s)",
    )
    stage.add_argument("--json", metavar="OUT", help="write everything measured to this file")
    add_evaluate(stage)


def add_whole(stage: argparse.ArgumentParser, kind: str) -> None:
    """Options of the stages under one name each."""
    stage.set_defaults(kind=kind)
    stage.add_argument("folder", help="where everything is kept: answers, shards, the drafter")
    stage.add_argument(
        "--answers",
        action="append",
        default=[],
        help="a file of answers to train on too; may be given more than once",
    )
    stage.add_argument(
        "--only-given", action="store_true", help="generate none, train on --answers alone"
    )
    add_generate(stage)
    add_vocabulary(stage)
    add_extract(stage)
    add_fit(stage)
    stage.add_argument(
        "--test-prompts",
        help="JSON lines to measure it with, with categories; excluded from what is generated",
    )
    add_evaluate(stage)
    add_seed(stage)


def add_generate(stage: argparse.ArgumentParser) -> None:
    stage.add_argument("--prompts", default="", help="JSON lines with turns; the first is asked")
    stage.add_argument(
        "--own-prompts", type=positive, default=0, help="so many that the model writes itself"
    )
    stage.add_argument(
        "--prompt-tokens",
        type=between(1, MOST_TOKENS),
        default=384,
        help="of a prompt that it writes, at most (default: %(default)s)",
    )
    stage.add_argument(
        "--exclude",
        action="append",
        default=[],
        help="JSON lines; prompts that share twelve consecutive words with one are left out",
    )
    stage.add_argument(
        "--temperatures",
        type=temperatures,
        default=(0.7, 1.0),
        help="an answer to each prompt at each of them (default: 0.7,1.0)",
    )
    stage.add_argument(
        "--greedy-share",
        type=number(0.0, 1.0),
        default=0.33,
        help="of the prompts get a greedy answer too (default: %(default)s)",
    )
    stage.add_argument(
        "--answer-tokens",
        type=between(1, MOST_TOKENS),
        default=176,
        help="of an answer, at most (default: %(default)s)",
    )
    stage.add_argument(
        "--longest-prompt",
        type=between(1, MOST_TOKENS),
        default=1024,
        help="longer ones are left out, in tokens (default: %(default)s)",
    )
    stage.add_argument(
        "--generate-seconds",
        type=number(0.0, 1e9),
        default=0.0,
        help="begin no answer after so long and write those that there are; 0: all of them",
    )
    stage.add_argument(
        "--no-speculation",
        dest="speculation",
        action="store_false",
        help="generate without drafts; otherwise the controller decides, as in serving",
    )


def add_prompts(stage: argparse.ArgumentParser) -> None:
    stage.add_argument(
        "--ask",
        dest="asks",
        action="append",
        required=True,
        help="a prompt with {text} where the passage goes; may be given more than once",
    )
    stage.add_argument(
        "--words",
        type=words,
        default=(60, 300),
        metavar="LOW:HIGH",
        help="words of a passage, in whole sentences (default: 60:300)",
    )
    stage.add_argument(
        "--most",
        type=positive,
        default=1000,
        help="prompts; one passage of every document before a second (default: %(default)s)",
    )
    stage.add_argument("--category", default="", help="what the prompts are called in reports")


def add_answers(stage: argparse.ArgumentParser) -> None:
    stage.add_argument("answers", nargs="+", help=".npz files as `paceline train generate` writes")
    stage.add_argument(
        "--prompts", default="", help="JSON lines of the prompts, for answers without their own"
    )


def add_vocabulary(stage: argparse.ArgumentParser) -> None:
    stage.add_argument(
        "--size",
        type=between(1, MOST_TOKENS),
        default=8192,
        help="tokens that may be drafted: special ones, then the most frequent "
        "(default: %(default)s)",
    )


def add_extract(stage: argparse.ArgumentParser) -> None:
    stage.add_argument(
        "--taps",
        type=taps,
        default=(),
        help="layers whose input is stored, rising; the number of layers stands for the last "
        "norm's output (default: a middle one, a late one and that)",
    )
    stage.add_argument(
        "--most-tokens",
        type=between(0, MOST_IN_ALL),
        default=0,
        help="of prompts and answers together (default: all)",
    )


def add_fit(stage: argparse.ArgumentParser) -> None:
    whole: tuple[tuple[str, int, int, int, str], ...] = (
        ("--tokens", 1, MOST_IN_ALL, 4_000_000, "of answers, repeated where there are fewer"),
        ("--rows", 1, MOST_TOKENS, 2048, "tokens of answers in one step"),
        ("--context", 1, MOST_TOKENS, 192, "prompt tokens before an answer, at most"),
        ("--depth", 1, 64, 3, "tokens drafted in a row while training a head"),
        ("--layers", 1, 256, 2, "of a draft model"),
        ("--checkpoint-steps", 1, MOST_TOKENS, 25, "steps from one checkpoint to the next"),
        ("--processes", 1, 1024, 1, "under torchrun, one for each GPU of this machine"),
    )
    for option, low, high, default, text in whole:
        stage.add_argument(
            option,
            type=between(low, high),
            default=default,
            help=f"{text} (default: %(default)s)",
        )
    parts: tuple[tuple[str, float, float, float, str], ...] = (
        ("--rate", 0.0, 1.0, 2e-3, "learning rate"),
        ("--warm-up", 0.0, 1.0, 0.04, "share of the tokens in which the rate rises"),
        ("--decay", 0.0, 1.0, 0.8, "weight of each next drafted position in the loss"),
        ("--clip", 1e-6, 1e6, 1.0, "longest gradient"),
        ("--hidden-loss", 0.0, 1e6, 0.0, "weight of the distance to the target's hidden states"),
        ("--seconds", 0.0, 1e9, 0.0, "end after so long, 0: not before all tokens"),
    )
    for option, least, most, share, text in parts:
        stage.add_argument(
            option,
            type=number(least, most),
            default=share,
            help=f"{text} (default: %(default)s)",
        )
    stage.add_argument(
        "--start",
        default="",
        metavar="FOLDER",
        help="a checkpoint to go on from; otherwise training starts from layers of the model",
    )
    stage.add_argument(
        "--no-norms",
        dest="norms",
        action="store_false",
        help="leave out all norms of a head but the last",
    )
    stage.add_argument(
        "--adamw", dest="muon", action="store_false", help="for matrices too, instead of Muon"
    )
    stage.add_argument(
        "--precision",
        choices=("auto", "bfloat16", "float32"),
        default="auto",
        help="of products; auto: bfloat16 where the device is fast at it; weights are trained in "
        "float32 (default: %(default)s)",
    )


def add_evaluate(stage: argparse.ArgumentParser) -> None:
    stage.add_argument("--limit", type=positive, help="so many prompts, spread over categories")
    stage.add_argument("--categories", type=names, default=(), help="only these: qa,rag")
    stage.add_argument(
        "--concurrency",
        type=between(1, 1024),
        default=8,
        help="requests at once (default: %(default)s)",
    )
    stage.add_argument(
        "--corpus", default="", help=".npz with tokens and offsets that drafters may copy from"
    )
    stage.add_argument(
        "--speed-prompts",
        type=between(0, 100_000),
        default=0,
        help="so many are also answered one at a time, with and without drafts, for tokens/s",
    )
    stage.add_argument(
        "--speed-rounds",
        type=between(1, 1000),
        default=2,
        help="times that these are answered in every mode (default: %(default)s)",
    )


def add_seed(stage: argparse.ArgumentParser) -> None:
    stage.add_argument(
        "--seed",
        type=between(0, MOST_SEED),
        default=0,
        help="the same one gives the same again (default: %(default)s)",
    )


def between(low: int, high: int) -> Callable[[str], int]:
    """A whole number from low to high."""

    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low} and {high}")
        return value

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """A number from low to high."""

    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:  # neither is it when it is no number
            raise argparse.ArgumentTypeError(f"{text} is not between {low:g} and {high:g}")
        return value

    return parse


def temperatures(text: str) -> tuple[float, ...]:
    return tuple(number(0.0, 2.0)(part) for part in names(text))


def taps(text: str) -> tuple[int, ...]:
    return tuple(between(0, MOST_TOKENS)(part) for part in names(text))


def words(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    return between(1, MOST_TOKENS)(low), between(1, MOST_TOKENS)(high)
