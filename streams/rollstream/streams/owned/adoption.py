"""Finds where a fold may start, so that start-up costs less than the history: at a claim, or where
a saved fold ends.

An ``Adopted`` names such a claim. It is valid only where the fence admits it: after its own claim,
with no other claim in between. It stays valid whatever is claimed later.
"""

from __future__ import annotations

from functools import cache
from itertools import chain

import xxhash

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Adopted, Claimed
from rollstream.schemas.wire_schemas import PREFIX_BYTES, shipped
from rollstream.streams.broker import LogReader, TopicPartition
from rollstream.streams.errors import OffsetLost
from rollstream.streams.owned.fence import Fence
from rollstream.streams.owned.fold import FoldPlace
from rollstream.streams.owned.reading import event_in
from rollstream.streams.reading import OVERLAP_RECORDS, read_between, windows_back

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
        BrokerUnavailable: not read in time.
    """
    first, end = reader.bounds(where, deadline.left_s())
    if since_us is not None:
        end = reader.offset_at(where, since_us - CLOCKS_APART_US, deadline.left_s())
    hints = [hint] if hint is not None and first <= hint < end else []
    behind_hint = ((hint, min(end, hint + OVERLAP_RECORDS)) for hint in hints)
    for begin, stop in chain(behind_hint, windows_back(first, end)):
        start = _newest_adopted(reader, where, begin, stop, deadline)
        if start is not None and start >= first:
            return start
    if first > 0:
        raise OffsetLost(str(where), 0, first, end)
    return 0


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


def _newest_adopted(
    reader: LogReader, where: TopicPartition, start: int, stop: int, deadline: Deadline
) -> int | None:
    """``fold_from`` of the newest valid ``Adopted`` in [start, stop), None without one."""
    fence = Fence()
    fold_from = None
    for record in read_between(reader, where, start, stop, deadline):
        if record.value[:PREFIX_BYTES] not in _prefixes():
            continue  # Most records are other events; they need not be decoded.
        event = event_in(record)
        assert isinstance(event, Claimed | Adopted)
        if fence.admits(record.offset, event) and isinstance(event, Adopted):
            fold_from = event.fold_from
    return fold_from


@cache
def _prefixes() -> frozenset[bytes]:
    names = ("claimed", "adopted")
    return frozenset(s.prefix for s in shipped().schemas if s.name in names)
