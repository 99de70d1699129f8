"""`paceline train`: the stages of training, each in a process of its own, and all in a row."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from app.bench import machine
from app.bench.prompts import read_prompts
from app.bench.publish import publishable
from app.failures import Failure, SettingsError
from app.output_files import output_file, tell, write_each
from app.settings import settings_of
from app.train_process import run, run_fit
from app.train_report import show

GENERATE = (
    "prompts", "own_prompts", "prompt_tokens", "exclude", "temperatures", "greedy_share",
    "answer_tokens", "longest_prompt", "seed", "speculation",
)  # fmt: skip
FIT = (
    "tokens", "rows", "context", "depth", "decay", "rate", "warm_up", "clip", "hidden_loss",
    "norms", "layers", "muon", "precision", "seed", "seconds", "start",
)  # fmt: skip
EVALUATE = (
    "modes", "temperatures", "answer_tokens", "concurrency", "corpus", "speed_prompts",
    "speed_rounds",
)  # fmt: skip


def generate(options: argparse.Namespace) -> int:
    """Answers of the model, into a file."""
    if not options.prompts and not options.own_prompts:
        raise SettingsError("Nothing to answer: give --prompts, --own-prompts or both.")
    job = job_of(options, *GENERATE, out=options.out, seconds=options.generate_seconds)
    found = run("generate", job)
    if not found["made"]:
        print(f"{options.out} is there already")
        return 0
    print(
        f"Written {options.out}: {found['answers']:,} answers of {found['tokens']:,} tokens "
        f"to {found['prompts']:,} prompts"
    )
    if found["left_out"]:
        print(f"{found['left_out']:,} prompts were left out: too long, copies, or excluded")
    if found["not_answered"]:
        print(
            f"{found['not_answered']:,} answers are missing: they failed in the engine, or "
            "--generate-seconds were over",
            file=sys.stderr,
        )
    return 0


def prompts(options: argparse.Namespace) -> int:
    """Prompts made of documents, into a file."""
    names = ("documents", "out", "asks", "words", "most", "category", "seed")
    found = run("prompts", {name: getattr(options, name) for name in names})
    print(
        f"Written {options.out}: {found['prompts']:,} prompts of {found['documents']:,} documents"
    )
    return 0


def vocabulary(options: argparse.Namespace) -> int:
    """The ids that a drafter may draft, into a file."""
    job = job_of(options, "answers", "prompts", "size", out=options.out)
    found = run("vocabulary", job)
    print(
        f"Written {options.out}: {found['size']:,} tokens, which are {found['coverage']:.2%} of "
        "what is written in unseen answers"
    )
    return 0


def corpus(options: argparse.Namespace) -> int:
    """Some of the answers, into a file that drafters may copy from."""
    names = ("answers", "out", "most_tokens", "seed")
    found = run("corpus", {name: getattr(options, name) for name in names})
    print(f"Written {options.out}: {found['answers']:,} answers of {found['tokens']:,} tokens")
    return 0


def extract(options: argparse.Namespace) -> int:
    """Hidden states and likely tokens of the target, into shards."""
    job = job_of(options, "answers", "prompts", "taps", "most_tokens", "seed", out=options.out)
    found = run("extract", job)
    print(
        f"{options.out}: {found['shards']:,} shards of {found['texts']:,} answers, "
        f"{found['answer_tokens']:,} tokens of them, layers {', '.join(map(str, found['taps']))}"
    )
    return 0


def fit(options: argparse.Namespace) -> int:
    """A head or a draft model, into a folder that can be served."""
    out = Path(options.out)
    job = {
        "config": settings_of(options).engine_config(),
        "out": options.out,
        "run": f"{options.out}.run",
        "shards": options.shards,
        "draft_ids": options.draft_ids,
        "options": {"kind": options.kind} | {name: getattr(options, name) for name in FIT},
        "checkpoint_steps": options.checkpoint_steps,
    }
    found = run_fit(job, options.processes)
    last = found["last"]
    told = f": {last['tokens']:,} tokens seen, loss {last['loss']:.3f}" if last else ""
    name = "--mtp" if options.kind == "mtp" else "--draft-model"
    print(f"Written {out}{told}. Serve with it: paceline serve {name} {out}")
    return 0


def evaluate(options: argparse.Namespace) -> int:
    """Acceptance, tokens per step, cost and speed of drafters, shown and into a file."""
    out = output_file(options.json)
    prompts = read_prompts(options.prompts, options.limit, options.categories)
    asked = [{"category": one.category, "text": one.text} for one in prompts]
    started = time.time()
    described = machine.describe()
    found = run("evaluate", job_of(options, *EVALUATE, prompts=asked))
    written: dict[Path, str] = {}
    if out:
        stored = {
            "command": ["paceline", *publishable(sys.argv[1:])],
            "time": started,
            "machine": described,
            "prompts": len(prompts),
            **{name: getattr(options, name) for name in EVALUATE if name != "corpus"},
        }
        whole = msgspec.json.format(msgspec.json.encode(stored | found)) + b"\n"
        written = write_each({out: lambda: whole})
    show(found, Console(highlight=False, width=None if sys.stdout.isatty() else 160))
    return tell(written)


def whole(options: argparse.Namespace) -> int:
    """All stages in a folder; those that are done are passed over."""
    folder = Path(options.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"Cannot make the folder {folder}: {error.strerror}.") from error
    given, made = list(options.answers), str(folder / "answers.npz")
    if not options.only_given:
        generate(with_options(options, out=made, exclude=excluded(options)))
        given.append(made)
    elif not given:
        raise SettingsError("--only-given needs --answers: there is nothing to train on.")
    ids, shards, out = (str(folder / name) for name in ("draft_ids.npy", "shards", options.kind))
    vocabulary(with_options(options, out=ids, answers=given))
    extract(with_options(options, out=shards, answers=given))
    fit(with_options(options, out=out, shards=shards, draft_ids=ids))
    if not options.test_prompts:
        return 0
    name = "mtp" if options.kind == "mtp" else "draft_model"
    return evaluate(
        with_options(
            options,
            prompts=options.test_prompts,
            modes=(f"{name}:3", f"suffix+{name}"),
            temperatures=(0.0,),
            json=str(folder / f"{options.kind}.json"),
            **{"mtp": "off", "draft_model": "off", name: out},
        )
    )


def excluded(options: argparse.Namespace) -> list[str]:
    """Files whose texts no training prompt may overlap with: what it is tested with, too."""
    tested = [options.test_prompts] if options.test_prompts else []
    return [*options.exclude, *(name for name in tested if name not in options.exclude)]


def with_options(options: argparse.Namespace, **changed: Any) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(options), **changed})


def job_of(options: argparse.Namespace, *fields: str, **more: Any) -> dict[str, Any]:
    config = settings_of(options).engine_config()
    return {name: getattr(options, name) for name in fields} | {"config": config} | more
