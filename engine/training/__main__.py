"""One stage of training: a job in a line of standard input, Lines on standard output.

It ends when its standard input does."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from engine.training.ending import end_with_input, finish, stop_on_signals, write_line
from engine.training.job import (
    Corpus,
    Evaluate,
    Extract,
    Generate,
    Job,
    Line,
    Prompts,
    Say,
    Vocabulary,
)
from engine.training.lock import only_writer


def main() -> int:
    stop_on_signals()
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    end_with_input()
    return finish(lambda: run(job, lambda *told: write_line(Line(*told))), write_line)


def run(job: Job, report: Say) -> dict[str, Any]:
    """Run the stage as the only one that writes its output. Raises StartError."""
    with nullcontext() if isinstance(job, Evaluate) else only_writer(Path(job.out)):
        return _run(job, report)


def _run(job: Job, report: Say) -> dict[str, Any]:
    """Each stage loads only what it needs itself."""
    match job:
        case Corpus():
            from engine.training.corpus import make_corpus

            texts, tokens = make_corpus(Path(job.answers), Path(job.out), job.most_tokens, job.seed)
            return {"answers": texts, "tokens": tokens}
        case Prompts():
            from engine.training.documents import make_prompts

            documents, prompts = make_prompts(
                job.documents, Path(job.out), job.asks, job.words, job.most, job.category, job.seed
            )
            return {"documents": documents, "prompts": prompts}
        case Generate():
            from engine.training.generate import generate

            return generate(job, report)
        case Vocabulary():
            from engine.training.vocabulary_ranking import pick_vocabulary

            return pick_vocabulary(job, report)
        case Extract():
            from engine.training.extraction import extraction

            return extraction(job, report)
        case Evaluate():
            from engine.training.evaluate import evaluate

            return evaluate(job, report)


if __name__ == "__main__":
    sys.exit(main())
