"""The stage that trains a drafter: `python -m engine.training.fitting JOB`, also under torchrun.

JOB is a file with a Fit job. The first process tells how far it is, in Lines on standard output.
With --owned after it each process ends when its standard input does."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
from platformdirs import user_cache_path
from safetensors import SafetensorError

from engine.errors import StartError
from engine.folder import CONFIG, read_folder
from engine.locate import find_model
from engine.trained import DRAFT_IDS, TargetFacts, save
from engine.training.ending import end_with_input, finish, stop_on_signals, write_line
from engine.training.fit import fit
from engine.training.fit_checkpoint import describe
from engine.training.fit_options import Options
from engine.training.fit_progress import Report
from engine.training.job import Fit, Line, Say
from engine.training.lock import only_writer
from engine.training.shards import paths, read
from engine.training.vocabulary_ranking import read_ids

OWNED = "--owned"


def main(arguments: Sequence[str]) -> int:
    stop_on_signals()
    if OWNED in arguments:
        end_with_input()
    first = os.environ.get("RANK", "0") == "0"

    def tell(line: Line) -> None:
        if first:
            write_line(line)
        elif line.error:
            print(f"process {os.environ['RANK']}: {line.error}", file=sys.stderr, flush=True)

    def work() -> dict[str, Any]:
        job = read_job([one for one in arguments if one != OWNED])
        with ExitStack() as held:
            if first:
                for out in (job.run, job.out):
                    held.enter_context(only_writer(Path(out)))
                keep_job(job)
            return train(job, lambda *told: tell(Line(*told)), first)

    return finish(work, tell)


def read_job(arguments: Sequence[str]) -> Fit:
    """The job of the one file that is named. Raises StartError."""
    try:
        (name,) = arguments
        return msgspec.json.decode(Path(name).read_bytes(), type=Fit)
    except (ValueError, OSError, msgspec.MsgspecError) as error:
        raise StartError(
            "bad_job",
            f"give one file with a job of fitting, as `paceline train fit` writes it: {error}.",
        ) from error


def keep_job(job: Fit) -> None:
    """Leave the job in the run's folder. Raises StartError."""
    file = Path(job.run) / "job.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_suffix(".part")
        scratch.write_bytes(msgspec.json.format(msgspec.json.encode(job)) + b"\n")
        scratch.replace(file)
    except OSError as error:
        raise StartError(
            "out_not_writable", f"cannot write {file}: {error.strerror or error}."
        ) from error


def train(job: Fit, say: Say, first: bool = True) -> dict[str, Any]:
    """Train, and write the checkpoint. first: this process is the one that writes it. Raises
    StartError."""
    options = options_of(job.options)
    cache_dir = Path(job.config.cache_dir or user_cache_path("paceline"))
    target = find_model(job.config.model, cache_dir, lambda done, text: say("model", done, text))
    config = read_folder(target).config
    about = read(paths(Path(job.shards))[0])[1]
    try:
        layers, vocabulary = int(config["num_hidden_layers"]), int(config["vocab_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise StartError(
            "model_unsupported",
            f"{target / CONFIG} tells no num_hidden_layers and vocab_size: drafters are trained "
            "for dense Llama-like models only (docs/training.md).",
        ) from error
    draft_ids = read_ids(Path(job.draft_ids), vocabulary)
    facts = TargetFacts(layers, about.hidden, vocabulary, about.target)
    last: Report | None = None

    def tell(report: Report) -> None:
        nonlocal last
        last = report
        agreed = " ".join(f"{share:.3f}" for share in report.agreement)
        say(
            "fit",
            report.tokens / options.tokens,
            f"loss {report.loss:.3f}, agreement {agreed}, {report.tokens_per_second:,.0f} tokens/s",
        )

    say("fit", 0.0, "loading")
    try:
        with torch.enable_grad():  # an engine in the same process has switched it off
            module = fit(
                target,
                facts,
                Path(job.shards),
                draft_ids.tolist(),
                Path(job.run),
                options,
                tell,
                checkpoint_steps=job.checkpoint_steps,
            )
        if first:
            tensors = module.tensors() | {DRAFT_IDS: torch.from_numpy(draft_ids)}
            save(Path(job.out), describe(module, about, facts), tensors)
    except SafetensorError as error:  # a full disk
        raise StartError("out_not_writable", f"cannot write {job.out}: {error}.") from error
    except OSError as error:
        raise StartError(
            "out_not_writable",
            f"cannot write {error.filename or job.out}: {error.strerror or error}.",
        ) from error
    return {"out": job.out, "last": None if last is None else msgspec.to_builtins(last)}


def options_of(given: dict[str, Any]) -> Options:
    """Raises StartError for options that there are not."""
    try:
        return msgspec.convert(given, Options)
    except msgspec.ValidationError as error:
        raise StartError("bad_options", f"the options of fitting do not fit: {error}.") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
