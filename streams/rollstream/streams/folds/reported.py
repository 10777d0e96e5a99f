"""What sealers report of now: how producers stand, and what waits for what it continues. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

from rollstream.schemas.events import (
    Claimed,
    Continuation,
    ContinuationsWaiting,
    Event,
    Flushed,
    InFlight,
    PartitionReport,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.in_flight import InFlightGroups

# Flushes that no report came after: its sealer is an older release's, or reports nothing.
_ENDINGS_MAX = 64


class Waiting(NamedTuple):
    """How many trajectories of a partition wait for a rollout that they continue, and the first."""

    trajectories: int
    examples: tuple[Continuation, ...]


class ReportedNow:
    """By the reports, and by the seal logs, where older releases report. No part of a sampler's
    state: nothing that is recorded depends on it.

    Of a partition only the newest owner's reports count: an earlier one may write on for a while.

    Attributes:
        tells: whether all partitions are reported; False in an older deployment, without the logs.
        in_flight: how many groups each producer has open, and waits to begin.
    """

    def __init__(self, *, tells: bool = True) -> None:
        self.tells = tells
        self.in_flight = InFlightGroups()
        self._waiting: dict[PartitionAddress, Waiting] = {}
        self._epochs: dict[PartitionAddress, int] = {}
        self._told_by: dict[PartitionAddress, int] = {}  # By which claim what waits was said.
        self._ended = Counter[str]()
        # By seal log, the offset of a flush and how many groups ended with it.
        self._endings: dict[PartitionAddress, deque[tuple[int, int]]] = {}

    @property
    def waiting(self) -> Mapping[PartitionAddress, Waiting]:
        """Of the partitions where any waits."""
        return self._waiting

    def ended(self, environment: str) -> int:
        """How many groups of it were sealed, or ended otherwise. They count from the report on that
        no longer has them open."""
        return self._ended[environment]

    def apply(self, log: PartitionAddress, report: PartitionReport) -> None:
        """The next report of a partition."""
        if report.epoch < self._epochs.get(log, -1):
            return
        self._epochs[log] = report.epoch
        self._wait(log, report.epoch, report.waiting, report.continuations)
        self.in_flight.apply(log, report.producers, report.now_ts, complete=report.complete)
        self._end(log, report.seal_offset)

    def apply_sealed(self, log: PartitionAddress, offset: int, event: Event) -> None:
        """The next event of a seal log that counts."""
        if isinstance(event, Flushed):
            unsealed = sum(len(part.example_ids) for part in event.unsealed)
            endings = self._endings.setdefault(log, deque())
            endings.append((offset, len(event.groups) + unsealed))
            if event.in_flight:
                self.in_flight.apply(log, event.in_flight, event.now_ts)
                self._end(log, offset)
            elif len(endings) > _ENDINGS_MAX:
                self._end(log, endings[0][0])
        elif isinstance(event, InFlight):
            self.in_flight.apply(log, event.producers, event.now_ts, complete=event.complete)
            self._end(log, offset)
        elif isinstance(event, ContinuationsWaiting):
            self._wait(log, event.epoch, event.count, event.examples)
        elif isinstance(event, Claimed) and offset > self._told_by.get(log, -1):
            self._waiting.pop(log, None)  # The new owner says anew what waits.

    def _wait(
        self, log: PartitionAddress, epoch: int, count: int, examples: tuple[Continuation, ...]
    ) -> None:
        """The owner by this claim said so last."""
        self._told_by[log] = epoch
        self._waiting.pop(log, None)
        if count:
            self._waiting[log] = Waiting(count, examples)

    def _end(self, log: PartitionAddress, offset: int) -> None:
        """Groups that ended up to this offset of the seal log are open no more."""
        endings = self._endings.get(log)
        while endings and endings[0][0] <= offset:
            self._ended[log.environment] += endings.popleft()[1]
