"""Records of the ingest log while segments of them wait for their groups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from rollstream.consumers.assembling.decisions import NOTHING_KEPT, Kept, Row
from rollstream.schemas.ingest.record import IngestRecord, decode_record

# Of the bytes that may be pending: how many may be in records of which less than half is pending.
# Most of those end soon, and copying costs more than sealing; only what stays is copied out.
_SPARSE_SHARE = 8


Keep = Callable[[IngestRecord], int]
"""Keeps a record in memory, or moves its payload elsewhere; returns how many bytes of memory it
takes."""
PendingRow = tuple["HeldRecord", int]
"""A held record, and the number of an entry of it in the log."""


class HeldRecord:
    """Keeps a record while any of its entries is pending.

    Entries are numbered as in the log. Once ``keep_pending`` has copied some of them out, the
    record has these alone.

    Attributes:
        record: what is kept.
        offset: in the log.
        memory: the bytes of memory that it takes.
        left: how many entries are pending, or still to be looked at.
        left_size: their bytes.
        sizes: bytes of each entry of the record.
        indexes: where each entry stands in the record; None where that is its number.
        released: by index in the record, 1 where the entry is not left.
    """

    __slots__ = (
        *("indexes", "left", "left_size", "memory", "offset", "record", "released", "sizes"),
    )

    def __init__(self, record: IngestRecord, offset: int, memory: int) -> None:
        self.record = record
        self.offset = offset
        self.memory = memory
        self.left = record.count
        self.left_size = record.size
        self.sizes = record.sizes()
        self.released = bytearray(record.count)
        self.indexes: dict[int, int] | None = None

    def index(self, entry: int) -> int:
        """Where the entry stands in the record."""
        return entry if self.indexes is None else self.indexes[entry]

    def keep_pending(self) -> None:
        """Copies out what is pending, so that the rest is kept no longer by this."""
        entries = range(self.record.count) if self.indexes is None else list(self.indexes)
        kept = [index for index, gone in enumerate(self.released) if not gone]
        assert len(kept) == self.left > 0, (len(kept), self.left)
        self.record = decode_record(self.record.part(kept))
        self.left_size = self.record.size
        self.sizes = self.record.sizes()
        self.indexes = {entries[index]: number for number, index in enumerate(kept)}
        self.released = bytearray(self.left)


class HeldRecords:
    """The records of which anything is pending. Each counts whole, in memory or not.

    Of a record of which less than half is pending (of its bytes), what is left is copied out as
    soon as such records have more than an eighth of ``size_max``, or all of them more than
    ``size_max``: a slow group keeps no large record for long.

    Args:
        size_max: the bound.
        on_freed: told the bytes of each record of which nothing is pending any more, but for those
            that ``take`` tells of.
        keep: asked once for each record.

    Attributes:
        size: bytes of these records, which take ``memory`` bytes of memory.
    """

    def __init__(self, size_max: int, on_freed: Callable[[Kept], None], keep: Keep) -> None:
        self.size = self.memory = 0
        self.size_max = size_max
        self._keep = keep
        self._on_freed = on_freed
        self._sparse: OrderedDict[HeldRecord, None] = OrderedDict()
        self._sparse_size = 0

    def hold(self, record: IngestRecord, offset: int) -> HeldRecord:
        """A record that was read; all of its entries are left."""
        memory = self._keep(record)
        self.size += record.size
        self.memory += memory
        return HeldRecord(record, offset, memory)

    def take(self, rows: Iterable[PendingRow]) -> tuple[list[Row], int, Kept]:
        """These entries are pending no more. Returns them, their bytes, and the bytes of records of
        which nothing is pending any more."""
        taken: list[Row] = []
        size, freed = 0, NOTHING_KEPT
        sparse = self._sparse
        for held, entry in rows:
            record = held.record
            index = entry if held.indexes is None else held.indexes[entry]
            assert not held.released[index], f"{entry} of offset {held.offset} is released twice"
            held.released[index] = 1
            of_row = held.sizes[index]
            taken.append((record, index, held.offset, entry))
            size += of_row
            held.left -= 1
            held.left_size -= of_row
            if not held.left:
                freed = freed.plus(self._forget(held))
            elif 2 * held.left_size < record.size and held not in sparse:
                sparse[held] = None
                self._sparse_size += record.size
        return taken, size, freed

    def release(self, held: HeldRecord, entry: int) -> None:
        """The entry is pending no more."""
        _, _, freed = self.take(((held, entry),))
        self._on_freed(freed)

    def crowded(self) -> bool:
        """Whether a bound is exceeded: ``copy_out``, or let something expire."""
        return self.size > self.size_max or self._sparse_size > self.size_max // _SPARSE_SHARE

    def copy_out(self) -> bool:
        """Copies out what is left of the oldest record of which less than half is; False where
        there is none. Never while a record is being read."""
        held = next(iter(self._sparse), None)
        if held is None:
            return False
        self._on_freed(self._forget(held))
        held.keep_pending()
        held.memory = self._keep(held.record)
        self.size += held.record.size
        self.memory += held.memory
        return True

    def _forget(self, held: HeldRecord) -> Kept:
        size = held.record.size
        self.size -= size
        self.memory -= held.memory
        if held in self._sparse:
            del self._sparse[held]
            self._sparse_size -= size
        return Kept(size, held.memory)
