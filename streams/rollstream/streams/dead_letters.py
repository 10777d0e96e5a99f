"""The log of dead letters: what sealers could not read, and marks of what was published again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import DeadLetter, Retried
from rollstream.streams.broker import EARLIEST, Broker, LogReader, TopicPartition
from rollstream.streams.errors import CorruptLog, NewerEvent
from rollstream.streams.owned.reading import event_in
from rollstream.streams.reading import bounds_in_time, read_between
from rollstream.streams.topics.layout import Layout

_log = logging.getLogger("rollstream.deadletters")


class Source(NamedTuple):
    """Where in an ingest log an entry stood."""

    topic: str
    partition: int
    offset: int
    entry: int


class StoredLetter(NamedTuple):
    """A letter in its log.

    Attributes:
        number: its offset there.
        timestamp_us: log time at which it was written.
        retried: whether what it holds was published again.
    """

    number: int
    timestamp_us: int
    letter: DeadLetter
    retried: bool

    @property
    def source(self) -> Source:
        """Of which entry it is; a sealer that began anew may have written a second letter of it."""
        return source_of(self.letter)


class LetterRecord(NamedTuple):
    """A record of the log: a letter, a mark, or why this version cannot read which."""

    offset: int
    timestamp_us: int
    event: DeadLetter | Retried | NewerEvent


@dataclass(slots=True)
class LetterLog:
    """The log up to its end, as that stood when it was opened.

    Attributes:
        first: the oldest offset that is kept.
        end: the next one that was to be written.
        warned: whether the log says that records are passed over.
    """

    reader: LogReader
    where: TopicPartition
    first: int
    end: int
    deadline: Deadline
    warned: bool = False

    def since(self, timestamp_us: int) -> int:
        """The offset of the first record that is as new, by the broker's clock."""
        ends = {self.where: self.end}
        return self.reader.offsets_at(ends, timestamp_us, self.deadline.left_s())[self.where]

    def records(self, start: int) -> Iterator[LetterRecord]:
        """Yields letters and marks from an offset on. Records that nobody of ours wrote are passed
        over, with one log message.

        Raises:
            BrokerUnavailable: not read in time.
        """
        for record in read_between(self.reader, self.where, start, self.end, self.deadline):
            event: object
            try:
                event = event_in(record)
            except NewerEvent as error:
                event = error
            except CorruptLog:  # No other letter follows from what it holds, as in an owned log.
                event = None
            if isinstance(event, DeadLetter | Retried | NewerEvent):
                yield LetterRecord(record.offset, record.timestamp_us, event)
                continue
            if not self.warned:
                no_letter = "%s: the record at offset %d is no letter; such are passed over"
                _log.warning(no_letter, self.where, record.offset)
            self.warned = True


@contextmanager
def open_letters(broker: Broker, layout: Layout, deadline: Deadline) -> Iterator[LetterLog]:
    """Opens the log for reading.

    Raises:
        BrokerUnavailable: no answer in time. UnknownTopic: there is no such log.
    """
    where = TopicPartition(layout.dead_letters(), 0)
    with closing(broker.reader({where: EARLIEST})) as reader:
        yield LetterLog(reader, where, *bounds_in_time(reader, where, deadline), deadline)


def source_of(event: DeadLetter | Retried) -> Source:
    """Where the entry stood."""
    return Source(event.topic, event.partition, event.offset, event.entry)


def read_letters(broker: Broker, layout: Layout, deadline: Deadline) -> Iterator[StoredLetter]:
    """Yields every letter that is kept, in the order in which they were written, a few in memory
    at a time.

    Args:
        deadline: for each answer, however many letters there are: every record restarts it.

    Raises:
        BrokerUnavailable: not read in time. UnknownTopic: there is no such log. NewerEvent:
            a newer version wrote to it.
    """
    with open_letters(broker, layout, deadline) as log:
        retried = set[Source]()
        for _, _, event in log.records(log.first):
            if isinstance(event, NewerEvent):
                raise event
            if isinstance(event, Retried):
                retried.add(source_of(event))
            deadline.restart()
        for offset, timestamp_us, event in log.records(log.first):
            if isinstance(event, DeadLetter):
                yield StoredLetter(offset, timestamp_us, event, source_of(event) in retried)
            deadline.restart()
