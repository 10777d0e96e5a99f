"""Everybody else's side of owned logs: the events that count, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Claimed, Event
from rollstream.streams.broker import Broker, Record, TopicPartition
from rollstream.streams.errors import BrokerUnavailable, CorruptLog
from rollstream.streams.owned.fence import Fence

CATCH_UP_RECORDS = 1000
CATCH_UP_SLICE_S = 0.2


class ConfirmedEvent(NamedTuple):
    """An event that counts, and where it stands."""

    where: TopicPartition
    offset: int
    timestamp_us: int
    event: Event


class Follower:
    """Reads owned partitions and hands out only what the fence admits.

    Within a partition in the order of offsets; between partitions in the order of arrival. Starts
    must be 0 (or EARLIEST) or the offset of a claim.
    """

    def __init__(
        self, broker: Broker, starts: Mapping[TopicPartition, int], *, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._reader = broker.reader(starts)
        self._starts = dict(starts)
        self._fences = {where: Fence() for where in starts}
        self._next: dict[TopicPartition, int] = {}
        self._records: deque[Record] = deque()

    def poll(self, records_max: int, timeout_s: float) -> list[ConfirmedEvent]:
        """The next events that count; events that do not are consumed and left out.

        Raises:
            UnreadableEvent: bytes in an owned log that are no event: a defect, never skipped.
            CorruptLog: a start that is no claim.
        """
        if not self._records:
            self._records.extend(self._reader.poll(records_max, timeout_s))
        confirmed: list[ConfirmedEvent] = []
        while self._records:
            record = self._records[0]
            where = TopicPartition(record.topic, record.partition)
            try:
                event = self._decode(where, record)
            except (UnreadableEvent, CorruptLog):
                if confirmed:
                    return confirmed  # What stands before the defect first; the defect next time.
                raise
            if self._fences[where].admits(record.offset, event):
                confirmed.append(ConfirmedEvent(where, record.offset, record.timestamp_us, event))
            self._next[where] = record.offset + 1
            self._records.popleft()
        return confirmed

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Per partition the offset behind the newest record seen, admitted or not; where none was
        seen yet, the start."""
        return {**self._starts, **self._next}

    def epochs(self) -> dict[TopicPartition, int]:
        """Per partition the claim in effect: from there a new follower may start."""
        return {
            where: fence.current_claim.epoch
            for where, fence in self._fences.items()
            if fence.current_claim is not None
        }

    def catch_up(self, timeout_s: float) -> list[ConfirmedEvent]:
        """Everything up to the ends as they stand at the call.

        Raises:
            BrokerUnavailable: not reached within ``timeout_s``; what was read by then is lost to
                the caller, so make a new follower. UnreadableEvent, CorruptLog.
        """
        deadline = Deadline(timeout_s, self._clock)
        ends = {
            where: self._reader.bounds(where, max(0.001, deadline.left_s()))
            for where in self._starts
        }
        confirmed: list[ConfirmedEvent] = []
        while behind := [
            where
            for where, (first, end) in ends.items()
            if self._next.get(where, max(first, self._starts[where])) < end
        ]:
            confirmed += self.poll(CATCH_UP_RECORDS, deadline.slice_s(CATCH_UP_SLICE_S))
            deadline.log_waiting(lambda: f"{len(behind)} logs to be read to their ends")
            if deadline.passed():
                raise BrokerUnavailable(f"{behind[0]} not read to its end within {timeout_s} s")
        return confirmed

    def close(self) -> None:
        """Idempotent."""
        self._reader.close()

    def _decode(self, where: TopicPartition, record: Record) -> Event:
        event = codec.decode(record.value)
        if isinstance(event, codec.Segment):
            raise CorruptLog(f"{where}: a rollout at {record.offset} of an owned log")
        if where not in self._next and self._starts[where] > 0 and not isinstance(event, Claimed):
            raise CorruptLog(
                f"{where}: {type(event).__name__} at {record.offset}; start at a claim or at 0"
            )
        return event
