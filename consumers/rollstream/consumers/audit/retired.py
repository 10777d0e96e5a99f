"""Which files of which flush were retired, in bounded memory, and which ones readers leave out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np
import xxhash

from rollstream.consumers.audit.ledger import Named
from rollstream.consumers.audit.spilled import BUCKETS, SpilledRows
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs, CorruptFile
from rollstream.store.retired import NamedFile, retired_of
from rollstream.store.retired import RetiredFiles as Projected

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


class LeftOut:
    """Compares the files that readers leave out, by the newest blob of a partition, with those that
    its seal log retires.

    Args:
        read_to: where the seal log was read to; a blob of a newer event is not compared.
    """

    def __init__(self, blobs: Blobs, address: PartitionAddress, read_to: int) -> None:
        self._damaged = ""
        self._used, self._missing = Named(), Named()
        projected = Projected(address)
        try:
            projected = retired_of(blobs, address)
        except CorruptFile as error:
            self._damaged = str(error)
        self._comparable = not self._damaged and projected.offset < read_to
        self._below, self._kept = projected.below, {*projected.kept}

    def compare(self, flush: int, path: str, *, retired: bool) -> None:
        """A file that the flush at this offset named."""
        left_out = flush < self._below and NamedFile(flush, path) not in self._kept
        if self._comparable and left_out is not retired:
            (self._used if retired else self._missing).add(path)

    def problems(self, name: str) -> Iterator[str]:
        """What differs, once all files were compared."""
        if self._damaged:
            yield self._damaged
        if self._used.count:
            yield f"{name}: readers use retired files {self._used}"
        if self._missing.count:
            yield f"{name}: readers leave out files that were not retired {self._missing}"
