"""One run: a Job on standard input, Lines on standard output."""

from __future__ import annotations

import sys

import msgspec

from engine.bench.job import Job, Line
from engine.bench.run import run
from engine.errors import StartError


def main() -> int:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    try:
        result = run(job, lambda stage, fraction: say(Line(stage, fraction)))
    except StartError as error:
        say(Line(error=error.message))
        return 1
    say(Line(result=result))
    return 0


def say(line: Line) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
