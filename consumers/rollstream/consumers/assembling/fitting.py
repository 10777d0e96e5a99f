"""Decisions that fit into the event of a flush, whatever was decided together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TypeVar

from rollstream.consumers.assembling.decisions import (
    EVENT_BYTES_MAX,
    FLUSH_FILES_MAX,
    Failed,
    FileKey,
    Row,
    SealDecision,
    Settlement,
    event_bytes,
    file_of_row,
    settlement_bytes,
    values_of,
)
from rollstream.consumers.assembling.pending import PendingGroup
from rollstream.schemas.reasons import SealReason, SettleReason

# However long the names are: an entry has at most four of 4,096 characters, of up to four bytes.
_ENTRIES_FIT = 96
_T = TypeVar("_T")


def that_fit(some: Iterable[_T], size_of: Callable[[_T], int], size_max: int) -> list[_T]:
    """The first of some, as many as fit into so many bytes, and always one."""
    found: list[_T] = []
    size = 0
    for one in some:
        size += size_of(one)
        if found and size > size_max:
            break
        found.append(one)
    return found


def fitting(decision: SealDecision) -> list[SealDecision]:
    """The decision as one or more that fit, in order; together they settle the same entries.

    A group is never split: one that fits into no event is settled as too large, its rows kept for
    people. Settlements that do not fit beside their group come after it; a sealer that is killed in
    between reads the rest again, as of a group that never fills. Rows that are kept for people are
    in at most ``FLUSH_FILES_MAX`` files of a decision.
    """
    group, settled, kept, size = (
        decision.group,
        decision.settled,
        decision.incomplete,
        decision.size,
    )
    is_small = decision.entries <= _ENTRIES_FIT or event_bytes(decision) <= EVENT_BYTES_MAX
    if is_small and _stop(settled, kept, 0, inf) == len(settled):
        return [decision]
    fit: list[SealDecision] = []
    start = 0
    if group is not None:
        alone = decision._replace(settled=(), entries=len(group.rows))
        room = EVENT_BYTES_MAX - event_bytes(alone)
        if room < 0:
            settled, kept = (
                [*settled, *settlements_of(group.rows, SettleReason.TOO_LARGE)],
                group.rows,
            )
        else:
            start = _stop(settled, (), 0, room)
            fit.append(alone._replace(settled=settled[:start], entries=alone.entries + start))
    rowless = len(settled) - len(kept)  # The last settlements are those of the rows that are kept.
    while start < len(settled):
        stop = _stop(settled, kept, start, EVENT_BYTES_MAX)
        rows = kept[max(0, start - rowless) : max(0, stop - rowless)]
        share = size * len(rows) // len(kept) if rows else 0
        fit.append(SealDecision(None, settled[start:stop], rows, stop - start, share))
        start = stop
    return fit


def parts_of(
    decision: SealDecision, group: PendingGroup | None, reason: SealReason | None
) -> list[SealDecision]:
    """The same of a decision about a group: the first part says whose it was and why members
    failed, the last one why it was not sealed, which was to be for that reason, or expired (None).
    """
    if group is None:
        return fitting(decision)
    uid, failures = group.key[0], group.failures or {}
    failed = tuple([Failed(why, uid, count) for why, count in failures.items()])
    parts = fitting(decision._replace(failed=failed))
    parts[0] = parts[0]._replace(failed=failed, producer_id=group.producer_id)
    if group.dispatched and parts[0].group is None:
        parts[-1] = parts[-1]._replace(unsealed=group.unsealed(reason))
    return parts


def _stop(settled: Sequence[Settlement], kept: Sequence[Row], start: int, room: float) -> int:
    """Up to where settlements from ``start`` on fit into so many bytes, and the rows of the last of
    them, which are kept, into the files of one flush."""
    rowless = len(settled) - len(kept)
    files: set[FileKey] = set()
    for index in range(start, len(settled)):
        has_row = index >= rowless
        if has_row:
            files.add(file_of_row(kept[index - rowless]))
        room -= settlement_bytes(settled[index], has_row)
        if room < 0 or len(files) > FLUSH_FILES_MAX:
            return index
    return len(settled)


def settlements_of(rows: Sequence[Row], reason: SettleReason) -> list[Settlement]:
    """One a row."""
    segments = zip(
        rows, values_of(rows, "rollout_uid"), values_of(rows, "segment_idx"), strict=True
    )
    return [
        Settlement(reason, offset, entry, uid, idx) for (_, _, offset, entry), uid, idx in segments
    ]
