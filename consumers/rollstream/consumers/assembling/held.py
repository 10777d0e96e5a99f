"""Records of the ingest log while segments of them wait for their groups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from rollstream.consumers.assembling.decisions import SourceRun
from rollstream.schemas.ingest.record import IngestRecord, decode_record

# Of the bytes that may be pending: how many may be in records of which less than half is pending.
# Most of those end soon, and copying costs more than sealing; only what stays is copied out.
_SPARSE_SHARE = 8


class HeldRecord:
    """Keeps a record while any of its entries is pending.

    Entries are numbered as in the log. Once ``keep_pending`` has copied some of them out, the
    record has these alone.

    Attributes:
        record: what is kept.
        offset: in the log.
        left: how many entries are pending, or still to be looked at.
        left_size: their bytes.
    """

    __slots__ = ("_indexes", "_released", "left", "left_size", "offset", "record")

    def __init__(self, record: IngestRecord, offset: int) -> None:
        self.record = record
        self.offset = offset
        self.left = record.count
        self.left_size = record.size
        self._released: bytearray | None = None  # By index in the record, 1 where it is not left.
        self._indexes: dict[int, int] | None = None  # Of each entry that was copied out.

    def index(self, entry: int) -> int:
        """Where the entry stands in the record."""
        return entry if self._indexes is None else self._indexes[entry]

    def source(self, entry: int, stop: int) -> SourceRun:
        """Pending entries that follow one another."""
        first = self.index(entry)
        return SourceRun(self.record, first, first + stop - entry, self.offset, entry)

    def release(self, entry: int, stop: int) -> None:
        """These entries are pending no more."""
        number = stop - entry
        assert number <= self.left, f"entry {entry} of offset {self.offset} is released twice"
        self.left -= number
        if self.left:
            if self._released is None:
                self._released = bytearray(self.record.count)
            first = self.index(entry)
            self.left_size -= self.record.size_of(first, first + number)
            self._released[first : first + number] = b"\x01" * number

    def keep_pending(self) -> None:
        """Copies out what is pending, so that the rest is kept no longer by this."""
        entries = range(self.record.count) if self._indexes is None else list(self._indexes)
        released = self._released or bytes(self.record.count)
        kept = [index for index, gone in enumerate(released) if not gone]
        assert len(kept) == self.left > 0, (len(kept), self.left)
        self.record = decode_record(self.record.part(kept))
        self.left_size = self.record.size
        self._indexes = {entries[index]: number for number, index in enumerate(kept)}
        self._released = None


class HeldRecords:
    """The records of which anything is pending. Each counts whole, so ``size`` is what they take.

    Of a record of which less than half is pending (of its bytes), what is left is copied out as
    soon as such records have more than an eighth of ``size_max``, or all of them more than
    ``size_max``: a slow group keeps no large record for long.

    Args:
        size_max: the bound.
        on_freed: told the bytes of each record of which nothing is pending any more.

    Attributes:
        size: bytes of these records.
    """

    def __init__(self, size_max: int, on_freed: Callable[[int], None]) -> None:
        self.size = 0
        self.size_max = size_max
        self._on_freed = on_freed
        self._sparse: OrderedDict[HeldRecord, None] = OrderedDict()
        self._sparse_size = 0

    def hold(self, record: IngestRecord, offset: int) -> HeldRecord:
        """A record that was read; all of its entries are left."""
        self.size += record.size
        return HeldRecord(record, offset)

    def release(self, held: HeldRecord, entry: int, stop: int) -> None:
        """These entries are pending no more."""
        held.release(entry, stop)
        if not held.left:
            self._forget(held)
        elif 2 * held.left_size < held.record.size and held not in self._sparse:
            self._sparse[held] = None
            self._sparse_size += held.record.size

    def crowded(self) -> bool:
        """Whether a bound is exceeded: ``copy_out``, or let something expire."""
        return self.size > self.size_max or self._sparse_size > self.size_max // _SPARSE_SHARE

    def copy_out(self) -> bool:
        """Copies out what is left of the oldest record of which less than half is; False where
        there is none. Never while a record is being read."""
        held = next(iter(self._sparse), None)
        if held is None:
            return False
        self._forget(held)
        held.keep_pending()
        self.size += held.record.size
        return True

    def _forget(self, held: HeldRecord) -> None:
        size = held.record.size
        self.size -= size
        if held in self._sparse:
            del self._sparse[held]
            self._sparse_size -= size
        self._on_freed(size)
