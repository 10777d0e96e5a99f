"""Where a log goes on behind records that the broker does not deliver."""

from __future__ import annotations

from contextlib import closing

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.errors import BrokerUnavailable, DamagedRecord
from rollstream.streams.reading import POLL_SLICE_S, bounds_in_time

TRIES = 3  # On connections of their own.


def next_readable(broker: Broker, where: TopicPartition, start: int, deadline: Deadline) -> int:
    """Returns the first offset from ``start`` on that may be read: ``start`` itself where it is
    delivered after all, and the log's end where nothing is. Each attempt has a new client, so that
    what it says is what the broker has. How long a batch is nobody knows who cannot read it, so its
    end is searched for in steps that double, then by halves.

    Raises:
        BrokerUnavailable: not found out in time.
    """
    if any(not _is_damaged(broker, where, start, start, deadline) for _ in range(TRIES)):
        return start
    with closing(broker.reader({where: start})) as reader:
        end = bounds_in_time(reader, where, deadline)[1]
    damaged, step = start, 1
    while damaged + step < end and _is_damaged(broker, where, start, damaged + step, deadline):
        damaged, step = damaged + step, 2 * step
    readable = min(damaged + step, end)
    while damaged + 1 < readable:
        middle = (damaged + readable) // 2
        if _is_damaged(broker, where, start, middle, deadline):
            damaged = middle
        else:
            readable = middle
    return readable


def _is_damaged(
    broker: Broker, where: TopicPartition, start: int, offset: int, deadline: Deadline
) -> bool:
    """Whether the batch that has the offset is the damaged one that has ``start``."""
    with closing(broker.reader({where: offset})) as reader:
        while not deadline.passed():
            try:
                if reader.poll(1, deadline.slice_s(POLL_SLICE_S)):
                    return False
            except DamagedRecord as error:
                return error.offset <= start
            if reader.read_to(where) > offset:
                return False
    raise BrokerUnavailable(f"{where} was not read at {offset} within {deadline.timeout_s} s")
