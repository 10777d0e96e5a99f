"""Follows the logs in which sealers report what holds now."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping

from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.codec import decode
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import PartitionReport
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import END, Broker, LogReader, TopicPartition
from rollstream.streams.errors import BrokerUnavailable, OffsetLost
from rollstream.streams.folds.reported import ReportedNow
from rollstream.streams.reading import POLL_SLICE_S, bounds_in_time

REPEAT_S = 60.0  # How often a sealer reports all again of which it reports anything.
_READ_BACK_S = 1.5 * REPEAT_S  # From the newest on, so that a complete report is among them.
_NEWEST_S = (60.0, 240.0, 960.0, 3_840.0, 15_360.0, 86_400.0)  # How old the newest may be.
_RECORDS_MAX = 256  # At a time.
_log = logging.getLogger("rollstream.streams")


class Reports:
    """Reads these logs on and on, from shortly before their ends, into ``reported``.

    A report counts once its seal log was folded up to where it holds: else a group would count
    neither as open nor as ready. Until then no more is read, so little is held. Nothing is read,
    nor the broker asked, before the first ``load``. Not shared between threads.

    Args:
        logs: the partition of the deployment that each log is of.
        tells: of ``ReportedNow``.
    """

    def __init__(
        self,
        broker: Broker,
        logs: Mapping[TopicPartition, PartitionAddress],
        clock: Clock,
        *,
        tells: bool = True,
    ) -> None:
        self.reported = ReportedNow(tells=tells)
        self._broker = broker
        self._logs = logs
        self._clock = clock
        self._reader: LogReader | None = None
        self._ends: dict[TopicPartition, int] = {}  # Of logs that are not read to there yet.
        self._early: dict[PartitionAddress, deque[PartitionReport]] = {}  # That do not count yet.
        self._unreadable = 0

    def follow(self, applied: Callable[[PartitionAddress], float]) -> None:
        """Takes what has come since ``load``, without waiting for more.

        Args:
            applied: the offset below which a seal log was folded.

        Raises:
            BrokerUnavailable, NotAuthorised, UnknownTopic: the broker's answer.
        """
        self._take_early(applied)
        if self._reader is not None and not self._early:
            self._poll(self._reader, 0.0)
            self._take_early(applied)

    def load(self, applied: Callable[[PartitionAddress], float], deadline: Deadline) -> None:
        """Takes all that the logs hold, the first time; the arguments are those of ``follow``.

        Raises:
            BrokerUnavailable: not within the deadline. NotAuthorised, UnknownTopic.
        """
        if not self._logs:
            return
        self._reader = self._reader or self._started(deadline)
        while self._ends:
            self._poll(self._reader, deadline.slice_s(POLL_SLICE_S))
            self._take_early(applied)
            if self._ends and deadline.passed():
                raise BrokerUnavailable(
                    f"{min(self._ends)} was not read within {deadline.timeout_s:g} s"
                )

    def restart(self) -> None:
        """Forgets all, until the next ``load``."""
        self.close()
        self.reported, self._reader = ReportedNow(tells=self.reported.tells), None
        self._early.clear()
        self._ends.clear()

    def close(self) -> None:
        """Closes what it reads with."""
        if self._reader is not None:
            self._reader.close()

    def _started(self, deadline: Deadline) -> LogReader:
        reader = self._broker.reader(dict.fromkeys(self._logs, END))
        try:
            for where in self._logs:
                start, end = self._newest(reader, where, deadline)
                reader.seek(where, start)
                if start < end:
                    self._ends[where] = end
        except BaseException:
            reader.close()
            self._ends.clear()
            raise
        return reader

    def _newest(
        self, reader: LogReader, where: TopicPartition, deadline: Deadline
    ) -> tuple[int, int]:
        """The offset from which the newest reports stand, and the next one to be written: what was
        reported before all sealers died is what is known."""
        first, end = bounds_in_time(reader, where, deadline)
        now_us = self._clock.now_us()

        def offset(age_s: float) -> int:
            return reader.offset_at(where, now_us - round(age_s * 1e6), deadline.left_s())

        if first < end:
            for age_s in _NEWEST_S:
                if offset(age_s) < end:
                    return offset(age_s + _READ_BACK_S), end
        return end, end

    def _poll(self, reader: LogReader, timeout_s: float) -> None:
        try:
            records = reader.poll(_RECORDS_MAX, timeout_s)
        except OffsetLost as lost:  # A reader that stood still for a day.
            _log.warning("%s; it is read anew from its end", lost)
            for where in self._logs:
                reader.seek(where, END)
            self._ends.clear()
            return
        for record in records:
            where = TopicPartition(record.topic, record.partition)
            try:
                event = decode(record.value)
            except UnreadableEvent as error:
                self._pass_over(where, record.offset, error)
                continue
            if isinstance(event, PartitionReport):
                self._early.setdefault(self._logs[where], deque()).append(event)
        for where in [one for one, end in self._ends.items() if reader.read_to(one) >= end]:
            del self._ends[where]

    def _take_early(self, applied: Callable[[PartitionAddress], float]) -> None:
        for log, events in list(self._early.items()):
            folded = applied(log)
            while events and events[0].seal_offset < folded:
                self.reported.apply(log, events.popleft())
            if not events:
                del self._early[log]

    def _pass_over(self, where: TopicPartition, offset: int, error: UnreadableEvent) -> None:
        if not self._unreadable:
            _log.warning("%s, offset %d: %s; it is passed over", where, offset, error)
        self._unreadable += 1
