"""Names of sealed groups: where in which seal log they stand. Pure."""

from __future__ import annotations

from typing import NamedTuple

from rollstream.schemas.events import ChosenGroup, GroupRef


class LogId(NamedTuple):
    """One partition of a seal log."""

    environment: str
    generation: int
    partition: int


class Ref(NamedTuple):
    """Names a group by where it stands; sorts by environment, generation, partition, offset."""

    environment: str
    generation: int
    partition: int
    offset: int
    nth: int

    def event_ref(self) -> GroupRef:
        """As it stands in events."""
        return GroupRef(
            environment=self.environment,
            generation=self.generation,
            partition=self.partition,
            offset=self.offset,
            index=self.nth,
        )

    @property
    def log(self) -> LogId:
        """The seal log that tells of it."""
        return LogId(self.environment, self.generation, self.partition)


def ref_of(chosen: ChosenGroup | GroupRef) -> Ref:
    """Where a group stands that an event names."""
    return Ref(chosen.environment, chosen.generation, chosen.partition, chosen.offset, chosen.index)
