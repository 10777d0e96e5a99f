"""Which files of which flush were retired, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np
import xxhash

from rollstream.consumers.audit.spilled import BUCKETS, SpilledRows

_HASH_MAX = (1 << 63) - 1


class RetiredFile(NamedTuple):
    """The flush that a retired file is of, a hash of its path, and the event that retired it."""

    flush: int
    path: int
    event: int


class RetiredFiles:
    """All are added first, and then asked for by rising flush.

    Args:
        end: of the seal log, about: flushes are spread over buckets by it.
    """

    def __init__(self, end: int) -> None:
        self._rows = SpilledRows("<qqq")
        self._end = max(end, 1)
        self._sorted = self._by_flush()
        self._next: RetiredFile | None = None

    def add(self, event: int, flush: int, path: str) -> None:
        """The event at this offset retired a file that the flush named."""
        bucket = max(0, min(flush * BUCKETS // self._end, BUCKETS - 1))
        self._rows.add(bucket, flush, hash_of(path), event)

    def up_to(self, flush: int) -> Iterator[RetiredFile]:
        """Yields those of flushes up to this one that were not yielded before."""
        while (row := self._next or next(self._sorted, None)) is not None:
            self._next = row
            if row.flush > flush:
                return
            self._next = None
            yield row

    def _by_flush(self) -> Iterator[RetiredFile]:
        for bucket in range(BUCKETS):
            rows = self._rows.rows(bucket)
            order = np.lexsort((rows[:, 2], rows[:, 0]))
            for row in order:
                yield RetiredFile(*rows[row].tolist())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.close()


def hash_of(path: str) -> int:
    """As ``RetiredFile`` has it."""
    return xxhash.xxh3_64_intdigest(path.encode()) & _HASH_MAX
