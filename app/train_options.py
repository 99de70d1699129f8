"""The commands of `paceline train`: a stage each, and all of them."""

from __future__ import annotations

import argparse
from typing import Any

from app.arguments import group, leaf, names, positive, whole
from app.train_stages import (
    MOST_TOKENS,
    add_answers,
    add_evaluate,
    add_extract,
    add_fit,
    add_generate,
    add_prompts,
    add_seed,
    add_vocabulary,
    temperatures,
)

MODEL = ("model", "cache_dir", "dtype", "device", "threads", "context_length")
"""Settings of the stages that run the target."""
SERVING = (*MODEL, "max_batch", "kv_tokens", "memory_fraction", "chunk_rows")


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
        type=whole(2, MOST_TOKENS),
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
