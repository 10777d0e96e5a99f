"""What sealers report of now: how producers stand, and what waits for what it continues. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from rollstream.schemas.events import (
    Claimed,
    Continuation,
    ContinuationsWaiting,
    Event,
    Flushed,
    InFlight,
    PartitionReport,
    ProducerInFlight,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.in_flight import InFlightGroups

# Flushes that no report came after: its sealer is an older release's, or reports nothing.
_ENDINGS_MAX = 64
_TOLD_LATELY_US = 120_000_000


class Waiting(NamedTuple):
    """How many trajectories of a partition wait for a rollout that they continue, and the first."""

    trajectories: int
    examples: tuple[Continuation, ...]


NONE_WAITS = Waiting(0, ())


class ReportedNow:
    """By the reports, and by the seal logs, where older releases report. No part of a sampler's
    state: nothing that is recorded depends on it.

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
        self._told_by: dict[PartitionAddress, int] = {}  # By which claim what waits was said.
        self._told_ts: dict[str, int] = {}  # When seal logs told of an environment last.
        self._ended = Counter[str]()
        # By seal log, the offset of a flush and how many groups ended with it.
        self._endings: dict[PartitionAddress, deque[tuple[int, int]]] = {}

    def tells(self, environment: str, now_ts: int) -> bool:
        """Whether it is known how producers of it stand: its reports are read, or its seal logs
        told of some lately, by log time."""
        told_ts = self._told_ts.get(environment, 0)
        return environment in self.reads or now_ts - told_ts < _TOLD_LATELY_US

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
                self._tell(log, event.epoch, event.in_flight, event.now_ts)
                self._end(log, offset)
            elif len(endings) > _ENDINGS_MAX:
                self._end(log, endings[0][0])
        elif isinstance(event, InFlight):
            self._tell(log, event.epoch, event.producers, event.now_ts, complete=event.complete)
            self._end(log, offset)
        elif isinstance(event, ContinuationsWaiting) and event.epoch >= self._epochs.get(log, -1):
            self._wait(log, event.epoch, event.count, event.examples)
        elif isinstance(event, Claimed) and offset > self._told_by.get(log, -1):
            self.waiting.pop(log, None)  # The new owner says anew what waits.

    def _tell(
        self,
        log: PartitionAddress,
        epoch: int,
        producers: Sequence[ProducerInFlight],
        now_ts: int,
        *,
        complete: bool = False,
    ) -> None:
        """The owner by this claim, of an older release, said so in its seal log."""
        if epoch >= self._epochs.get(log, -1):
            self._epochs[log] = epoch
            self.in_flight.apply(log, producers, now_ts, complete=complete)
        self._told_ts[log.environment] = max(now_ts, self._told_ts.get(log.environment, 0))

    def _wait(
        self, log: PartitionAddress, epoch: int, count: int, examples: tuple[Continuation, ...]
    ) -> None:
        """The owner by this claim said so last."""
        self._told_by[log] = epoch
        self.waiting.pop(log, None)
        if count:
            self.waiting[log] = Waiting(count, examples)

    def _end(self, log: PartitionAddress, offset: int) -> None:
        """Groups that ended up to this offset of the seal log are open no more."""
        endings = self._endings.get(log)
        while endings and endings[0][0] <= offset:
            self._ended[log.environment] += endings.popleft()[1]
