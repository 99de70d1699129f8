"""Torch's OpenMP threads, as a team that runs compiled functions."""

from __future__ import annotations

import ctypes
from typing import Any

import torch


class Team:
    """Torch's OpenMP threads. `run` calls a compiled function in each of them, or once where
    torch is not built with GNU OpenMP.

    GOMP_parallel is what GCC compiles `#pragma omp parallel` to, part of libgomp's stable binary
    interface, and GOMP_barrier `#pragma omp barrier`. The copy that torch loaded is used, so that
    no second team competes with its own. addresses: of omp_get_thread_num, omp_get_num_threads
    and GOMP_barrier for the functions to call; 0 for a team of one."""

    def __init__(self) -> None:
        self.size = 1
        self.addresses = (0, 0, 0)
        self._parallel: Any = None
        library = _loaded("libgomp")
        if torch.get_num_threads() == 1 or library is None:
            return
        self._parallel = library.GOMP_parallel
        self._parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._parallel.restype = None
        self.size = torch.get_num_threads()
        self.addresses = (
            _address(library.omp_get_thread_num),
            _address(library.omp_get_num_threads),
            _address(library.GOMP_barrier),
        )

    def run(self, body: Any, words: Any) -> None:
        """body: a numba cfunc of a pointer to int64 words. words: a ctypes array of them."""
        if self._parallel is None:
            body.ctypes(words)
        else:
            self._parallel(body.address, words, self.size, 0)


def _loaded(name: str) -> Any:
    """The shared library of this name that the process has loaded; None if it has none."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split()[-1] for line in maps if f"/{name}" in line}
    except OSError:
        return None
    return ctypes.CDLL(min(paths)) if len(paths) == 1 else None


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
