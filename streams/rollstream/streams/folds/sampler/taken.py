"""Which groups a decision took, one bit each, so that they may not be served (again). Pure."""

from __future__ import annotations

from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef


class TakenGroups:
    """Also of logs that are not configured any more: what was decided stays decided."""

    def __init__(self) -> None:
        self._masks: dict[PartitionAddress, dict[int, int]] = {}  # By log and offset of the flush.

    def __contains__(self, ref: GroupRef) -> bool:
        return bool(self.of_flush(ref.log, ref.offset) >> ref.index_in_flush & 1)

    def of_flush(self, log: PartitionAddress, offset: int) -> int:
        """A bit for each group of the flush, by its index there."""
        return self._masks.get(log, {}).get(offset, 0)

    def count_before(self, log: PartitionAddress, offset: int) -> int:
        """How many groups of the flushes before ``offset`` are taken."""
        masks = self._masks.get(log, {})
        return sum(mask.bit_count() for at, mask in masks.items() if at < offset)

    def add(self, ref: GroupRef) -> None:
        """The group is taken from now on."""
        masks = self._masks.setdefault(ref.log, {})
        masks[ref.offset] = masks.get(ref.offset, 0) | 1 << ref.index_in_flush

    def remove(self, ref: GroupRef) -> bool:
        """The group may be served again; returns whether it was taken."""
        if ref not in self:
            return False
        masks = self._masks[ref.log]
        masks[ref.offset] &= ~(1 << ref.index_in_flush)
        if not masks[ref.offset]:
            del masks[ref.offset]
        return True

    def sorted_items(self) -> list[tuple[PartitionAddress, list[tuple[int, int]]]]:
        """For a digest."""
        return [(log, sorted(masks.items())) for log, masks in sorted(self._masks.items()) if masks]
