"""The command `paceline`: finds the command's function, runs it, words its errors."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from app.failures import Failure
from app.options import build_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Exit codes: 0 ok, 1 failed, 2 usage, 3 cannot start."""
    options = build_parser().parse_args(arguments)
    module, function = options.run.split(":")
    try:
        return getattr(importlib.import_module(module), function)(options)
    except Failure as error:
        print(f"paceline: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
