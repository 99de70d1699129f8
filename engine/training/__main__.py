"""One stage of training: a job on standard input, Lines on standard output."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import StartError
from engine.training.job import Corpus, Evaluate, Extract, Generate, Job, Line, Say, Vocabulary


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is done is kept
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    try:
        result = run(job, lambda stage, done, text: say(Line(stage, done, text)))
    except StartError as error:
        say(Line(error=error.message))
        return 1
    except KeyboardInterrupt:
        return 130
    say(Line(result=result))
    return 0


def run(job: Job, report: Say) -> dict[str, Any]:
    """Run the stage, which loads only what it needs itself. Raises StartError."""
    match job:
        case Corpus():
            from engine.training.corpus import make_corpus

            texts, tokens = make_corpus(Path(job.answers), Path(job.out), job.most_tokens, job.seed)
            return {"answers": texts, "tokens": tokens}
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


def say(line: Line) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
