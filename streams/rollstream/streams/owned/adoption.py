"""Where a fold may start: a claim that an ``Adopted`` names, so that start-up stays short.

An ``Adopted`` counts as proof only where the fence admits it: behind its claim, no other claim in
between. What it says was true at its claim, and stays true whatever has been claimed since.
"""

from __future__ import annotations

from functools import cache

from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec, wire_schemas
from rollstream.schemas.events import Adopted, Claimed
from rollstream.streams.broker import LogReader, TopicPartition
from rollstream.streams.errors import OffsetLost
from rollstream.streams.owned.fence import Fence
from rollstream.streams.reading import read_between

HINT_RECORDS_MAX = 64  # How far behind a hinted claim its `Adopted` is looked for; then the tail.
TAIL_WINDOW_RECORDS = 256  # The first window of the search from the end backwards.
TAIL_WINDOW_GROWTH = 4


def find_start(
    reader: LogReader, where: TopicPartition, hint: int | None, deadline: Deadline
) -> int:
    """The offset from which a fold is whole: a claim, or 0.

    Args:
        reader: reads ``where``; its position is changed.
        hint: offset of some claim, or of anything else, or None.
        deadline: for all of it.

    Raises:
        OffsetLost: the beginning of the log is gone, and no ``Adopted`` says that it may be.
        BrokerUnavailable: not read in time.
    """
    first, end = reader.bounds(where, max(deadline.left_s(), 0.001))
    if hint is not None and first <= hint < end:
        found = _newest_proof(reader, where, hint, min(end, hint + HINT_RECORDS_MAX), deadline)
        if found is not None and found >= first:
            return found
    stop, window = end, TAIL_WINDOW_RECORDS
    while stop > first:
        start = max(first, stop - window)
        # The windows overlap by as much as may lie between a claim and its `Adopted`.
        found = _newest_proof(reader, where, start, min(end, stop + HINT_RECORDS_MAX), deadline)
        if found is not None and found >= first:
            return found
        stop, window = start, window * TAIL_WINDOW_GROWTH
    if first > 0:
        raise OffsetLost(str(where), 0, first, end)
    return 0


def _newest_proof(
    reader: LogReader, where: TopicPartition, start: int, stop: int, deadline: Deadline
) -> int | None:
    """``fold_from`` of the newest proven claim in [start, stop)."""
    fence = Fence()
    found = None
    for record in read_between(reader, where, start, stop, deadline):
        if record.value[: wire_schemas.PREFIX_BYTES] not in _prefixes():
            continue  # Most records are events of the owners: not decoded only to be passed over.
        event = codec.decode(record.value)
        assert isinstance(event, Claimed | Adopted)
        if fence.admits(record.offset, event) and isinstance(event, Adopted):
            found = event.fold_from
    return found


@cache
def _prefixes() -> frozenset[bytes]:
    names = ("claimed", "adopted")
    return frozenset(s.prefix for s in wire_schemas.all_schemas() if s.name in names)
