"""Finds where a fold may start, so that start-up costs less than the history: at a claim, or where
a saved fold ends.

An ``Adopted`` names such a claim. It is valid only where the fence admits it: after its own claim,
with no other claim in between. It stays valid whatever is claimed later.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from itertools import chain

import xxhash

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Adopted, Claimed
from rollstream.schemas.wire_schemas import PREFIX_BYTES
from rollstream.streams.broker import Broker, LogReader, Offsets, Record, TopicPartition
from rollstream.streams.errors import DamagedRecord, OffsetLost, UnreadableLog
from rollstream.streams.owned.fence import Fence
from rollstream.streams.owned.fold import FoldPlace
from rollstream.streams.owned.reading import event_in, prefixes_of
from rollstream.streams.reading import (
    OVERLAP_RECORDS,
    all_bounds_in_time,
    read_between,
    read_windows,
    windows_back,
)

CLOCKS_APART_US = 600_000_000  # The clocks of two brokers differ by less.


def find_start(
    reader: LogReader,
    where: TopicPartition,
    hint: int | None,
    deadline: Deadline,
    *,
    since_us: int | None = None,
) -> int:
    """Returns the offset from which a fold is complete: that of a claim, or 0.

    Args:
        reader: reads ``where``; its position is changed.
        hint: offset of some claim, or of anything else, or None.
        deadline: for all of it.
        since_us: what another log got since then must have its events behind the start; None: only
            the newest events must.

    Raises:
        OffsetLost: the log no longer has its beginning, and no ``Adopted`` makes it dispensable.
        NewerEvent, CorruptLog: it cannot be read where it was searched.
        BrokerUnavailable: not read in time.
    """
    first, end = reader.bounds(where, deadline.left_s())
    if since_us is not None:
        before_us = since_us - CLOCKS_APART_US
        end = reader.offsets_at({where: end}, before_us, deadline.left_s())[where]
    found = _found_in(reader, {where: _Search(first, end, hint)}, deadline)[where]
    if isinstance(found, UnreadableLog):
        raise found
    if found is None and first > 0:
        raise OffsetLost(str(where), 0, first, end)
    return found or 0


def find_starts(
    broker: Broker, hints: Mapping[TopicPartition, int | None], deadline: Deadline
) -> Offsets:
    """Returns the same of several logs, which are searched together; 0 where nothing is found.

    Raises:
        BrokerUnavailable: not read in time.
    """
    with closing(broker.reader({})) as reader:
        # All bounds first: a broker holds the requests behind one for records that are to come.
        bounds = all_bounds_in_time(reader, hints, deadline)
        searches = {where: _Search(*bounds[where], hint) for where, hint in hints.items()}
        found = _found_in(reader, searches, deadline)
    return {where: one if isinstance(one, int) else 0 for where, one in found.items()}


def holds(reader: LogReader, where: TopicPartition, place: FoldPlace, deadline: Deadline) -> bool:
    """Whether a fold that was saved at this place is one of this log: it holds the very record
    before it. The log only grows, so it then holds all that was folded.

    Raises:
        BrokerUnavailable: not read in time.
    """
    last = place.next_offset - 1
    first, end = reader.bounds(where, deadline.left_s())
    if not first <= last < end:
        return False
    records = read_between(reader, where, last, place.next_offset, deadline)
    return [(record.offset, xxhash.xxh3_128_digest(record.value)) for record in records] == [
        (last, place.record)
    ]


class _Search:
    """The search of one log for its newest valid ``Adopted``, window by window.

    Attributes:
        window: that is read now.
        found: its ``fold_from``; None: it was not found yet.
    """

    def __init__(self, first: int, end: int, hint: int | None) -> None:
        hints = [hint] if hint is not None and first <= hint < end else []
        behind_hint = ((hint, min(end, hint + OVERLAP_RECORDS)) for hint in hints)
        self._windows = chain(behind_hint, windows_back(first, end))
        self._first = first
        self.window = 0, 0
        self.found: int | UnreadableLog | None = None

    def go_on(self) -> bool:
        """Begins the next window; False: there is none, or none is needed."""
        window = next(self._windows, None)
        if self.found is not None or window is None:
            return False
        self.window = window
        return True

    def begin(self) -> None:
        """The window is read from its beginning."""
        self._fence = Fence()

    def apply(self, record: Record) -> None:
        """The next record of the window."""
        if record.value[:PREFIX_BYTES] not in prefixes_of("claimed", "adopted"):
            return
        event = event_in(record)
        assert isinstance(event, Claimed | Adopted)
        admitted = self._fence.admits(record.offset, event)
        if admitted and isinstance(event, Adopted) and event.fold_from >= self._first:
            self.found = event.fold_from


def _found_in(
    reader: LogReader, searches: Mapping[TopicPartition, _Search], deadline: Deadline
) -> dict[TopicPartition, int | UnreadableLog | None]:
    """``fold_from`` of the newest valid ``Adopted`` of each log, or why it cannot be read; None
    without either."""
    left = {where: search for where, search in searches.items() if search.go_on()}
    while left:
        try:
            _read(reader, left, deadline)
        except DamagedRecord as error:
            where = TopicPartition(*error.where)
            left.pop(where).found = error
            reader.pause(where)  # Else it may say so again.
            continue  # The others read their windows again.
        left = {where: search for where, search in left.items() if search.go_on()}
    return {where: search.found for where, search in searches.items()}


def _read(
    reader: LogReader, searches: Mapping[TopicPartition, _Search], deadline: Deadline
) -> None:
    """Reads the windows."""
    windows = {where: search.window for where, search in searches.items()}
    for search in searches.values():
        search.begin()
    for record in read_windows(reader, windows, deadline):
        where = TopicPartition(record.topic, record.partition)
        try:
            searches[where].apply(record)
        except UnreadableLog as error:
            searches[where].found = error
            del windows[where]
