"""Compacted logs, which are read from their beginning: they are short."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import EARLIEST, Broker, LogReader, Logs, Record, TopicPartition
from rollstream.streams.errors import OffsetLost
from rollstream.streams.reading import all_bounds_in_time, read_windows

_READ_RECORDS_MAX = 256  # At a time.
_ANSWER_S = 0.5  # How long the broker is asked where the log ends; then again at the next poll.
_IDLE_S = 1.0  # What comes is read at once; only an idle broker is spared: thousands may follow.
_log = logging.getLogger("rollstream.streams")


def newest_records(
    broker: Broker, logs: Logs, deadline: Deadline
) -> dict[tuple[TopicPartition, bytes | None], Record]:
    """Returns the newest record of each key that these logs hold now; a tombstone's value is empty.

    Raises:
        BrokerUnavailable, NotAuthorised, UnknownTopic: the broker's answer, or none in time.
        OffsetLost: a log was cut while it was read.
    """
    with closing(broker.reader(dict.fromkeys(logs, EARLIEST))) as reader:
        bounds = all_bounds_in_time(reader, logs, deadline)
        return {
            (TopicPartition(record.topic, record.partition), record.key): record
            for record in read_windows(reader, bounds, deadline)
        }


class CompactedLog:
    """Follows a log. A log that lost records, or was made anew, is read from its beginning.

    Nothing is read, nor the broker asked, before the first ``poll``. One thread polls.

    Attributes:
        where: which log.
    """

    def __init__(self, broker: Broker, where: TopicPartition) -> None:
        self._broker = broker
        self.where = where
        self._reader: LogReader | None = None
        self._end = -1  # As it stood at the first poll; -1: not known yet.
        self._read_to = 0

    @property
    def loaded(self) -> bool:
        """Whether all was read that the log held at the first poll."""
        return 0 <= self._end <= self._read_to

    def poll(self) -> Sequence[Record]:
        """Returns the records that have come, without waiting for more.

        Raises:
            BrokerUnavailable, NotAuthorised, UnknownTopic: the broker's answer.
        """
        if self._reader is None:
            self._reader = self._broker.reader({self.where: EARLIEST}, idle_s=_IDLE_S)
        if self._end < 0:
            self._end = self._reader.bounds(self.where, _ANSWER_S)[1]
        try:
            records = self._reader.poll(_READ_RECORDS_MAX, 0.0)
        except OffsetLost as lost:
            _log.warning("%s; it is read from its beginning", lost)
            self._reader.seek(self.where, EARLIEST)
            return ()
        # A log that was compacted, or cut, has offsets that hold no record.
        behind = records[-1].offset + 1 if records else self._reader.read_to(self.where)
        self._read_to = max(self._read_to, behind)
        return records

    def rewind(self) -> None:
        """Releases what it reads with. The next ``poll`` reads from the beginning."""
        self.close()
        self._reader, self._end, self._read_to = None, -1, 0

    def close(self) -> None:
        """Closes what it reads with."""
        if self._reader is not None:
            self._reader.close()
