"""Where compiled CPU kernels are kept: by the content of their source files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

SOURCES = ("intrinsics.py", "kernels*.py", "program.py", "drafters/**/*.py")


def keep_kernels(cache_dir: Path) -> None:
    """Have numba keep what it compiles from now on below cache_dir. numba itself looks at the
    date of one file only, and would go on with code compiled from an older helper. Without
    numba there is nothing to keep."""
    try:
        from numba.core import config
    except ImportError:
        return
    settings: Any = config  # filled by numba from the environment, so without declared names
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for source in sorted(path for name in SOURCES for path in folder.glob(name)):
        digest.update(source.read_bytes())
    settings.CACHE_DIR = str(cache_dir / "kernels" / digest.hexdigest()[:16])
