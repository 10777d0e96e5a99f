"""What an assembler decides, as values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from rollstream.schemas.codec import Segment
from rollstream.schemas.ids import GroupKey, SegmentId, segment_id
from rollstream.schemas.reasons import SealReason, SettleReason

NO_SEGMENT = -1  # The segment of a record that names a trajectory and is no segment of it.
# At most, beside names. A file's path has an environment's name and a policy version, escaped.
_FILE_EVENT_BYTES = 640
_GROUP_EVENT_BYTES = 384 + _FILE_EVENT_BYTES  # A group, and a file that has no other.
_RECORD_EVENT_BYTES = 80
_repeated_names = attrgetter("rollout_uid", "replica_id", "stop_reason")


class Settlement(NamedTuple):
    """Why an offset ends without a readable group. ``rollout_uid`` is empty where the record names
    none."""

    reason: SettleReason
    offset: int
    rollout_uid: str = ""
    segment_idx: int = 0


class DueGroup(NamedTuple):
    """A group to be sealed: its rows are all segments of its members, a member's together, in the
    order in which members became complete.

    Attributes:
        key: what the members share; with ``rollstream.schemas.ids.group_id`` it names the group.
        split: ``train`` where every member is; else that of one that is not.
        offsets: of the rows, in the source partition.
        first_ts: log time of the group's first record, microseconds.
    """

    key: GroupKey
    split: str
    reason: SealReason
    failed_members: int
    offsets: Sequence[int]
    segments: Sequence[Segment]
    first_ts: int


class Decision(NamedTuple):
    """What becomes of some offsets, together: a group with everything that ends with it, or
    settlements alone. Fixed once made; later records never change it.

    Attributes:
        settled: the offsets that end without a readable group.
        incomplete: (offset, segment) of those settled ones that are kept for people.
        records: offsets that it settles.
        size: payload bytes that it writes.
    """

    group: DueGroup | None
    settled: Sequence[Settlement]
    incomplete: Sequence[tuple[int, Segment]]
    records: int
    size: int


class Plan(NamedTuple):
    """The oldest decisions that fit into one flush; they stay in the queue until ``commit``.

    Attributes:
        number: counts plans, so that a stale one cannot be committed.
        watermark: the low watermark once the plan is committed.
        now_us: log time that decided.
    """

    number: int
    decisions: tuple[Decision, ...]
    watermark: int
    now_us: int
    records: int
    size: int


def offsets_of(decisions: Iterable[Decision]) -> Iterator[int]:
    """Every offset that the decisions settle."""
    for decision in decisions:
        if decision.group is not None:
            yield from decision.group.offsets
        for settlement in decision.settled:
            yield settlement.offset


def segments_of(decision: Decision) -> Iterator[SegmentId]:
    """The segments that a decision settles; a duplicate settles none."""
    segments = () if decision.group is None else decision.group.segments
    for segment in segments:
        yield segment_id(segment.header.rollout_uid, segment.header.segment_idx)
    for reason, _, uid, idx in decision.settled:
        if uid and reason is not SettleReason.DUPLICATE:
            yield segment_id(uid, idx)


def event_bytes(decision: Decision) -> int:
    """An upper bound of what the decision adds to a flush event. Names are counted in full, since
    producers choose how long they are."""
    total = _RECORD_EVENT_BYTES * decision.records
    if decision.settled:
        total += _utf8_bytes(settlement.rollout_uid for settlement in decision.settled)
    if decision.incomplete:
        versions = {segment.header.policy_version for _, segment in decision.incomplete}
        total += _FILE_EVENT_BYTES * len(versions)
    group = decision.group
    if group is not None:
        headers = [segment.header for segment in group.segments]
        lineages = {header.lineage for header in headers}  # One of them is repeated.
        of_group = (*lineages, group.key.example_id, group.key.group_uid, group.split)
        of_members = chain.from_iterable(map(_repeated_names, headers))
        total += _GROUP_EVENT_BYTES + _utf8_bytes(chain(of_group, of_members))
    return total


def _utf8_bytes(names: Iterable[str]) -> int:
    text = "".join(names)
    return len(text) if text.isascii() else len(text.encode())
