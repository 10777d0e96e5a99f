"""Records of the ingest log while segments of them wait for their groups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

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
        left_bytes: about how many bytes these have.
    """

    __slots__ = ("_indexes", "_released", "left", "left_bytes", "offset", "record")

    def __init__(self, record: IngestRecord, offset: int) -> None:
        self.record = record
        self.offset = offset
        self.left = record.count
        self.left_bytes = record.size
        self._released: bytearray | None = None  # By index in the record, 1 where it is not left.
        self._indexes: dict[int, int] | None = None  # Of each entry that was copied out.

    def index(self, entry: int) -> int:
        """Where the entry stands in the record."""
        return entry if self._indexes is None else self._indexes[entry]

    def source(self, entry: int, stop: int) -> SourceRun:
        """Pending entries that follow one another."""
        if self._indexes is None:
            return SourceRun(self.record, entry, stop, self.offset, entry)
        first = self._indexes[entry]
        return SourceRun(self.record, first, first + stop - entry, self.offset, entry)

    def release(self, entry: int, stop: int) -> int:
        """These entries are pending no more; about how many bytes they have."""
        number = stop - entry
        if number == self.left:
            size, self.left, self.left_bytes = self.left_bytes, 0, 0
            return size
        assert number < self.left, f"entry {entry} of offset {self.offset} is released twice"
        first = self.index(entry)
        size = self._size_of(first, first + number)
        self.left -= number
        self.left_bytes -= size
        if self._released is None:
            self._released = bytearray(self.record.count)
        self._released[first : first + number] = b"\x01" * number
        return size

    def _size_of(self, first: int, stop: int) -> int:
        record = self.record
        size, rest = 0, record.size
        for arrays in (record.arrays, record.token_arrays):
            for run in arrays.values():
                size += run.width * (run.ends[stop] - run.ends[first])
                rest -= run.width * run.ends[-1]
        return size + rest * (stop - first) // record.count

    def keep_pending(self) -> None:
        """Copies out what is pending, so that the rest is kept no longer by this."""
        assert self.left, "something is pending"
        entries: Sequence[int] = (
            range(self.record.count) if self._indexes is None else list(self._indexes)
        )
        released = self._released or bytes(self.record.count)
        kept = [index for index, gone in enumerate(released) if not gone]
        assert len(kept) == self.left, (len(kept), self.left)
        self.record = decode_record(self.record.part(kept))
        self._indexes = {entries[index]: number for number, index in enumerate(kept)}
        self._released = None
        self.left_bytes = self.record.size


class HeldRecords:
    """The records of which anything is pending. Each counts whole, so ``size`` is what they take.

    Of a record of which less than half is pending, what is left is copied out as soon as such
    records have more than an eighth of ``size_max``, or all of them more than ``size_max``: a slow
    group keeps no large record for long.

    Attributes:
        size: bytes of these records; ``size_max`` is the bound.
    """

    def __init__(self, size_max: int) -> None:
        self.size = 0
        self.size_max = size_max
        self._sparse_max = size_max // _SPARSE_SHARE
        self._freed = 0
        self._sparse: OrderedDict[HeldRecord, None] = OrderedDict()
        self._sparse_size = 0

    def hold(self, record: IngestRecord, offset: int) -> HeldRecord:
        """A record that was read; all of its entries are left."""
        self.size += record.size
        return HeldRecord(record, offset)

    def release(self, held: HeldRecord, entry: int, stop: int) -> int:
        """These entries are pending no more; about how many bytes they have."""
        size = held.release(entry, stop)
        whole = held.record.size
        if not held.left:
            self._forget(held)
        elif 2 * held.left_bytes < whole and held not in self._sparse:
            self._sparse[held] = None
            self._sparse_size += whole
        return size

    def take_freed(self) -> int:
        """Bytes of the records that are not pending any more, since this was asked last."""
        freed, self._freed = self._freed, 0
        return freed

    def crowded(self) -> bool:
        """Whether a bound is exceeded: ``copy_out``, or let something expire."""
        return self.size > self.size_max or self._sparse_size > self._sparse_max

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
        whole = held.record.size
        self.size -= whole
        if held in self._sparse:
            del self._sparse[held]
            self._sparse_size -= whole
        self._freed += whole
