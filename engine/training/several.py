"""Fitting in several processes: `python -m engine.training.several PROCESSES JOB`.

What torchrun does, without its words on how its processes ended: those say why themselves."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from engine.training.fitting import OWNED

FITTING = "engine.training.fitting"


def main(arguments: Sequence[str]) -> int:
    """The processes inherit standard input, with which each of them ends."""
    processes, job = arguments
    logging.disable(logging.CRITICAL)
    try:
        run.main(["--standalone", "--nproc-per-node", processes, "-m", FITTING, job, OWNED])
    except ChildFailedError:
        return 1
    except SignalException as stopped:
        return 128 + stopped.sigval
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
