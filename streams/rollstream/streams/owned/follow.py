"""Reads owned logs without owning them: yields only events of the claim in effect, in order."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Claimed, Event
from rollstream.streams.broker import END, Broker, Logs, Offsets, Record, TopicPartition
from rollstream.streams.errors import (
    BrokerUnavailable,
    CorruptLog,
    DamagedRecord,
    LogLost,
    OffsetLost,
    UnreadableLog,
    lost_message,
)
from rollstream.streams.owned.fence import Fence
from rollstream.streams.owned.reading import event_in, score_in
from rollstream.streams.reading import HowFar, all_bounds_in_time, how_far

READ_RECORDS_MAX = 256  # A flush event may have megabytes.
READ_SLICE_S = 0.2
_log = logging.getLogger(__name__)


class ConfirmedEvent(NamedTuple):
    """An event that counts, with its log, offset and log time."""

    where: TopicPartition
    offset: int
    timestamp_us: int
    event: Event


class PutAside(NamedTuple):
    """A log that is not read on.

    Attributes:
        offset: all below it was read.
        error: why, with topic, partition and remedy.
    """

    offset: int
    error: UnreadableLog


class FoldedLogs(NamedTuple):
    """What ``fold_logs`` could not fold.

    Attributes:
        aside: the logs that cannot be read on.
        foreign: of each log, how many records no owner wrote.
    """

    aside: Mapping[TopicPartition, PutAside]
    foreign: Mapping[TopicPartition, int]


def fold_logs(
    broker: Broker,
    starts: Offsets,
    fold: Callable[[ConfirmedEvent], object],
    deadline: Deadline,
) -> FoldedLogs:
    """Hands each event that counts to ``fold``, until every log was read to its end. A log is put
    aside if ``fold`` raises ``UnreadableLog``; nothing behind that event is handed on.

    Args:
        starts: as ``Follower`` takes them.
        deadline: for all of it.

    Raises:
        BrokerUnavailable: not read in time.
    """
    aside: dict[TopicPartition, PutAside] = {}
    with closing(Follower(broker, starts, aside=aside)) as follower:
        for one in follower.read_to_end(deadline):
            if one.where in aside and one.offset >= aside[one.where].offset:
                continue
            try:
                fold(one)
            except UnreadableLog as error:
                follower.put_aside(one.where, one.offset, error)
    return FoldedLogs(aside, follower.foreign)


class Follower:
    """Reads owned partitions and returns only the events that the fence admits.

    Events of one partition come in the order of offsets, those of several in the order of arrival.
    A start must be 0 (or EARLIEST) or the offset of a claim. A record that no owner wrote is passed
    over.

    Args:
        scores: the logs of scores, which nobody owns. Each score counts. A record that is no score
            is passed over, with a log message; a newer one than this version knows is not, since it
            may be one. These logs start anywhere.
        aside: gets the logs that cannot be read on; all others are read. A log that is in it
            already is not read. None: a log that cannot be read on is an error of every call.

    Attributes:
        paused: the logs that are not read.
        foreign: of each log, how many records no owner wrote.
    """

    def __init__(
        self,
        broker: Broker,
        starts: Offsets,
        scores: Logs = (),
        *,
        aside: dict[TopicPartition, PutAside] | None = None,
    ) -> None:
        self._scores = frozenset(scores)
        self._aside = aside
        self._reader = broker.reader(starts)
        self._positions = dict(starts)
        self._at_claim = {
            where for where, start in starts.items() if start > 0 and where not in self._scores
        }
        self._fences = {where: Fence() for where in starts}
        self._records: deque[Record] = deque()
        self._tried: set[TopicPartition] = set()  # Put aside, and read again all the same.
        self.paused: set[TopicPartition] = set()
        self.foreign: Counter[TopicPartition] = Counter()
        self._ends: dict[TopicPartition, int] = {}  # Up to which `read_to_end` reads.
        self._lost = ""  # Why nothing is read any more.
        for where in self._positions.keys() & (aside or {}).keys():
            self._reader.pause(where)

    def poll(self, records_max: int, timeout_s: float) -> list[ConfirmedEvent]:
        """Returns the next events that count; passes over those that do not.

        Raises:
            NewerEvent: a newer version of Rollstream wrote a record. CorruptLog: a record holds no
                event, or a start is not the offset of a claim. LogLost: a log ends before what was
                read of it. Each is raised again by each call, and none where logs are put aside.
            OffsetLost: a log no longer has its beginning.
        """
        if self._lost:
            raise LogLost(self._lost)
        if not self._records:
            try:
                self._records.extend(self._reader.poll(records_max, timeout_s))
            except OffsetLost as error:
                self._lose(error)
            except DamagedRecord as error:
                self._put_aside(TopicPartition(*error.where), error)
        confirmed: list[ConfirmedEvent] = []
        while self._records:
            record = self._records[0]
            where = _where(record)
            try:
                event = self._decode(where, record)
            except UnreadableLog as error:
                if self._aside is None and confirmed:
                    return confirmed  # First the events before the defect; the next call raises.
                self._put_aside(where, error)
                continue
            if where in self._tried:
                self._end_trial(where, record.offset)
            fence = self._fences[where]
            if event and (where in self._scores or fence.admits(record.offset, event)):
                confirmed.append(ConfirmedEvent(where, record.offset, record.timestamp_us, event))
            self._positions[where] = record.offset + 1
            self._at_claim.discard(where)
            self._records.popleft()
        return confirmed

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Returns the next offset of each partition that ``poll`` will look at."""
        return dict(self._positions)

    def pause(self, where: TopicPartition) -> None:
        """Stops returning events of this log until ``go_on``; ``read_to_end`` leaves it where it
        is. Idempotent."""
        if where not in self.paused:
            self.paused.add(where)
            self._stop(where)

    def go_on(self, where: TopicPartition) -> None:
        """Reads a paused log again, from where it was paused. Idempotent."""
        if where in self.paused:
            self.paused.discard(where)
            if not self.is_aside(where):
                self._reader.seek(where, self._positions[where])

    def is_aside(self, where: TopicPartition) -> bool:
        """Returns whether the log is put aside."""
        return self._aside is not None and where in self._aside

    def try_again(self, logs: Logs) -> None:
        """Reads these logs again that are put aside, from where each was. A log stays put aside
        until the record can be read that could not be read before."""
        for where in self._positions.keys() & logs:
            if self.is_aside(where) and where not in self.paused:
                self._tried.add(where)
                self._reader.seek(where, self._positions[where])

    def has_read(self, where: TopicPartition, timestamp_us: int, timeout_s: float) -> bool:
        """Asks the broker whether everything in this log that is older, by its clock, was returned.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        found = self._reader.offsets_at({where: END}, timestamp_us, timeout_s)[where]
        offset = self.end_of(where, timeout_s) if found == END else found
        return offset <= self._positions[where]

    def end_of(self, where: TopicPartition, timeout_s: float) -> int:
        """Asks the broker for the next offset of this log that will be written.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        return self._reader.bounds(where, timeout_s)[1]

    def read_to_end(
        self,
        deadline: Deadline,
        *,
        ends_within_s: float = math.inf,
        records_max: int = READ_RECORDS_MAX,
    ) -> Iterator[ConfirmedEvent]:
        """Yields the events that count until every log was read to its end, as the ends stand when
        the iteration begins; newer events may be among them. At most ``records_max`` records are
        in memory at a time. ``poll`` continues where it ended.

        While a broker that has just started, or whose topic is new, answers "not leader", it is
        asked again.

        Args:
            deadline: for all of it, the caller's work between two events included.
            ends_within_s: for the ends alone, so that a long deadline does not hide for as long
                that no broker answers.

        Raises:
            BrokerUnavailable: not read in time. CorruptLog, LogLost: as ``poll``.
        """
        if self._lost:
            raise LogLost(self._lost)
        ends = self._ends = self._find_ends(
            Deadline(deadline.slice_s(ends_within_s), deadline.clock)
        )
        for where, end in ends.items():
            while self._positions[where] < end and where not in self.paused:
                if self.is_aside(where):
                    break
                if deadline.passed():
                    raise BrokerUnavailable(
                        f"{where} was read up to {self._positions[where]}, not to its end at "
                        f"{end}, within {deadline.timeout_s} s; in all "
                        f"{how_far(self.how_far())} were read. Allow more time"
                    )
                deadline.log_waiting(self._say_how_far)
                yield from self.poll(records_max, deadline.slice_s(READ_SLICE_S))

    def close(self) -> None:
        """Idempotent."""
        self._reader.close()

    def put_aside(self, where: TopicPartition, offset: int, error: UnreadableLog) -> None:
        """Reads the log no more: the event at ``offset``, which was returned, cannot be folded."""
        assert self._aside is not None, "logs are put aside"
        if not self.is_aside(where):
            self._positions[where] = offset
            self._put_aside(where, error)

    def _put_aside(self, where: TopicPartition, error: UnreadableLog) -> None:
        """Reads this log no more; raises the error where logs are not put aside."""
        if self._aside is None:
            raise error
        known = self._aside.get(where)
        if known is None or str(known.error) != str(error):
            _log.error("%s is read no more, and all other logs are: %s", where, error)
        self._aside[where] = PutAside(self._positions[where], error)
        self._tried.discard(where)
        self._stop(where)

    def _stop(self, where: TopicPartition) -> None:
        """Reads no more of this log, and drops what was read of it and not returned."""
        self._reader.pause(where)
        self._records = deque(one for one in self._records if _where(one) != where)

    def _end_trial(self, where: TopicPartition, offset: int) -> None:
        """A record of a log that was tried again was read: perhaps the one that could not be."""
        assert self._aside is not None, "logs are put aside"
        if offset >= self._aside[where].offset:
            _log.warning("%s is read again, from offset %d on", where, offset)
            del self._aside[where]
            self._tried.discard(where)

    def how_far(self) -> list[HowFar]:
        """Returns how far ``read_to_end`` read each log. Any thread may ask."""
        return [HowFar(where, self._positions[where], end) for where, end in self._ends.items()]

    def _say_how_far(self) -> str:
        return f"logs to be read to their ends: {how_far(self.how_far())}"

    def _find_ends(self, deadline: Deadline) -> dict[TopicPartition, int]:
        """Returns the next offset to be written of each log that has records to be read."""
        ends: dict[TopicPartition, int] = {}
        asked = [where for where in self._positions if not self.is_aside(where)]
        for where, (first, end) in all_bounds_in_time(self._reader, asked, deadline).items():
            if end < self._positions[where]:
                self._log_lost(where, self._positions[where], end)
                continue
            # A log that holds nothing has no record that would move the position.
            ends[where] = end if end > first else self._positions[where]
        return ends

    def _lose(self, error: OffsetLost) -> None:
        """A log no longer holds what is to be read next."""
        where = next(one for one in self._positions if str(one) == error.where)
        if error.wanted > error.end:
            self._log_lost(where, error.wanted, error.end)
        elif self._aside is None:
            raise error
        else:
            self._put_aside(where, LogLost(f"{error}: restore the log (docs/operating/kafka.md)"))

    def _log_lost(self, where: TopicPartition, read: int, end: int) -> None:
        told = lost_message(str(where), read, f"the log ends at {end}")
        if self._aside is None:
            self._lost = told  # Each call raises it from now on.
        self._put_aside(where, LogLost(told))

    def _decode(self, where: TopicPartition, record: Record) -> Event | None:
        if where in self._scores:
            return score_in(record)
        event = event_in(record, self._fences[where].owner)
        if event is None:
            if not self.foreign[where]:
                _log.warning(
                    "%s, offset %d: no owner wrote this record, and it is passed over; take the "
                    "right to write to this topic from whoever did",
                    *(where, record.offset),
                )
            self.foreign[where] += 1
        if where in self._at_claim and not isinstance(event, Claimed):
            raise CorruptLog(
                f"{where}: {type(event).__name__} at {record.offset}; start at a claim or at 0"
            )
        return event


def _where(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
