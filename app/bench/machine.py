"""Where a measurement was made: processor, memory, GPU, versions and the source revision."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ANSWER_S = 10.0


def describe() -> dict[str, Any]:
    """Asked before a measurement: what a loaded machine takes to answer is lost by then."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "load": list(os.getloadavg()),
        "gpu": output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in ("paceline", "torch", "transformers")},
        "git": revision(),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def revision() -> str | None:
    """The commit of this source tree, with + when files differ from it; None outside git."""
    folder = str(Path(__file__).resolve().parent)
    commit = output("git", "-C", folder, "rev-parse", "--short=12", "HEAD")
    changed = output("git", "-C", folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+" if commit and changed else commit


def output(*command: str) -> str | None:
    """What a program prints, None when it is missing, fails, or takes long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
