"""Puts weights into huge pages: reading them all at every step misses the TLB less often."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Iterable

log = logging.getLogger(__name__)

HUGE = 1 << 21
"""Bytes of a huge page on x86-64 and, with pages of 4 KiB, on 64-bit Arm."""
MADV_COLLAPSE = 25
"""Linux 6.1: copy a range into huge pages now. Older kernels refuse it, which costs nothing."""
SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"

Extent = tuple[int, int]
"""(address, bytes)."""


def collapse(extents: Iterable[Extent]) -> int:
    """Move memory of this process into huge pages, where the system allows and does it. Returns
    the bytes of the regions that were moved; the contents stay."""
    if not allowed():
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    moved = 0
    for begin, end in regions(extents):
        if madvise(begin, end - begin, MADV_COLLAPSE) == 0:
            moved += end - begin
    log.info("%d MiB of weights are in huge pages", moved >> 20)
    return moved


def allowed() -> bool:
    """Whether this is a Linux system whose administrator has not switched huge pages off."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        with open(SETTING) as setting:
            return "[never]" not in setting.read()
    except OSError:
        return False


def regions(extents: Iterable[Extent]) -> list[tuple[int, int]]:
    """(begin, end) of the huge pages that hold the extents, neighbours as one."""
    found: list[tuple[int, int]] = []
    for address, size in sorted(extents):
        begin, end = address // HUGE * HUGE, -(-(address + size) // HUGE) * HUGE
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found
