"""What sealers report of now: how producers stand, and what waits for what it continues. Pure."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from rollstream.schemas.events import Claimed, Continuation, Event, Flushed, PartitionReport
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.in_flight import InFlightGroups

_ENDINGS_MAX = 64  # Flushes that no report came after: their sealer reports nothing.


class Waiting(NamedTuple):
    """How many trajectories of a partition wait for a rollout that they continue, and the first."""

    trajectories: int
    examples: tuple[Continuation, ...]


NONE_WAITS = Waiting(0, ())


class ReportedNow:
    """By the reports. No part of a sampler's state: nothing that is recorded depends on it.

    Of a partition only the newest owner's reports count: an earlier one may write on for a while.

    Attributes:
        reads: environments whose reports are read.
        in_flight: how many groups each producer has open, and waits to begin.
        waiting: of the partitions where any trajectory waits.
    """

    def __init__(self) -> None:
        self.reads: frozenset[str] = frozenset()
        self.in_flight = InFlightGroups()
        self.waiting: dict[PartitionAddress, Waiting] = {}
        self._epochs: dict[PartitionAddress, int] = {}
        self._ended = Counter[str]()
        # By seal log, the offset of a flush and how many groups ended with it.
        self._endings: dict[PartitionAddress, deque[tuple[int, int]]] = {}

    def ended(self, environment: str) -> int:
        """How many groups of it were sealed, or ended otherwise. They count from the report on that
        no longer has them open."""
        return self._ended[environment]

    def apply(self, log: PartitionAddress, report: PartitionReport) -> None:
        """The next report of a partition."""
        if report.epoch < self._epochs.get(log, -1):
            return
        self._epochs[log] = report.epoch
        self.waiting.pop(log, None)
        if report.waiting:
            self.waiting[log] = Waiting(report.waiting, report.continuations)
        self.in_flight.apply(log, report.producers, report.now_ts, complete=report.complete)
        self._end(log, report.seal_offset)

    def apply_sealed(self, log: PartitionAddress, offset: int, event: Event) -> None:
        """The next event of a seal log that counts."""
        if isinstance(event, Flushed):
            unsealed = sum(len(part.example_ids) for part in event.unsealed)
            endings = self._endings.setdefault(log, deque())
            endings.append((offset, len(event.groups) + unsealed))
            if len(endings) > _ENDINGS_MAX:
                self._end(log, endings[0][0])
        elif isinstance(event, Claimed) and offset > self._epochs.get(log, -1):
            self.waiting.pop(log, None)  # The new owner says anew what waits.

    def _end(self, log: PartitionAddress, offset: int) -> None:
        """Groups that ended up to this offset of the seal log are open no more."""
        endings = self._endings.get(log)
        while endings and endings[0][0] <= offset:
            self._ended[log.environment] += endings.popleft()[1]
