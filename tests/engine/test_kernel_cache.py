"""Compiled kernels are kept by the content of their sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from numba.core import config as numba_config

from engine import kernel_cache

settings: Any = numba_config


def test_kernels_of_other_sources_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "CACHE_DIR", "")
    kernel_cache.keep_kernels(tmp_path)
    first = Path(settings.CACHE_DIR)
    kernel_cache.keep_kernels(tmp_path)
    assert Path(settings.CACHE_DIR) == first
    assert first.parent == tmp_path / "kernels"

    sources = tmp_path / "sources"
    folder = Path(kernel_cache.__file__).parent
    for pattern in kernel_cache.SOURCES:
        for path in folder.glob(pattern):
            copied = sources / path.relative_to(folder)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_text(path.read_text() + "\n# changed")
    monkeypatch.setattr(kernel_cache, "__file__", str(sources / "kernel_cache.py"))
    kernel_cache.keep_kernels(tmp_path)
    assert Path(settings.CACHE_DIR) != first
