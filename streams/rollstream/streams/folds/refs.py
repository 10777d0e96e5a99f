"""Names of sealed groups: where in which seal log they stand. Pure."""

from __future__ import annotations

from typing import NamedTuple

from rollstream.schemas.events import ChosenGroup, DroppedGroup
from rollstream.schemas.ids import PartitionAddress


class GroupRef(NamedTuple):
    """Names a group by where it stands; sorts by environment, generation, partition, offset."""

    environment: str
    generation: int
    partition: int
    offset: int
    index_in_flush: int

    def event_ref(self) -> DroppedGroup:
        """As it stands in events."""
        return DroppedGroup(
            environment=self.environment,
            generation=self.generation,
            partition=self.partition,
            offset=self.offset,
            index=self.index_in_flush,
        )

    @property
    def log(self) -> PartitionAddress:
        """The seal log that tells of it."""
        return PartitionAddress(self.environment, self.generation, self.partition)


def ref_of(chosen: ChosenGroup | DroppedGroup) -> GroupRef:
    """Where a group stands that an event names."""
    return GroupRef(
        chosen.environment, chosen.generation, chosen.partition, chosen.offset, chosen.index
    )
