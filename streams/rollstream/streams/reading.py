"""Where one log begins and ends, and stretches of one log or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Bounds, LogReader, Logs, Record, TopicPartition
from rollstream.streams.errors import BrokerUnavailable

POLL_RECORDS_MAX = 64  # What a poll returns beyond ``stop`` was read in vain.
POLL_SLICE_S = 0.5
NAMED_MAX = 8  # Logs, in one sentence.
WINDOW_RECORDS = 256  # The first window of a search from the end backwards.
WINDOW_GROWTH = 4
OVERLAP_RECORDS = 64  # Of a window with the next; an event counts behind a claim, soon after it.
ASK_AGAIN_S = 0.05  # After "not leader" and the like.
_ENDED = (0, 0)  # The window of a log that is read no more.
_QUIET_S = 15.0  # A broker that is slow answers sooner.


class HowFar(NamedTuple):
    """How far a log is read that is read up to ``end``."""

    where: TopicPartition
    position: int
    end: int


def how_far(logs: Sequence[HowFar]) -> str:
    """How much of these logs is read, in words; those that are not read to their ends are named, at
    most ``NAMED_MAX``."""
    done, total = sum(min(at, end) for _, at, end in logs), sum(end for *_, end in logs)
    left = [one for one in logs if one.position < one.end]
    named = [f"{where} up to {at:,} of {end:,}" for where, at, end in left[:NAMED_MAX]]
    more = [f"{len(left) - NAMED_MAX:,} more logs"] if len(left) > NAMED_MAX else []
    return f"{done:,} of {total:,} offsets ({', '.join([*named, *more]) or 'all that were known'})"


def bounds_in_time(reader: LogReader, where: TopicPartition, deadline: Deadline) -> tuple[int, int]:
    """The oldest offset that is kept, and the next one to be written; as ``all_bounds_in_time``."""
    return all_bounds_in_time(reader, [where], deadline)[where]


def all_bounds_in_time(reader: LogReader, logs: Logs, deadline: Deadline) -> Bounds:
    """The bounds of each log.

    While a broker that has just started, or whose topic is new, answers "not leader", it is asked
    again.

    Raises:
        BrokerUnavailable: it did not answer in time.
    """
    while True:
        try:
            return reader.all_bounds(logs, deadline.left_s())
        except BrokerUnavailable as error:
            if deadline.passed():
                raise
            deadline.log_waiting(partial(str, error))
            deadline.wait(ASK_AGAIN_S)


def windows_back(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields windows of a log, first offset and stop, from its end back to ``first``, each larger
    than the one before and ``OVERLAP_RECORDS`` into it: the record that makes the first ones of a
    window count may be in the next. Pure."""
    stop, window = end, WINDOW_RECORDS
    while stop > first:
        begin = max(first, stop - window)
        yield begin, min(end, stop + OVERLAP_RECORDS)
        stop, window = begin, window * WINDOW_GROWTH


def read_between(
    reader: LogReader, where: TopicPartition, start: int, stop: int, deadline: Deadline
) -> Iterator[Record]:
    """Yields the records of [start, stop) of one log, as ``read_windows`` does."""
    return read_windows(reader, {where: (start, stop)}, deadline)


def read_windows(reader: LogReader, windows: Bounds, deadline: Deadline) -> Iterator[Record]:
    """Yields the records of [start, stop) of each log, which must be below the log's end, whatever
    they hold. Logs take turns.

    A log ends at the first record at or above its stop, so it passes over offsets that hold no
    record. One that the caller takes out of ``windows`` ends there. A reader that hands over
    nothing for long begins anew where it is.

    Args:
        reader: its positions in these logs are changed; records of others are passed over.
        deadline: for all of it, the caller's work between two records included.

    Raises:
        BrokerUnavailable: not read in time. OffsetLost: a start is no longer in its log.
    """
    at = {where: start for where, (start, stop) in windows.items() if start < stop}
    several = len(at) > 1
    for where, start in at.items():
        reader.seek(where, start)
    quiet = Deadline(_QUIET_S, deadline.clock)
    while at:
        got_on = False
        for record in reader.poll(POLL_RECORDS_MAX, deadline.slice_s(POLL_SLICE_S)):
            where = TopicPartition(record.topic, record.partition)
            if where in at:
                got_on = True
                at[where] = record.offset + 1
                if record.offset < windows.get(where, _ENDED)[1]:
                    yield record
        if not got_on:
            at = {where: max(position, reader.read_to(where)) for where, position in at.items()}
        if got_on or quiet.passed():
            quiet = Deadline(_QUIET_S, deadline.clock)
            if not got_on:  # A client that was asked to fetch again may not have done so.
                for where, position in at.items():
                    reader.seek(where, position)
        for where in [one for one in at if at[one] >= windows.get(one, _ENDED)[1]]:
            del at[where]
            if several:  # Else its records would take the turns of the others.
                reader.pause(where)
        left = [HowFar(where, position, windows[where][1]) for where, position in at.items()]
        if left and not got_on and deadline.passed():
            raise BrokerUnavailable(f"{how_far(left)} were read within {deadline.timeout_s} s")
        deadline.log_waiting(partial(_say_how_far, left))


def _say_how_far(left: Sequence[HowFar]) -> str:
    return f"logs to be read: {how_far(left)}"
