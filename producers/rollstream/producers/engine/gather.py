"""What is gathered for each partition until it is sent as one record. Pure.

One record of a partition is on its way at a time, so that nothing overtakes one that has to be sent
again in parts; what comes meanwhile is gathered behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, islice, takewhile
from operator import attrgetter

from rollstream.producers.engine.outbox import Address, Outgoing
from rollstream.producers.errors import RolloutTooLarge
from rollstream.schemas.rules import TOKEN_ARRAYS_MAX

# With so many, what a record costs by itself (header, request, report) is little for each entry.
RECORD_ENTRIES_MAX = 512
# Of entries that share a record: a topic that was made with Kafka's own limit (1,048,588) takes it.
RECORD_BYTES = 1_000_000
# Of all that is gathered or on its way, in one producer; beyond it callers wait for room.
HELD_BYTES_MAX = 32 * 1024 * 1024
_ENTRY_BYTES = 1_024  # What Python's objects take for an entry besides its arrays, about.
_size = attrgetter("size")


class _Buffer:
    """One partition."""

    def __init__(self, entries_max: int) -> None:
        self.entries_max = entries_max
        self.waiting: list[Outgoing] = []
        self.size = 0  # Of what is waiting.
        self.due = 0  # How many of these wait for no others.
        self.on_its_way = 0  # How many records.
        self.in_parts = 0  # How many of these, the first ones, the broker refused in one record.
        self.part_bytes = 0  # Of a record with any of them.
        self.withdrawn = 0  # How many of those that wait are not to be sent.
        self.named = False  # Whether an entry ever had extras: named arrays may be among them.

    @property
    def full(self) -> bool:
        return self.size >= RECORD_BYTES or len(self.waiting) >= self.entries_max

    def next_record(self) -> list[Outgoing]:
        """As many as one record can hold, in size and by the dtypes of named arrays."""
        size_max = self.part_bytes if self.in_parts else RECORD_BYTES
        sizes = accumulate(map(_size, islice(self.waiting, self.entries_max)))
        count = max(1, sum(1 for _ in takewhile(size_max.__ge__, sizes)))
        if self.named:
            count = self._alike(count)
        record, self.waiting = self.waiting[:count], self.waiting[count:]
        if self.withdrawn:
            record = [one for one in record if not one.withdrawn]
            self.withdrawn -= count - len(record)
        self.size -= _size_of(record)
        self.due = max(0, self.due - count)
        self.in_parts = max(0, self.in_parts - count)
        return record

    def _alike(self, count: int) -> int:
        """How many of the first entries agree in the dtypes of their named arrays."""
        signatures: dict[str, tuple[str, tuple[int, ...]]] = {}
        for index, outgoing in enumerate(self.waiting[:count]):
            assert outgoing.entry is not None, "it was sent before"
            named = outgoing.entry.extras.get("token_arrays", {})
            own = {name: array[:2] for name, array in named.items()}
            if len(signatures.keys() | own.keys()) > TOKEN_ARRAYS_MAX or any(
                signatures.get(name, signature) != signature for name, signature in own.items()
            ):
                return index
            if not outgoing.withdrawn:
                signatures |= own
        return count


class Gatherer:
    """Gathers entries by partition, in the order of calls, and hands them out as records.

    Args:
        record_entries_max: most entries of a record.
        records_max: most records of a partition that are on their way.

    Attributes:
        held_bytes: of what is held, gathered or on its way.
        entries: how many that are.
        numbered: how many there were so far.
        ready: partitions that may get a record now, in their order.
    """

    def __init__(
        self, record_entries_max: int = RECORD_ENTRIES_MAX, records_max: float = 1
    ) -> None:
        self._record_entries_max = record_entries_max
        self._records_max = records_max
        self.held_bytes = 0
        self.entries = self.numbered = 0
        self.ready: dict[Address, None] = {}
        self._buffers: dict[Address, _Buffer] = {}

    @property
    def behind(self) -> bool:
        """Whether anything that is due waits for the answer to a record before it."""
        return any(buffer.due or buffer.full for buffer in self._buffers.values())

    @property
    def waiting(self) -> int:
        """How many entries are gathered and not on their way."""
        return sum(len(buffer.waiting) - buffer.withdrawn for buffer in self._buffers.values())

    def has_room_for(self, outgoing: Sequence[Outgoing]) -> bool:
        """Whether the bound allows all of them; of one alone it does where nothing is held.

        Raises:
            RolloutTooLarge: it never will, of several.
        """
        size = _held_bytes(outgoing)
        if self.held_bytes + size <= HELD_BYTES_MAX:
            return True
        if size > HELD_BYTES_MAX and len(outgoing) > 1:
            what = f"the {len(outgoing)} entries of this call"
            raise RolloutTooLarge(what, size, HELD_BYTES_MAX, "split the call")
        return not self.held_bytes and len(outgoing) == 1

    def append(self, outgoing: Outgoing) -> bool:
        """Gathers an entry; returns whether its partition is ready by it: a record is full."""
        address, size = outgoing.address, outgoing.size
        buffer = self._buffers.get(address)
        if buffer is None:
            buffer = self._buffers[address] = _Buffer(self._record_entries_max)
        if not outgoing.number:  # Else it was held.
            outgoing.number = self.numbered = self.numbered + 1
        buffer.waiting.append(outgoing)
        buffer.size += size
        self.entries += 1
        self.held_bytes += size + _ENTRY_BYTES
        if outgoing.entry is not None and outgoing.entry.extras:
            buffer.named = True
        if buffer.size < RECORD_BYTES and len(buffer.waiting) < buffer.entries_max:
            return False
        if address in self.ready or buffer.on_its_way >= self._records_max:
            return False  # It is ready, or will be with the answer.
        self.ready[address] = None
        return True

    def hold(self, outgoing: Sequence[Outgoing]) -> None:
        """Counts entries that cannot be gathered so far, until they are, or ``forget``."""
        for one in outgoing:
            one.number = self.numbered = self.numbered + 1
        self.entries += len(outgoing)
        self.held_bytes += _held_bytes(outgoing)

    def forget(self, outgoing: Sequence[Outgoing]) -> None:
        """Counts these no more."""
        self.entries -= len(outgoing)
        self.held_bytes -= _held_bytes(outgoing)

    def end_linger(self, address: Address | None = None) -> None:
        """What is gathered, at one partition or all, goes as soon as it can, the largest first."""
        found = self._buffers if address is None else self._buffers.keys() & {address}
        ended = [one for one in found if self._buffers[one].waiting]
        for one in ended:
            self._buffers[one].due = len(self._buffers[one].waiting)
        largest_first = sorted(ended, key=lambda one: self._buffers[one].size, reverse=True)
        self.ready |= dict.fromkeys(largest_first)

    def take_ready(self) -> list[Address]:
        """The partitions that may get a record now."""
        ready, self.ready = [*self.ready], {}
        return ready

    def take(self, address: Address) -> list[Outgoing]:
        """The next record of a partition; empty where none is to be sent now.

        It is on its way until ``answered`` or ``put_back``.
        """
        buffer = self._buffers[address]
        record: list[Outgoing] = []
        while not record and buffer.on_its_way < self._records_max and (buffer.due or buffer.full):
            record = buffer.next_record()
        for one in record:
            one.left = True
        buffer.on_its_way += bool(record)
        return record

    def answered(self, record: Sequence[Outgoing]) -> None:
        """The record is in the log, or failed; the next one of its partition may go. Its entries
        count until ``forget``."""
        self._buffers[record[0].address].on_its_way -= 1
        self.ready[record[0].address] = None

    def put_back(self, record: Sequence[Outgoing], *, too_large: bool = False) -> None:
        """The record is not in the log; its entries are the first of their partition again.

        ``too_large``: they will go in parts.
        """
        buffer = self._buffers[record[0].address]
        buffer.on_its_way -= 1
        size = _size_of(record)
        if too_large:
            buffer.in_parts += len(record)
            buffer.part_bytes = size // 2
        for one in record:
            one.left = False
        buffer.waiting[:0] = record
        buffer.size += size
        buffer.due += len(record)
        self.ready[record[0].address] = None

    def take_out(self, outgoing: Outgoing) -> None:
        """Forgets one entry that is gathered and has not left: no record has it."""
        assert not outgoing.withdrawn, outgoing.named
        outgoing.withdrawn = True
        buffer = self._buffers[outgoing.address]
        buffer.withdrawn += 1
        buffer.size -= outgoing.size
        self.forget([outgoing])
        outgoing.size = 0

    def drop(self, topic: str | None = None) -> list[Outgoing]:
        """Returns what has not been sent, for one topic or all; it never will be. It counts until
        ``forget``."""
        dropped: list[Outgoing] = []
        for address, buffer in self._buffers.items():
            if topic in (None, address[0]):
                dropped += [one for one in buffer.waiting if not one.withdrawn]
                buffer.waiting.clear()
                buffer.size = buffer.due = buffer.in_parts = buffer.withdrawn = 0
        return dropped


def _held_bytes(outgoing: Sequence[Outgoing]) -> int:
    if len(outgoing) == 1:  # As most calls have.
        return outgoing[0].size + _ENTRY_BYTES
    return _size_of(outgoing) + _ENTRY_BYTES * len(outgoing)


def _size_of(outgoing: Iterable[Outgoing]) -> int:
    return sum(map(_size, outgoing))
