"""One bound in bytes for all records of a sealer, and who may read. Pure."""

from __future__ import annotations

from collections import OrderedDict

from rollstream.streams.broker import TopicPartition

# So much may be used by records that are in memory whole; what is left is for the objects of those
# whose payloads are elsewhere.
WHOLE_SHARE = 0.75
TURN_S = 10.0  # Then the next partition reads: the leader of this one may be silent.


class MemoryBudget:
    """Admits records to memory while there is room. The caller keeps other records elsewhere.

    Partitions that were adopted stand in line until they have caught up. While memory is used up,
    only the first of them reads, for ``TURN_S`` at most; then it is the last. Partitions that have
    caught up always read: the missing members of their groups are still to come.

    Args:
        size_max: bytes of records and their objects in memory, of all partitions together.

    Attributes:
        used: of these bytes.
    """

    def __init__(self, size_max: int) -> None:
        self.used = 0
        self._size_max = size_max
        self._sizes: dict[TopicPartition, int] = {}
        self._line: OrderedDict[TopicPartition, None] = OrderedDict()
        self._is_used_up = False
        self._first: TopicPartition | None = None
        self._turn_until_s = 0.0

    def join(self, source: TopicPartition) -> None:
        """The partition is read from its watermark on; it stands last in line."""
        self.leave(source)
        self._sizes[source] = 0
        self._line[source] = None

    def leave(self, source: TopicPartition) -> None:
        """The partition is read no more, and holds nothing."""
        self.leave_line(source)
        self.used -= self._sizes.pop(source, 0)

    def leave_line(self, source: TopicPartition) -> None:
        """The partition has caught up: it stands in line no more."""
        self._line.pop(source, None)

    def hold(self, source: TopicPartition, size: int) -> None:
        """The records of the partition take so many bytes of memory now."""
        self.used += size - self._sizes[source]
        self._sizes[source] = size
        if 2 * self.used < self._size_max:  # Well below, or reading would begin and end all along.
            self._is_used_up = False

    def admits(self, size: int) -> bool:
        """Whether a further record of so many bytes may be in memory whole."""
        admitted = self.used + size <= WHOLE_SHARE * self._size_max
        self._is_used_up |= not admitted
        return admitted

    @property
    def is_exceeded(self) -> bool:
        """Whether records are in memory that were not admitted, for want of another place."""
        return self.used > self._size_max

    def may_read(self, source: TopicPartition, now_s: float) -> bool:
        """Whether the partition may read now, or go on."""
        if not self._is_used_up or source not in self._line:
            return True
        first = next(iter(self._line))
        if first == self._first and now_s >= self._turn_until_s:
            self._line.move_to_end(first)
            self._first, first = None, next(iter(self._line))
        if first != self._first:
            self._first, self._turn_until_s = first, now_s + TURN_S
        return source == first
