"""What is gathered for each partition until it is sent as one record. Pure.

One record of a partition is on its way at a time, so that nothing overtakes one that has to be sent
again in parts; what comes meanwhile is gathered behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from rollstream.producers.outbox import Outgoing

Address = tuple[str, int]
"""A partition: topic and number."""

# With so many, what a record costs by itself (header, request, report) is little for each entry.
RECORD_ENTRIES_MAX = 512
# Of entries that share a record: a topic that was made with Kafka's own limit (1,048,588) takes it.
RECORD_BYTES = 1_000_000
# Of all that is gathered or on its way, in one producer; beyond it callers wait for room.
HELD_BYTES_MAX = 32 * 1024 * 1024
_ENTRY_BYTES = 1_024  # What Python's objects take for an entry besides its arrays, about.


class Pending:
    """The entries of one record that is to be sent, or is on its way.

    Attributes:
        value: its bytes, where they are part of a record that was refused as too large; else it is
            encoded when it is sent.
    """

    __slots__ = ("address", "outgoing", "value")

    def __init__(
        self, address: Address, outgoing: list[Outgoing], value: bytes | None = None
    ) -> None:
        self.address = address
        self.outgoing = outgoing
        self.value = value


class _Buffer:
    """One partition."""

    __slots__ = ("address", "closed", "due", "offered", "on_its_way", "open", "signatures", "size")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.closed: deque[Pending] = deque()  # Whole records, which wait their turn.
        self.open: list[Outgoing] = []  # What the next one has so far.
        self.size = 0  # Of ``open``.
        self.signatures: dict[str, tuple[str, tuple[int, ...]]] = {}  # Of its named arrays.
        self.due = False  # Whether ``open`` is to be sent as it is.
        self.on_its_way = False
        self.offered = False  # Whether it is among those that can be sent now.

    def close(self) -> None:
        """Makes a record of what is open."""
        if self.open:
            self.closed.append(Pending(self.address, self.open))
            self.open, self.size = [], 0
        self.signatures = {}
        self.due = False

    def fits(self, outgoing: Outgoing, bytes_max: int) -> bool:
        """Whether the open record can hold it too, in size and by the dtypes of named arrays."""
        if self.size + outgoing.size > bytes_max and self.open:
            return False
        assert outgoing.entry is not None, "it was sent before"
        named = outgoing.entry.fields.get("token_arrays")
        if not named:
            return True
        for name, array in named.items():
            signature = array[:2]
            if self.signatures.setdefault(name, signature) != signature:
                return False
        return True


class Gatherer:
    """Gathers entries by partition, in the order of calls, and hands them out as records.

    Attributes:
        held_bytes: of what is gathered or on its way.
        entries: how many that are.
        on_their_way: how many records.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self.entries = 0
        self.on_their_way = 0
        self._buffers: dict[Address, _Buffer] = {}
        self._sendable: deque[_Buffer] = deque()
        self._bytes_max: dict[str, int] = {}  # Of topics that refused a record of less.

    def has_room(self, outgoing: Outgoing) -> bool:
        """Whether the bound allows one more entry; where nothing is held, it always does."""
        held = self.held_bytes
        return not held or held + outgoing.size + _ENTRY_BYTES <= HELD_BYTES_MAX

    def append(self, address: Address, outgoing: Outgoing) -> bool:
        """Gathers an entry; returns whether that made a record full, so that it can be sent."""
        buffer = self._buffers.get(address)
        if buffer is None:
            buffer = self._buffers[address] = _Buffer(address)
        closed = len(buffer.closed)
        bytes_max = RECORD_BYTES
        if self._bytes_max:
            bytes_max = self._bytes_max.get(address[0], RECORD_BYTES)
        if not buffer.fits(outgoing, bytes_max):
            buffer.close()
            buffer.fits(outgoing, bytes_max)  # Its arrays are the first of the next record.
        buffer.open.append(outgoing)
        buffer.size += outgoing.size
        self.entries += 1
        self.held_bytes += outgoing.size + _ENTRY_BYTES
        if len(buffer.open) == RECORD_ENTRIES_MAX or buffer.size >= bytes_max:
            buffer.close()
        if len(buffer.closed) == closed:
            return False
        self._offer(buffer)
        return True

    def end_linger(self, address: Address | None = None) -> None:
        """What is gathered, at one partition or all, goes as soon as it can, the largest first."""
        if address is None:
            buffers = sorted(self._buffers.values(), key=_size_of, reverse=True)
        else:
            buffers = [self._buffers[address]] if address in self._buffers else []
        for buffer in buffers:
            buffer.due = bool(buffer.open)
            self._offer(buffer)

    def take(self) -> Pending | None:
        """The next record to be sent; it is on its way until one of the three calls below."""
        while self._sendable:
            buffer = self._sendable.popleft()
            buffer.offered = False
            if not buffer.closed and buffer.due:
                buffer.close()
            if buffer.closed:
                buffer.on_its_way = True
                self.on_their_way += 1
                return buffer.closed.popleft()
        return None

    def give_back(self, record: Pending) -> None:
        """The record could not be sent yet; it is the first of its partition again."""
        buffer = self._arrived(record)
        buffer.closed.appendleft(record)
        self._offer(buffer)

    def answered(self, record: Pending) -> None:
        """The record is in the log, or failed; the next one of its partition may go."""
        buffer = self._arrived(record)
        self._release(record.outgoing)
        self._offer(buffer)

    def divide(self, record: Pending, part: Callable[[Sequence[int]], bytes], size: int) -> None:
        """The record of ``size`` bytes is to be sent in halves, before what came after it.

        ``part`` makes the bytes of some of its entries. Records for that topic stay smaller.
        """
        buffer = self._arrived(record)
        count = len(record.outgoing)
        for numbers in (range(count // 2, count), range(count // 2)):
            half = record.outgoing[numbers.start : numbers.stop]
            buffer.closed.appendleft(Pending(record.address, half, part(numbers)))
        topic = record.address[0]
        self._bytes_max[topic] = min(size // 2, self._bytes_max.get(topic, RECORD_BYTES))
        self._offer(buffer)

    def take_out(self, address: Address, outgoing: Outgoing) -> bool:
        """Forgets one entry that has not left; returns whether it was there to be forgotten."""
        buffer = self._buffers.get(address)
        if buffer is None or outgoing.left:
            return False
        if outgoing in buffer.open:
            buffer.open.remove(outgoing)
            buffer.size -= outgoing.size
        else:
            record = next((one for one in buffer.closed if outgoing in one.outgoing), None)
            if record is None:
                return False
            record.outgoing.remove(outgoing)
            if not record.outgoing:
                buffer.closed.remove(record)
        self._release([outgoing])
        return True

    def drop(self, topic: str | None = None) -> list[Outgoing]:
        """Forgets what has not been sent, for one topic or all, and returns it."""
        dropped: list[Outgoing] = []
        for address, buffer in self._buffers.items():
            if topic in (None, address[0]):
                buffer.close()
                for record in buffer.closed:
                    dropped += record.outgoing
                buffer.closed.clear()
        self._release(dropped)
        return dropped

    def _arrived(self, record: Pending) -> _Buffer:
        buffer = self._buffers[record.address]
        assert buffer.on_its_way, record.address
        buffer.on_its_way = False
        self.on_their_way -= 1
        return buffer

    def _offer(self, buffer: _Buffer) -> None:
        if not (buffer.offered or buffer.on_its_way) and (buffer.closed or buffer.due):
            buffer.offered = True
            self._sendable.append(buffer)

    def _release(self, outgoing: Sequence[Outgoing]) -> None:
        self.entries -= len(outgoing)
        self.held_bytes -= sum(one.size for one in outgoing) + _ENTRY_BYTES * len(outgoing)


def _size_of(buffer: _Buffer) -> int:
    return buffer.size
