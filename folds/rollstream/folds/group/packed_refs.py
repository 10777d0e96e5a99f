"""References to sealed groups as integers of 64 bits that sort as they do. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby

from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef

INDEX_BITS = 18  # A flush event's limit of 16 MiB is reached with fewer groups.
OFFSET_BITS = 30  # Five years of six flushes a second.
INDEX_MAX = (1 << INDEX_BITS) - 1
_OFFSET_MAX = (1 << OFFSET_BITS) - 1
_FlushRef = tuple[str, int, int, int]  # Environment, generation, partition, offset.


class PackedRefs:
    """Packs references to groups of these logs, of which there are up to 65,536."""

    def __init__(self, logs: Collection[PartitionAddress]) -> None:
        self._logs = sorted(logs)
        # By plain tuples, which equal addresses and cost less to make.
        self._numbers = {(*log,): number for number, log in enumerate(self._logs)}

    def find(self, ref: GroupRef) -> int:
        """The packed reference; -1: the group is of none of the logs."""
        environment, generation, partition, offset, index = ref
        number = self._numbers.get((environment, generation, partition))
        if number is None:
            return -1
        assert offset <= _OFFSET_MAX, ref
        assert index <= INDEX_MAX, ref
        return (number << OFFSET_BITS | offset) << INDEX_BITS | index

    def pack(self, ref: GroupRef) -> int:
        """The same, where its log must be one of the logs."""
        packed = self.find(ref)
        assert packed >= 0, ref
        return packed

    def bounds(self, environment: str) -> tuple[int, int]:
        """The packed references of the environment are from the first up to below the second."""
        names = [log.environment for log in self._logs]
        bits = OFFSET_BITS + INDEX_BITS
        return bisect_left(names, environment) << bits, bisect_right(names, environment) << bits

    def unpack(self, packed: int) -> GroupRef:
        """The reference that was packed."""
        flush = packed >> INDEX_BITS
        log = self._logs[flush >> OFFSET_BITS]
        return GroupRef(*log, flush & _OFFSET_MAX, packed & INDEX_MAX)

    def by_flush(self, packed: Iterable[int]) -> Iterator[tuple[_FlushRef, Iterator[int]]]:
        """Of references that rise: each flush with its references."""
        for flush, refs in groupby(packed, INDEX_BITS.__rrshift__):
            yield (*self._logs[flush >> OFFSET_BITS], flush & _OFFSET_MAX), refs
