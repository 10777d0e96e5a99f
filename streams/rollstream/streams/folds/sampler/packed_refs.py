"""References to sealed groups as integers of 64 bits that sort as they do. Pure."""

from __future__ import annotations

from collections.abc import Collection

from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef

INDEX_BITS = 18  # A flush event's limit of 16 MiB is reached with fewer groups.
OFFSET_BITS = 30  # Five years of six flushes a second.
_INDEX_MAX = (1 << INDEX_BITS) - 1
_OFFSET_MAX = (1 << OFFSET_BITS) - 1


class PackedRefs:
    """Packs references to groups of these logs, of which there are up to 65,536."""

    def __init__(self, logs: Collection[PartitionAddress]) -> None:
        self._logs = sorted(logs)
        # By plain tuples, which equal addresses and cost less to make.
        self._numbers = {tuple(log): number for number, log in enumerate(self._logs)}

    def holds(self, ref: GroupRef) -> bool:
        """Whether the group is of one of the logs."""
        return ref[:3] in self._numbers

    def pack(self, ref: GroupRef) -> int:
        """Its log must be one of the logs."""
        assert ref.offset <= _OFFSET_MAX, ref
        assert ref.index_in_flush <= _INDEX_MAX, ref
        flush = self._numbers[ref[:3]] << OFFSET_BITS | ref.offset
        return flush << INDEX_BITS | ref.index_in_flush

    def unpack(self, packed: int) -> GroupRef:
        """The reference that was packed."""
        flush = packed >> INDEX_BITS
        log = self._logs[flush >> OFFSET_BITS]
        return GroupRef(*log, flush & _OFFSET_MAX, packed & _INDEX_MAX)
