"""Finds what comes twice among any number of names, in bounded memory."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import xxhash

from rollstream.consumers.audit.spilled import BUCKETS, SpilledRows


class Again(NamedTuple):
    """A name that comes again.

    Attributes:
        places: where it stands, the one before and its own.
        between: how much further along its own count was than that of the one before.
    """

    places: tuple[int, int]
    between: int


class Repeats:
    """Keeps a hash of each name; two names are taken for one where their 128 bits are equal."""

    def __init__(self) -> None:
        self._rows = SpilledRows("<QQqq")  # A hash of 128 bits, the number of the place, the count.

    def add(self, name: str, place: int, count: int = 0) -> None:
        """A name, and where it stands; ``count`` rises from place to place."""
        digest = xxhash.xxh3_128_intdigest(name.encode())
        low = digest & (1 << 64) - 1
        self._rows.add(low % BUCKETS, low, digest >> 64, place, count)

    def find(self) -> list[Again]:
        """Each name that comes again, by its places."""
        found: list[Again] = []
        for bucket in range(BUCKETS):
            rows = self._rows.rows(bucket)
            rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
            again = np.flatnonzero((rows[1:, :2] == rows[:-1, :2]).all(axis=1))
            befores, owns = rows[again, 2:].tolist(), rows[again + 1, 2:].tolist()
            for (before, was), (own, now) in zip(befores, owns, strict=True):
                found.append(Again((before, own), now - was))
        return sorted(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.close()
