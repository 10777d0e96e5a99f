"""Finds what comes twice among any number of names, in bounded memory."""

from __future__ import annotations

from typing import Self

import numpy as np
import xxhash

from rollstream.consumers.audit.spilled import BUCKETS, SpilledRows


class Repeats:
    """Keeps a hash of each name; two names are taken for one where their 128 bits are equal."""

    def __init__(self) -> None:
        self._rows = SpilledRows("<QQq")  # A hash of 128 bits, and the number of the place.

    def add(self, name: str, place: int) -> None:
        """A name, and where it stands."""
        digest = xxhash.xxh3_128_intdigest(name.encode())
        low = digest & (1 << 64) - 1
        self._rows.add(low % BUCKETS, low, digest >> 64, place)

    def find(self) -> list[tuple[int, int]]:
        """The places of each name that comes again: the one before, and its own."""
        found: list[tuple[int, int]] = []
        for bucket in range(BUCKETS):
            rows = self._rows.rows(bucket)
            rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
            again = np.flatnonzero((rows[1:, :2] == rows[:-1, :2]).all(axis=1))
            found += zip(rows[again, 2].tolist(), rows[again + 1, 2].tolist(), strict=True)
        return sorted(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.close()
