"""What an assembler decides, as values, and the queue of it until it is committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from rollstream.schemas.codec import Segment
from rollstream.schemas.ids import GroupKey, SegmentId, segment_id
from rollstream.schemas.reasons import SealReason, SettleReason

# Bytes of one flush event, well below RECORD_BYTES_MAX of a topic.
EVENT_BYTES_MAX = 8 * 1024 * 1024
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


class DecisionQueue:
    """Decisions in the order in which they were made, and the low watermark of those committed.

    Attributes:
        watermark: every offset below it is settled and committed.
        records: offsets that are decided and not committed.
        size: payload bytes that are decided and not committed.
    """

    def __init__(self, watermark: int) -> None:
        self.watermark = watermark
        self.records = 0
        self.size = 0
        self._queue: deque[Decision] = deque()
        self._plans = 0
        self._settled: set[int] = set()  # Offsets above the watermark.

    def skip(self, offset: int) -> None:
        """The offset was settled before this queue began."""
        self._settle((offset,))

    def append(self, decision: Decision) -> None:
        """Adds the newest decision."""
        self._queue.append(decision)
        self.records += decision.records
        self.size += decision.size

    def plan(self, records_max: int, size_max: int, now_us: int) -> Plan | None:
        """The oldest decisions within these bounds (always one at least); None without any. The
        same come again until they are committed. ``now_us`` is log time."""
        decisions: list[Decision] = []
        records = size = event_size = 0
        for decision in self._queue:
            records += decision.records
            size += decision.size
            event_size += event_bytes(decision)
            over = records > records_max or size > size_max or event_size > EVENT_BYTES_MAX
            if decisions and over:
                records -= decision.records
                size -= decision.size
                break
            decisions.append(decision)
        if not decisions:
            return None
        planned, watermark = set(offsets_of(decisions)), self.watermark
        while watermark in planned or watermark in self._settled:
            watermark += 1
        return Plan(self._plans, tuple(decisions), watermark, now_us, records, size)

    def commit(self, plan: Plan) -> None:
        """Removes what a confirmed plan settled, and moves the watermark."""
        assert plan.number == self._plans, "a plan is committed once, the newest only"
        self._plans += 1
        for decision in plan.decisions:
            first = self._queue.popleft()
            assert first is decision, "decisions are committed in order"
        self.records -= plan.records
        self.size -= plan.size
        self._settle(offsets_of(plan.decisions))
        assert self.watermark == plan.watermark, (self.watermark, plan.watermark)

    def _settle(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            assert offset >= self.watermark, (offset, self.watermark)
            assert offset not in self._settled, f"offset {offset} is settled twice"
            self._settled.add(offset)
        while self.watermark in self._settled:
            self._settled.remove(self.watermark)
            self.watermark += 1
