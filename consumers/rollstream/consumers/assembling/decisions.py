"""What an assembler decides, as values, and the queue of it until it is committed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.events import NOT_INGESTED, NewestPolicy
from rollstream.schemas.ids import MIXED_POLICY, GroupKey, SegmentId, prompt_id, segment_id
from rollstream.schemas.ingest.record import IngestRecord
from rollstream.schemas.reasons import SealReason, SettleReason

# Bytes of one flush event, well below RECORD_BYTES_MAX of a topic.
EVENT_BYTES_MAX = 8 * 1024 * 1024
# Files of one flush. A file holds one policy version. Without a bound, entries of many versions
# would have any number of files written and synced before their event.
FLUSH_FILES_MAX = 64
FAILED_REASON_CHARS = 200  # Why members failed, as the seal log keeps it for ever.
NO_SEGMENT = -1  # The segment of an entry that names a trajectory and is no segment of it.
# At most, beside names. A file's path has an environment's name and a policy version, escaped.
_FILE_EVENT_BYTES = 640
_GROUP_EVENT_BYTES = 384 + _FILE_EVENT_BYTES  # A group, and a file that has no other.
_FAILED_EVENT_BYTES = 16  # Beside the reason, and the group that has it.
_ENTRY_EVENT_BYTES = 96  # One of a record that has no other, so that its offset is touched too.


class UnreadRange(NamedTuple):
    """Offsets [first, stop) that nobody read, or whose only entries say that producers live,
    settled as a whole; each counts as one entry."""

    reason: SettleReason
    first: int
    stop: int


Row = tuple[IngestRecord, int, int, int]
"""A segment: a record, the segment's index in it, and its offset and entry in the log. (The record
may be what was copied out of that at the offset.)"""
RowNames = tuple[str, str, str, str]
"""``policy_version``, ``lineage``, ``replica_id`` and ``stop_reason`` of a segment."""


class RowsKind(NamedTuple):
    """What all rows of some files have in common.

    Attributes:
        signatures: the types of named arrays.
        compression: of the files; empty: as the environment has it.
    """

    signatures: frozenset[tuple[str, ArraySignature]]
    compression: str = ""


FileKey = tuple[RowsKind, str]
"""What all rows of a file have in common, with the policy version."""


class Settlement(NamedTuple):
    """Why an entry ends without a readable group. ``rollout_uid`` is empty where it names none."""

    reason: SettleReason
    offset: int
    entry: int
    rollout_uid: str = ""
    segment_idx: int = 0


class Unsealed(NamedTuple):
    """A dispatched group that ends and is not sealed."""

    reason: SettleReason
    example_id: str


class Failed(NamedTuple):
    """Members of a group that will never come, for a reason that their producer gave."""

    reason: str
    group_uid: str
    members: int


class DueGroup(NamedTuple):
    """A group to be sealed: its rows are all segments of its members, a member's together, in the
    order in which members became complete.

    Attributes:
        key: what the members share; with ``rollstream.schemas.ids.group_id`` it names the group.
        split: ``train`` where every member is; else that of one that is not.
        rows: one or more.
        names: of the rows, each combination once.
        signatures: dtype and trailing shape of each named array that any member has.
        first_ts: log time of the group's first record, microseconds.
        request: offset of the request that it was imported by; -1: it is from the ingest log.
        compression: as ``RowsKind`` has it.
    """

    key: GroupKey
    split: str
    reason: SealReason
    failed_members: int
    rows: Sequence[Row]
    names: Collection[RowNames]
    signatures: Mapping[str, ArraySignature]
    first_ts: int
    request: int = -1
    compression: str = ""


class SealDecision(NamedTuple):
    """What becomes of some entries, together: a group with everything that ends with it, or
    settlements alone. Fixed once made; later records never change it.

    Attributes:
        settled: the entries that end without a readable group.
        incomplete: those of them that are kept for people.
        entries: how many it settles; a range counts as one.
        size: bytes that it writes, as its entries have them in their records.
        unread: the only one of a decision about offsets that are settled as a range.
        unsealed: the dispatched group that ends with it and is not sealed, if any.
        producer_id: the producer of which a group that counts as open ends with it; empty: none.
        failed: members of the group that ends with it.
    """

    group: DueGroup | None
    settled: Sequence[Settlement]
    incomplete: Sequence[Row]
    entries: int
    size: int
    unread: UnreadRange | None = None
    unsealed: Unsealed | None = None
    producer_id: str = ""
    failed: tuple[Failed, ...] = ()


class Plan(NamedTuple):
    """The oldest decisions that fit into one flush; they stay in the queue until ``commit``.

    Attributes:
        watermark: the low watermark once the plan is committed.
        touched: how many entries each offset has of which the plan settles any; offsets rise.
        settled: how many of these it settles; and by its first offset, 1 for each range.
        now_us: log time that decided.
        entries: how many it settles; of these ``alive`` say only that a producer lives.
        newest: the policy that groups were compared with; None: none.
    """

    decisions: tuple[SealDecision, ...]
    watermark: int
    touched: Mapping[int, int]
    settled: Mapping[int, int]
    now_us: int
    entries: int
    alive: int = 0
    newest: NewestPolicy | None = None


def values_of(rows: Iterable[Row], name: str) -> list[Any]:
    """One value a segment, of a text or a number."""
    return [record.values(name)[index] for record, index, _, _ in rows]


def segments_of(decision: SealDecision) -> Iterator[SegmentId]:
    """The segments that a decision settles, and the group that it seals; no duplicates."""
    rows = _rows(decision)
    if any(record.header["segment_idx"] for record, _, _, _ in rows):
        yield from map(segment_id, values_of(rows, "rollout_uid"), values_of(rows, "segment_idx"))
    else:
        yield from values_of(rows, "rollout_uid")
    for reason, _, _, uid, idx in decision.settled:
        if uid and reason is not SettleReason.DUPLICATE:
            yield segment_id(uid, idx)
    group = decision.group
    if group is not None and group.key.group_uid:
        yield prompt_id(group.key.group_uid, group.reason)


def file_of_group(group: DueGroup) -> FileKey:
    """Returns what names the file of a group."""
    versions = {version for version, *_ in group.names}
    version = versions.pop() if len(versions) == 1 else MIXED_POLICY
    return RowsKind(frozenset(group.signatures.items()), group.compression), version


def file_of_row(row: Row) -> FileKey:
    """Returns what names the file of a row that is kept without a group."""
    record, index, _, _ = row
    kind = RowsKind(frozenset(record.signatures(index).items()))
    return kind, record.values("policy_version")[index]


def files_of(decision: SealDecision) -> set[tuple[bool, FileKey]]:
    """Returns the files that the decision needs, each with whether it holds groups."""
    files = {(False, file_of_row(row)) for row in decision.incomplete}
    if decision.group is not None:
        files.add((True, file_of_group(decision.group)))
    return files


def event_bytes(decision: SealDecision) -> int:
    """An upper bound of what the decision adds to a flush event. Names are counted in full, since
    producers choose how long they are."""
    total = _ENTRY_EVENT_BYTES * decision.entries
    names = [settlement.rollout_uid for settlement in decision.settled]
    if decision.incomplete:
        total += _FILE_EVENT_BYTES * len(names)
    group = decision.group
    if group is not None:
        total += _GROUP_EVENT_BYTES
        names += (group.key.example_id, group.key.group_uid, group.split)
        names += values_of(group.rows, "rollout_uid")
        names += chain(*group.names)
    if decision.unsealed is not None:
        names += decision.unsealed
    for failed in decision.failed:
        total += _FAILED_EVENT_BYTES
        names += (failed.reason, failed.group_uid)
    joined = "".join(names)
    return total + (len(joined) if joined.isascii() else len(joined.encode()))


def settlement_bytes(settlement: Settlement, kept: bool) -> int:
    """The same of one settlement, whose row is kept or not."""
    return _ENTRY_EVENT_BYTES + len(settlement.rollout_uid.encode()) + _FILE_EVENT_BYTES * kept


def _rows(decision: SealDecision) -> Sequence[Row]:
    return () if decision.group is None else decision.group.rows


def _is_alive(decision: SealDecision) -> bool:
    """Whether it says only that a producer lives."""
    if decision.unread is not None:
        return decision.unread.reason is SettleReason.ALIVE
    settled = decision.settled
    return decision.entries == 1 == len(settled) and settled[0].reason is SettleReason.ALIVE


_offset_of_row = itemgetter(2)
_offset_of_settlement = itemgetter(1)


class Kept(NamedTuple):
    """Bytes of records, and how many bytes of memory they take."""

    size: int
    memory: int

    def plus(self, other: Kept) -> Kept:
        """Returns the sum."""
        return Kept(self.size + other.size, self.memory + other.memory)

    def less(self, other: Kept) -> Kept:
        """Returns the difference."""
        return Kept(self.size - other.size, self.memory - other.memory)


NOTHING_KEPT = Kept(0, 0)


class _Queued(NamedTuple):
    """A decision, and what is kept until it is committed."""

    decision: SealDecision
    held: Kept


class DecisionQueue:
    """Decisions in the order in which they were made, and the low watermark of those committed.

    Attributes:
        watermark: every entry of every offset below it is settled and committed.
        entries: that are decided and not committed; of these ``living`` say only that a producer
            lives.
        size: payload bytes that are decided and not committed.
        held: bytes of the records that are kept for these decisions alone.
        end: how many decisions were made.
    """

    def __init__(self, watermark: int) -> None:
        self.watermark = watermark
        self.end = 0
        self.entries = 0
        self.living = 0
        self.size = 0
        self.held = NOTHING_KEPT
        self._queue: deque[_Queued] = deque()
        self._end = watermark
        self._planned = 0  # How many decisions were made up to the newest that a plan ever had.
        # Of offsets from the watermark to the end that have an unsettled entry; rising. A range
        # is one entry of its first offset.
        self._counts: dict[int, int] = {}  # Entries.
        self._settled: dict[int, int] = {}  # Committed entries, where there are any.

    @property
    def committed(self) -> int:
        """How many decisions were made before the oldest that is not committed."""
        return self.end - len(self._queue)

    def begin(self, offset: int, count: int, settled: int = 0) -> None:
        """The next offset has ``count`` entries, of which others settled some before."""
        assert offset == self._end, (offset, self._end)
        assert 0 <= settled <= count, (settled, count)
        self._end = offset + 1
        if settled < count:
            self._counts[offset] = count
            if settled:
                self._settled[offset] = settled
        elif offset == self.watermark:
            self.watermark = self._end

    def begin_unread(self, stop: int) -> None:
        """Nobody read the next offsets, up to ``stop``: a decision settles all of them."""
        assert stop > self._end, (stop, self._end)
        self._counts[self._end] = 1
        self._end = stop

    def alive(self) -> None:
        """The next offset has one entry, which says that a producer lives: decides it. Those that
        come one after the other are one decision."""
        first, stop = self._end, self._end + 1
        is_planned = not self._queue or self.end <= self._planned
        newest = None if is_planned else self._queue[-1].decision.unread
        if newest is not None and newest.reason is SettleReason.ALIVE and newest.stop == first:
            self._end = stop
            queued = self._queue[-1]
            decision = queued.decision._replace(unread=newest._replace(stop=stop))
            self._queue[-1] = queued._replace(decision=decision)
        else:
            self.begin_unread(stop)
            unread = UnreadRange(SettleReason.ALIVE, first, stop)
            self.append(SealDecision(None, (), (), 1, 0, unread))

    def pass_over(self, stop: int) -> None:
        """Of the next offsets, up to ``stop``, others settled every entry."""
        assert stop > self._end, (stop, self._end)
        self._end = stop
        self.watermark = self._next_unsettled({})

    def append(self, decision: SealDecision, held: Kept = NOTHING_KEPT) -> None:
        """Adds the newest decision; records of ``held`` bytes are kept for it alone."""
        self._queue.append(_Queued(decision, held))
        self.end += 1
        self.held = self.held.plus(held)
        self.entries += decision.entries
        self.living += _is_alive(decision)
        self.size += decision.size

    def hold(self, kept: Kept) -> None:
        """Records of so many bytes are kept by nothing but decisions of this queue, if any."""
        if self._queue:
            newest = self._queue[-1]
            self._queue[-1] = newest._replace(held=newest.held.plus(kept))
            self.held = self.held.plus(kept)

    def plan(
        self,
        entries_max: int,
        size_max: int,
        now_us: int,
        settled_if_old: Callable[[SealDecision], SealDecision] | None = None,
    ) -> Plan | None:
        """The oldest decisions within these bounds and ``FLUSH_FILES_MAX`` (always one at least);
        None without any. The same come again until they are committed. ``now_us`` is log time.

        Args:
            settled_if_old: makes of a decision whose group is too old one that settles the same
                entries, of the same size; what is planned stays so, whatever it makes later.
        """
        taken: list[SealDecision] = []
        files: set[tuple[bool, FileKey]] = set()
        entries = size = event_size = 0
        for decided, _ in self._queue:
            decision = decided if settled_if_old is None else settled_if_old(decided)
            size += decision.size
            event_size += event_bytes(decision)
            files |= files_of(decision)
            over = size > size_max or event_size > EVENT_BYTES_MAX or len(files) > FLUSH_FILES_MAX
            if taken and (over or entries + decision.entries > entries_max):
                break
            entries += decision.entries
            taken.append(decision)
        if not taken:
            return None
        self._planned = max(self._planned, self.committed + len(taken))
        if settled_if_old is not None:
            for index, decision in enumerate(taken):
                self._queue[index] = self._queue[index]._replace(decision=decision)
        return self._plan_of(taken, now_us, entries)

    def _plan_of(self, decisions: Sequence[SealDecision], now_us: int, entries: int) -> Plan:
        rows = chain.from_iterable(map(_rows, decisions))
        settlements = chain.from_iterable(decision.settled for decision in decisions)
        settled = Counter(map(_offset_of_row, rows))
        settled.update(map(_offset_of_settlement, settlements))
        if settled.pop(NOT_INGESTED, 0):  # The log may have nothing that says what time it is.
            imported = (one.group for one in decisions if one.group and one.group.request >= 0)
            now_us = max(now_us, *(group.first_ts for group in imported))
        touched = {offset: self._counts[offset] for offset in sorted(settled)}
        unread = [decision.unread for decision in decisions if decision.unread is not None]
        settled.update(stretch.first for stretch in unread)
        watermark = self._next_unsettled(settled)
        alive = sum(map(_is_alive, decisions))
        return Plan(tuple(decisions), watermark, touched, settled, now_us, entries, alive)

    def commit(self, plan: Plan) -> None:
        """Removes what a confirmed plan settled, and moves the watermark: as far as the plan's, or
        further where what was read since then had been settled before."""
        for decision in plan.decisions:
            is_oldest = bool(self._queue) and self._queue[0].decision is decision
            assert is_oldest, "a plan is committed once, the newest only"
            self.held = self.held.less(self._queue.popleft().held)
            self.entries -= decision.entries
            self.living -= _is_alive(decision)
            self.size -= decision.size
        for offset, number in plan.settled.items():
            settled = self._settled.get(offset, 0) + number
            count = self._counts[offset]
            assert settled <= count, f"an entry of offset {offset} is settled twice"
            if settled < count:
                self._settled[offset] = settled
            else:
                del self._counts[offset]
                self._settled.pop(offset, None)
        self.watermark = self._next_unsettled({})
        assert self.watermark >= plan.watermark, (self.watermark, plan.watermark)

    def _next_unsettled(self, further: Mapping[int, int]) -> int:
        """The watermark, where so many further entries of these offsets were settled."""
        settled = self._settled
        for offset, count in self._counts.items():
            if count - settled.get(offset, 0) > further.get(offset, 0):
                return offset
        return self._end
