"""Groups of retired files, and the recorded cursor behind which no decision names them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef


class RetiredGroups:
    """Groups that were ready, or in a batch that is held, when their file was retired.

    A decision was made with a cursor. One that had applied the ``Retired`` names none of its
    groups; an earlier one may, and the two kinds of log are folded in any interleaving. So such a
    group ends as retired only once a cursor beyond that event is recorded.

    Attributes:
        recorded: by seal log, the newest cursor in the decision log.
        newest: by seal log, the offset of the newest ``Retired`` with files that was applied.
    """

    def __init__(self) -> None:
        self.recorded: dict[PartitionAddress, int] = {}
        self.newest: dict[PartitionAddress, int] = {}
        # To the offset of the ``Retired``.
        self._undecided: dict[GroupRef, int] = {}
        self._in_batch: dict[GroupRef, int] = {}

    def __contains__(self, ref: GroupRef) -> bool:
        return ref in self._undecided or ref in self._in_batch

    def __iter__(self) -> Iterator[GroupRef]:
        yield from self._undecided
        yield from self._in_batch

    @property
    def cursor_is_due(self) -> bool:
        """Whether a ``Retired`` was applied since the recorded cursor."""
        return any(at >= self.recorded.get(log, 0) for log, at in self.newest.items())

    def add(self, ref: GroupRef, retired_at: int, *, taken: bool) -> None:
        """The group's file was retired at this offset; ``taken``: it is in a batch."""
        (self._in_batch if taken else self._undecided)[ref] = retired_at

    def take(self, ref: GroupRef) -> None:
        """A decision that was made before names the group."""
        if ref in self._undecided:
            self._in_batch[ref] = self._undecided.pop(ref)

    def release(self, ref: GroupRef) -> bool:
        """The group is in no batch any more; returns whether its file is retired."""
        if ref not in self._in_batch:
            return False
        self._undecided[ref] = self._in_batch.pop(ref)
        return True

    def discard(self, ref: GroupRef) -> None:
        """The group has ended, or its batch is no longer held."""
        self._undecided.pop(ref, None)
        self._in_batch.pop(ref, None)

    def record(self, cursor: Mapping[PartitionAddress, int]) -> bool:
        """A decision was made with this cursor; returns whether groups may end by it."""
        for log, position in cursor.items():
            self.recorded[log] = max(position, self.recorded.get(log, 0))
        return bool(self._undecided)

    def undecidable(self) -> list[GroupRef]:
        """The groups in no batch that no decision to come can name."""
        return [ref for ref, at in self._undecided.items() if at < self.recorded.get(ref.log, 0)]

    def sorted_items(self) -> list[Any]:
        """For a digest."""
        parts = (self.recorded, self.newest, self._undecided, self._in_batch)
        return [sorted(part.items()) for part in parts]
