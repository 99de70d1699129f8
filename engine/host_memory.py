"""Free host memory: what the machine has, and what this process's control group may still take."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path("/")

VERSION_2 = ("memory.max", "memory.current", "inactive_file")
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""Files of a control group with its limit and use, and the line of memory.stat with its caches."""


def available_bytes(root: Path = ROOT) -> int:
    """Bytes that can be taken without swapping or being killed. root: where /proc and /sys are."""
    rooms = [_machine(root), *_groups(root)]
    return max(0, min(rooms))


def size_text(count: float) -> str:
    """A number of bytes as an error message tells it."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**27 else f"{count / 2**20:.2f} MiB"


def _machine(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _groups(root: Path) -> list[int]:
    """What each control group from this process's up to the root has left; caches that the
    kernel gives back count as left."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    rooms = []
    for line in lines:
        number, controllers, own = line.split(":", 2)
        if number == "0":
            top, names = root / "sys/fs/cgroup", VERSION_2
        elif "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", VERSION_1
        else:
            continue
        group = top / own.strip("/")
        while group.is_relative_to(top):
            rooms.append(_room(group, *names))
            group = group.parent
    return [room for room in rooms if room is not None]


def _room(group: Path, limit: str, usage: str, cache: str) -> int | None:
    """Bytes left in one group; None without a limit, or where a container does not show it."""
    try:
        most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        if most == "max":
            return None
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(most) - used + int(stat.get(cache, 0))
    except (OSError, ValueError):
        return None
