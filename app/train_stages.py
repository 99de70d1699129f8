"""The options of each stage of training, which the stage and `paceline train KIND` share."""

from __future__ import annotations

import argparse

from app.arguments import names, number, positive, whole

MOST_TOKENS = 1 << 20
MOST_IN_ALL = 1 << 40
MOST_SEED = 1 << 62


def add_generate(stage: argparse.ArgumentParser) -> None:
    stage.add_argument("--prompts", default="", help="JSON lines with turns; the first is asked")
    stage.add_argument(
        "--own-prompts", type=positive, default=0, help="so many that the model writes itself"
    )
    stage.add_argument(
        "--prompt-tokens",
        type=whole(1, MOST_TOKENS),
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
        type=whole(1, MOST_TOKENS),
        default=176,
        help="of an answer, at most (default: %(default)s)",
    )
    stage.add_argument(
        "--longest-prompt",
        type=whole(1, MOST_TOKENS),
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
        type=whole(1, MOST_TOKENS),
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
        type=whole(0, MOST_IN_ALL),
        default=0,
        help="of prompts and answers together (default: all)",
    )


def add_fit(stage: argparse.ArgumentParser) -> None:
    counts: tuple[tuple[str, int, int, int, str], ...] = (
        ("--tokens", 1, MOST_IN_ALL, 4_000_000, "of answers, repeated where there are fewer"),
        ("--rows", 1, MOST_TOKENS, 2048, "tokens of answers in one step"),
        ("--context", 1, MOST_TOKENS, 192, "prompt tokens before an answer, at most"),
        ("--depth", 1, 64, 3, "tokens drafted in a row while training a head"),
        ("--layers", 1, 256, 2, "of a draft model"),
        ("--checkpoint-steps", 1, MOST_TOKENS, 25, "steps from one checkpoint to the next"),
        ("--processes", 1, 1024, 1, "under torchrun, one for each GPU of this machine"),
    )
    for option, low, high, default, text in counts:
        stage.add_argument(
            option,
            type=whole(low, high),
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
        type=whole(1, 1024),
        default=8,
        help="requests at once (default: %(default)s)",
    )
    stage.add_argument(
        "--corpus", default="", help=".npz with tokens and offsets that drafters may copy from"
    )
    stage.add_argument(
        "--speed-prompts",
        type=whole(0, 100_000),
        default=0,
        help="so many are also answered one at a time, with and without drafts, for tokens/s",
    )
    stage.add_argument(
        "--speed-rounds",
        type=whole(1, 1000),
        default=2,
        help="times that these are answered in every mode (default: %(default)s)",
    )


def add_seed(stage: argparse.ArgumentParser) -> None:
    stage.add_argument(
        "--seed",
        type=whole(0, MOST_SEED),
        default=0,
        help="the same one gives the same again (default: %(default)s)",
    )


def temperatures(text: str) -> tuple[float, ...]:
    return tuple(number(0.0, 2.0)(part) for part in names(text))


def taps(text: str) -> tuple[int, ...]:
    return tuple(whole(0, MOST_TOKENS)(part) for part in names(text))


def words(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    return whole(1, MOST_TOKENS)(low), whole(1, MOST_TOKENS)(high)
