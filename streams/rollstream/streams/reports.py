"""Follows the logs in which sealers report what holds now."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from math import inf

from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.codec import decode
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import PartitionReport
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import Broker, LogReader, Offsets, TopicPartition
from rollstream.streams.errors import BrokerError, BrokerUnavailable, OffsetLost, UnreadableLog
from rollstream.streams.folds.reported import ReportedNow
from rollstream.streams.reading import POLL_SLICE_S, all_bounds_in_time

REPEAT_S = 60.0  # How often a sealer reports all again of which it reports anything.
_READ_BACK_S = 1.5 * REPEAT_S  # From the newest on, so that a complete report is among them.
_NEWEST_S = (60.0, 240.0, 960.0, 3_840.0, 15_360.0, 86_400.0)  # How old the newest may be.
_RECORDS_MAX = 256  # At a time.
# Of a log; beyond it the oldest goes: all is reported again soon, and by then the seal log is read.
_EARLY_MAX = 256
LOOK_EVERY_S = 60.0  # For topics that are missing.
_LOOK_S = 1.0  # How long the broker may take to name them, and where they end.
_LOAD_S = 10.0
_NOT_READ = "how producers stand is not read: %s"
_log = logging.getLogger("rollstream.streams")


class Reports:
    """Follows these logs, from shortly before their ends, and folds them into ``reported``.

    A report counts once its seal log was folded up to the offset that the report names. Otherwise a
    group would count neither as open nor as ready. A log is left out if its topic is missing or
    cannot be read. That is logged once, and the log is tried again each minute. The broker is not
    asked before the first ``load``. Not shared between threads.

    Args:
        logs: the logs, each with its partition of the deployment.
    """

    def __init__(
        self, broker: Broker, logs: Mapping[TopicPartition, PartitionAddress], clock: Clock
    ) -> None:
        self.reported = ReportedNow()
        self._broker = broker
        self._logs = logs
        self._clock = clock
        self._reader: LogReader | None = None
        self._present: frozenset[str] = frozenset()  # Topics.
        self._look_s = inf  # When topics are looked for.
        self._ends: dict[TopicPartition, int] = {}  # Of logs that are not read to there yet.
        self._early: dict[PartitionAddress, deque[PartitionReport]] = {}  # That do not count yet.
        self._said: set[str] = set()

    def follow(self, applied: Callable[[PartitionAddress], float]) -> None:
        """Folds what has come since ``load``, without waiting for more.

        Args:
            applied: the offset below which a seal log was folded.
        """
        self._follow(applied, Deadline(0.0, self._clock))

    def load(self, applied: Callable[[PartitionAddress], float], deadline: Deadline) -> None:
        """Folds all that the logs hold, for 10 s at most; ``follow`` folds the rest. The arguments
        are those of ``follow``."""
        self._look_s = min(self._look_s, self._clock.monotonic_s())
        self._follow(applied, Deadline(min(deadline.left_s(), _LOAD_S), self._clock))

    def restart(self) -> None:
        """Forgets all, until the next ``load``."""
        self.close()
        self.reported, self._look_s = ReportedNow(), inf
        self._early.clear()
        self._ends.clear()

    def close(self) -> None:
        """Closes what it reads with."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _follow(self, applied: Callable[[PartitionAddress], float], deadline: Deadline) -> None:
        try:
            if self._logs and self._clock.monotonic_s() >= self._look_s:
                self._look(Deadline(max(deadline.left_s(), _LOOK_S), self._clock))
            while self._reader is not None:
                waits = bool(self._ends) and not deadline.passed()
                timeout_s = deadline.slice_s(POLL_SLICE_S) if waits else 0.0
                more = self._poll(self._reader, timeout_s) == _RECORDS_MAX
                if not (more or waits):
                    break
                self._take_early(applied)
        except BrokerUnavailable as error:  # It goes on where it was.
            self._say_once(_NOT_READ, error)
            if self._reader is None:
                self._look_s = self._clock.monotonic_s() + _LOOK_S
        except OffsetLost as lost:  # A reader that stood still for a day.
            _log.warning("%s; it is read anew", lost)
            self.restart()
            self._look_s = self._clock.monotonic_s()
        except (BrokerError, UnreadableLog) as error:
            self._say_once(_NOT_READ, error)
            self.restart()
            self._look_s = self._clock.monotonic_s() + LOOK_EVERY_S
        self._take_early(applied)
        if self._reader is not None and not self._ends:
            logs = self._logs.items()
            here = {log.environment for where, log in logs if where.topic in self._present}
            self.reported.reads = frozenset(here)

    def _look(self, deadline: Deadline) -> None:
        """Begins to read the logs whose topics are there, unless these are read already."""
        self._look_s = self._clock.monotonic_s() + LOOK_EVERY_S
        topics = {where.topic for where in self._logs}
        present = frozenset(self._broker.admin().describe(topics, deadline.left_s()))
        if present and (present != self._present or self._reader is None):
            self.close()
            self._start(present, deadline)
        self._present = present
        if present == topics:
            self._look_s = inf

    def _start(self, present: Collection[str], deadline: Deadline) -> None:
        logs = [where for where in self._logs if where.topic in present]
        with closing(self._broker.reader({})) as asked:
            bounds = all_bounds_in_time(asked, logs, deadline)
            ends = {where: end for where, (_, end) in bounds.items()}
            starts = self._newest(asked, ends, deadline)
        self._ends = {where: end for where, end in ends.items() if starts[where] < end}
        self._reader = self._broker.reader(starts)

    def _say_once(self, message: str, *details: object) -> None:
        if message not in self._said:
            _log.warning(message, *details)
        self._said.add(message)

    def _newest(self, reader: LogReader, ends: Offsets, deadline: Deadline) -> Offsets:
        """Returns the offset of each log from which its newest reports stand, however old they
        are: sealers may have died since."""
        now_us = self._clock.now_us()

        def offsets(logs: Offsets, age_s: float) -> Offsets:
            return reader.offsets_at(logs, now_us - round(age_s * 1e6), deadline.left_s())

        starts = {**ends}
        for age_s in _NEWEST_S:
            left = {where: end for where, end in ends.items() if starts[where] == end > 0}
            found = offsets(left, age_s)
            newest = {where: end for where, end in left.items() if found[where] < end}
            starts |= offsets(newest, age_s + _READ_BACK_S)
        return starts

    def _poll(self, reader: LogReader, timeout_s: float) -> int:
        """Returns how many records came."""
        records = reader.poll(_RECORDS_MAX, timeout_s)
        for record in records:
            where = TopicPartition(record.topic, record.partition)
            try:
                event = decode(record.value)
            except UnreadableEvent as error:
                passed_over = "%s, offset %d: %s; it is passed over"
                self._say_once(passed_over, where, record.offset, error)
                continue
            if isinstance(event, PartitionReport):
                early = self._early.setdefault(self._logs[where], deque(maxlen=_EARLY_MAX))
                early.append(event)
        for where in [one for one, end in self._ends.items() if reader.read_to(one) >= end]:
            del self._ends[where]
        return len(records)

    def _take_early(self, applied: Callable[[PartitionAddress], float]) -> None:
        for log, events in list(self._early.items()):
            folded = applied(log)
            while events and events[0].seal_offset < folded:
                self.reported.apply(log, events.popleft())
            if not events:
                del self._early[log]
