"""Seeds of single texts, from the seed of a run."""

from __future__ import annotations

import hashlib


def seed_of(seed: int, *place: int | str) -> int:
    """A seed in 0..2^63 - 1 that depends on the run's and on the place in it."""
    told = ":".join(map(str, (seed, *place))).encode()
    return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "little") >> 1
