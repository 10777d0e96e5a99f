"""Which files of which flush were retired, in bounded memory, and which ones readers leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Self

import numpy as np
import xxhash

from rollstream.consumers.audit.ledger import Named
from rollstream.consumers.audit.spilled import BUCKETS, SpilledRows
from rollstream.schemas.events import Event, Retired
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs, CorruptFile
from rollstream.store.retired import NamedFile, RetiredFiles, retired_of

_HASH_MAX = (1 << 63) - 1


class Retirement(NamedTuple):
    """The flush that a retired file is of, a hash of its path, and the event that retired it."""

    flush: int
    path: int
    event: int


class Retirements:
    """All are added first, and then asked for by rising flush.

    Args:
        end: of the seal log, about: flushes are spread over buckets by it.

    Attributes:
        below: the newest flush of which a file was retired is before this offset.
        newest: the newest event that retired a file; -1: none did.
    """

    def __init__(self, end: int) -> None:
        self.below, self.newest = 0, -1
        self._rows = SpilledRows("<qqq")
        self._end = max(end, 1)
        self._sorted = self._by_flush()
        self._next: Retirement | None = None

    def add(self, event: int, flush: int, path: str) -> None:
        """The event at this offset retired a file that the flush named."""
        self.below, self.newest = max(self.below, flush + 1), max(self.newest, event)
        bucket = max(0, min(flush * BUCKETS // self._end, BUCKETS - 1))
        self._rows.add(bucket, flush, hash_of(path), event)

    def up_to(self, flush: int) -> Iterator[Retirement]:
        """Yields those of flushes up to this one that were not yielded before."""
        while (row := self._next or next(self._sorted, None)) is not None:
            self._next = row
            if row.flush > flush:
                return
            self._next = None
            yield row

    def _by_flush(self) -> Iterator[Retirement]:
        for bucket in range(BUCKETS):
            rows = self._rows.rows(bucket)
            order = np.lexsort((rows[:, 2], rows[:, 0]))
            for row in order:
                yield Retirement(*rows[row].tolist())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.close()


class RetiredSince:
    """Files that are retired by events that come while the audit runs.

    Args:
        newer: reads the seal log on from where the audit read it to.
    """

    def __init__(self, newer: Callable[[], Iterable[Event]]) -> None:
        self._newer = newer
        self._paths: set[int] = set()
        self._below = 0

    def has(self, path: str) -> bool:
        """Whether the file is retired by now."""
        self._read()
        return hash_of(path) in self._paths

    def has_all(self, flush: int, paths: set[int]) -> bool:
        """Whether all of these files of a flush are retired by now, by the hashes of their paths.
        A flush without files is, once a newer one has a retired file."""
        self._read()
        return paths <= self._paths and (bool(paths) or flush < self._below)

    def _read(self) -> None:
        for event in self._newer():
            if isinstance(event, Retired):
                self._paths.update(hash_of(one.path) for one in event.files)
                self._below = max([self._below, *(one.offset + 1 for one in event.files)])


def hash_of(path: str) -> int:
    """As ``Retirement`` has it."""
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
        projected = RetiredFiles(address)
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
