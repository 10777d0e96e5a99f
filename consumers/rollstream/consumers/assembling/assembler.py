"""The state machine that turns one source partition into decisions.

It decides by the log alone: the same entries in the same order give the same decisions, however
they are cut into records and polls, and whenever they are flushed. (But for ``max_pending_bytes``,
which bounds memory: it counts whole records.) Time is log time, the running maximum of the records'
LogAppendTime; ``tick`` moves it on where nothing arrives.

Rules of its own, where several would do:

- A group's members are trajectories (distinct ``rollout_uid``); a member is complete when its last
  segment and every one before it were read. A group's rows are all segments of its complete
  members.
- Failures, broken chains, rejected versions of a group that the producer named, and members whose
  named arrays have other dtypes or shapes than those before them will never come, so they count
  towards its size. Their entries are settled together with the group, so that a restart, which does
  not see settled entries again, counts the same.
- An appended member makes a pending group one larger; it begins none.
- Whatever else arrives for a group that is decided begins a new group under the same key; so do the
  trajectories that were not complete when it was sealed. The group is new, the trajectories are
  not: each expires by its own age, or one that never ends would live for as long as its key is
  sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice, repeat
from operator import itemgetter

from rollstream.consumers.assembling.decisions import (
    NO_SEGMENT,
    Decision,
    DecisionQueue,
    Plan,
    Settlement,
    UnreadRange,
    segments_of,
)
from rollstream.consumers.assembling.fitting import parts_of, settlements_of
from rollstream.consumers.assembling.groups import PendingGroups
from rollstream.consumers.assembling.held import HeldRecord, HeldRecords, PendingRow
from rollstream.consumers.assembling.in_flight import ProducersInFlight
from rollstream.consumers.assembling.pending import (
    Chain,
    ChainState,
    PendingEntry,
    PendingGroup,
    PendingKey,
    names_of,
)
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.ids import SegmentId
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.schemas.ingest.record import IngestRecord
from rollstream.schemas.reasons import SealReason, SettleReason
from rollstream.streams.folds.entries import Stretch

# A pending group expires at the latest when this many entries were read after its first, and so
# does a trajectory that is not complete: what is settled above the watermark is held in memory and
# read again after a restart. The worst case is twice as many: a trajectory that was completed in a
# later group waits for that group.
LAG_ENTRIES_MAX = 1_000_000
_LOST_AT_ONCE = 1_024  # Lost entries in one decision, so that a flush stays within its bounds.
_, _DISPATCHED, _FAILED, _ALIVE, _ENDED, _APPENDED = (kind.value for kind in EntryKind)
_shared_values = itemgetter("group_size", "policy_version", "split", "lineage", "replica_id")


class Assembler:
    """Decides what becomes of every entry of one source partition, each exactly once.

    Args:
        environment: of the partition.
        config: how its rollouts become groups.
        seen: whether a segment was settled before, within the dedupe horizon.
        watermark: where reading begins: every offset below it is settled.

    Attributes:
        position: the next offset to be read.
        entries: how many were read, among them the one that is being decided.
        now_us: log time.
        pending: what is not decided.
        held: the records that hold it.
        decided: what is decided and not committed, and the watermark.
        in_flight: how the producers stand that said something.
    """

    def __init__(
        self,
        environment: str,
        config: EnvironmentConfig,
        seen: Callable[[SegmentId], bool],
        *,
        watermark: int = 0,
    ) -> None:
        self.position = watermark
        self.entries = 0
        self.now_us = 0
        self.pending = PendingGroups(config)
        self.decided = DecisionQueue(watermark)
        self.in_flight = ProducersInFlight()
        self.held = HeldRecords(config.max_pending_bytes, self.decided.hold)
        self._environment = environment
        self._strict = config.grouping == "strict"
        self._target = config.target_group_size
        self._min_size = config.min_group_size
        self._trains_partial = config.partial_trajectories == "train"
        self._cap = config.max_per_replica
        accepted = config.accept_policy_versions
        self._accepted = None if accepted is None else frozenset(accepted)
        self._seen = seen
        self._uncommitted: set[SegmentId] = set()  # Segments that are pending or decided.

    def add(
        self,
        offset: int,
        timestamp_us: int,
        record: IngestRecord,
        *,
        settled: Collection[int] = (),
        unreadable: Collection[int] = (),
    ) -> None:
        """The next record: its entries in their order, besides those that an earlier owner
        ``settled``. Those that are ``unreadable`` are settled as such."""
        self._begin_offset(offset, timestamp_us, record.count, len(settled))
        held = self.held.hold(record, offset)
        self._add_entries(held, settled, unreadable)
        while self.held.crowded():
            if not self.held.copy_out():
                self._expire_oldest()

    def unreadable(self, offset: int, timestamp_us: int) -> None:
        """The next record cannot be read: it counts as one entry."""
        self._begin_offset(offset, timestamp_us, 1)
        self.entries += 1
        self._decide([Settlement(SettleReason.UNREADABLE, offset, 0)])

    def skip(self, offset: int, timestamp_us: int, count: int) -> None:
        """The next record, of ``count`` entries, was settled by an earlier owner: it only advances
        log time."""
        self._begin_offset(offset, timestamp_us, count, count)
        self.entries += count

    def unread(self, stretches: Iterable[Stretch], reason: SettleReason) -> None:
        """There is no record, or none any more, at the offsets from the position on that these
        ``stretches`` have; what an earlier owner did not settle of them is settled for that reason,
        as ranges where nobody knows how many entries there were."""
        for first, stop, count, settled in stretches:
            assert first == self.position, (first, self.position)
            self.position = stop
            if count == 0:
                self.decided.begin_unread(stop)
                stretch = UnreadRange(reason, first, stop)
                self.decided.append(Decision(None, (), (), 1, 0, stretch), 0)
            elif len(settled) == count:
                self.decided.pass_over(stop)
            else:
                assert stop == first + 1, "an offset of which the entries are known stands alone"
                self.decided.begin(first, count, len(settled))
                self.entries += count
                left = (entry for entry in range(count) if entry not in settled)
                while entries := list(islice(left, _LOST_AT_ONCE)):
                    self._decide([Settlement(reason, first, entry) for entry in entries])

    def tick(self, now_us: int) -> None:
        """Moves log time on without a record. Only for a caller that has read up to the end offset
        that the log had when it took ``now_us``; else catching up would seal groups too early."""
        if now_us > self.now_us:
            self._advance(now_us)

    def flush(self) -> None:
        """Seals every group that has enough members; the rest stays pending."""
        for group in list(self.pending.by_key.values()):
            if group.members >= self._min_size:
                self._seal(group, SealReason.FLUSH)

    def commit(self, plan: Plan) -> None:
        """The plan is confirmed in the seal log; from now on ``seen`` is true for its segments."""
        self.decided.commit(plan)
        for decision in plan.decisions:
            self._uncommitted.difference_update(segments_of(decision))
        self.in_flight.commit(plan)

    # --- entries ---

    def _begin_offset(self, offset: int, timestamp_us: int, count: int, settled: int = 0) -> None:
        assert offset == self.position, (offset, self.position)
        self.position = offset + 1
        self.decided.begin(offset, count, settled)
        if timestamp_us > self.now_us:
            self._advance(timestamp_us)

    def _add_entries(
        self, held: HeldRecord, settled: Collection[int], unreadable: Collection[int]
    ) -> None:
        record, pending, accepted = held.record, self.pending, self._accepted
        seen, uncommitted, by_key = self._seen, self._uncommitted, pending.by_key
        strict, passed = self._strict, bool(settled or unreadable)
        plain = self._cap is None and not record.token_arrays
        header, texts = record.header, record.texts
        shared = [(*_shared_values(one), names_of(one)) for one in header["shared"]]
        # What each entry has the default of is no list; the others are as long as the kinds.
        columns = zip(
            record.kinds,
            texts.get("rollout_uid") or repeat(""),
            texts.get("group_uid") or repeat(""),
            texts.get("example_id") or repeat(""),
            record.values("segment_idx") if header["segment_idx"] else repeat(0),
            record.values("is_last_segment") if header["is_last_segment"] else repeat(True),
            record.shared_indexes,
            strict=False,
        )
        for entry, (kind, uid, group_uid, example_id, idx, is_last, of) in enumerate(columns):
            self.entries += 1
            if passed and (entry in settled or entry in unreadable):
                row = PendingEntry(held, entry)
                self._pass_over(row, SettleReason.UNREADABLE, entry in settled)
                continue
            group_size, version, split, lineage, replica_id, names = shared[of]
            if kind and kind != _APPENDED:
                uid, idx = uid if kind == _FAILED else "", NO_SEGMENT  # noqa: PLW2901
            segment = (uid, idx) if idx else uid  # As `segment_id`, without a call for each.
            if uid:
                if segment in uncommitted or seen(segment):
                    self._pass_over(PendingEntry(held, entry, uid, idx), SettleReason.DUPLICATE)
                    continue
                uncommitted.add(segment)
            chain = pending.chains.get(uid) if pending.chains else None
            key: PendingKey = (group_uid, example_id)
            if not group_uid:
                key = ("", example_id, version if strict else "", split, lineage)
            if (kind or (accepted is not None and version not in accepted)) and self._takes_no_row(
                PendingEntry(held, entry, uid, idx), chain, key, group_size
            ):
                continue
            group = by_key.get(key) if chain is None else chain.group
            if group is None:
                group = self._begin(key, group_size)
            if group.failed_uids or not plain:
                row = PendingEntry(held, entry, uid, idx)
                if not self._admits(row, group, chain, replica_id):
                    continue
            group.size = max(group.size, group_size)
            if split != "train":
                group.split = split
            group.entries += 1
            pending.entries += 1
            if chain is None and is_last and not idx:
                group.rows.append((held, entry))
                group.names.add(names)
                group.members += 1
            else:
                row = PendingEntry(held, entry, uid, idx)
                self._extend(row, is_last, group, chain, replica_id)
            if group.overdue or group.members + group.failed >= group.size:
                self._close_if_due(group)
            if pending.entries > pending.entries_max:
                self._expire_oldest()

    def _pass_over(self, entry: PendingEntry, reason: SettleReason, settled: bool = False) -> None:
        """The entry belongs to no group; it may be ``settled`` already."""
        self.held.release(entry.held, entry.entry)
        if not settled:
            self._decide([entry.settlement(reason)])

    def _begin(self, key: PendingKey, group_size: int) -> PendingGroup:
        """A new group, by the newest entry; its size is the producer's, if any."""
        return self.pending.begin(key, group_size or self._target, self.entries, self.now_us)

    def _admits(
        self, segment: PendingEntry, group: PendingGroup, chain: Chain | None, replica_id: str
    ) -> bool:
        """Whether the segment may be in the group; else it is settled."""
        if segment.uid in group.failed_uids:
            self._settle_with(group, segment, SettleReason.FAILED)
            return False
        cap = self._cap if chain is None else None
        taken = group.replicas.get(replica_id, 0)
        if cap is not None and taken >= cap:
            group.size -= segment.kind == _APPENDED  # It was to be larger by this one.
            self._pass_over(segment, SettleReason.REPLICA_CAP)
            return False
        if not group.agrees(segment):
            self._fail_member(segment, group, chain, SettleReason.ARRAY_MISMATCH)
            return False
        if cap is not None:
            group.replicas[replica_id] = taken + 1
        return True

    def _takes_no_row(
        self, entry: PendingEntry, chain: Chain | None, key: PendingKey, group_size: int
    ) -> bool:
        """Settles what is no segment, or a rejected one; an appended one makes its group larger."""
        if entry.kind == _APPENDED:
            group = self.pending.by_key.get(key) if chain is None else chain.group
            if group is None:
                self._pass_over(entry, SettleReason.GROUP_SEALED)
                return True
            group.size += chain is None and entry.uid not in group.failed_uids
            if self._accepted is None or entry.value("policy_version") in self._accepted:
                return False
        self._add_rowless(entry, chain, key, group_size)
        return True

    def _add_rowless(
        self, entry: PendingEntry, chain: Chain | None, key: PendingKey, group_size: int
    ) -> None:
        """A dispatch, a failure, or a segment whose policy version is not accepted: settled with
        the group of its trajectory, or the one that the producer named, which may begin now. That a
        producer lives is of no group; that a trajectory has ended begins none."""
        producer, kind = entry.held.record.producer, entry.kind
        if producer is not None and kind in (_DISPATCHED, _ALIVE):
            self.in_flight.tell(producer, self.now_us)
        if kind == _ALIVE:
            self._pass_over(entry, SettleReason.ALIVE)
            return
        if kind == _ENDED:
            self._end(entry)
            return
        failure = entry.held.record.failures.get(entry.entry)
        reason, failed = SettleReason.VERSION_REJECTED, 1
        if failure is not None:
            reason, failed = SettleReason.FAILED, failure.count
        elif not entry.uid:
            reason, failed = SettleReason.DISPATCHED, 0
        group = None
        if chain is not None:
            group = chain.group
        elif key[0]:
            group = self.pending.by_key.get(key) or self._begin(key, group_size)
        if group is None:
            self._pass_over(entry, reason)  # Its inferred group is unknown.
            return
        group.size = max(group.size, group_size)
        if failed:
            given = failure.reason if failure else ""
            self._fail_member(entry, group, chain, reason, failed, given)
        else:
            self.pending.dispatch(group, entry.settlement(reason))
            if producer is not None and entry.value("split") != "eval":
                group.producer_id = self.in_flight.begin(producer.producer_id, group.producer_id)
            self._settle_with(group, entry, reason)

    def _fail_member(
        self,
        entry: PendingEntry,
        group: PendingGroup,
        chain: Chain | None,
        reason: SettleReason,
        count: int = 1,
        given: str = "",
    ) -> None:
        """The entry, and what there is of its trajectory, are settled with the group, which lacks
        so many members for ever. A member fails once, for whatever reasons; the producer may have
        ``given`` one."""
        if chain is not None:
            self._drop_chain(entry.uid, chain, reason)
        group.fail(entry.uid, count, given)
        self._settle_with(group, entry, reason)

    def _settle_with(self, group: PendingGroup, entry: PendingEntry, reason: SettleReason) -> None:
        """The entry is settled together with the group."""
        self.held.release(entry.held, entry.entry)
        group.settlements.append(entry.settlement(reason))
        self._hold(group)

    def _hold(self, group: PendingGroup) -> None:
        """The group has one more entry, which changed what it is."""
        group.entries += 1
        self.pending.entries += 1
        self._close_if_due(group)
        if self.pending.entries > self.pending.entries_max:
            self._expire_oldest()

    # --- trajectories ---

    def _extend(
        self,
        segment: PendingEntry,
        is_last: bool,
        group: PendingGroup,
        chain: Chain | None,
        replica_id: str,
    ) -> None:
        uid = segment.uid
        if chain is None:
            chain = Chain(group, self.entries, self.now_us, replica_id)
            self.pending.chains[uid] = group.chains[uid] = chain
        self._follow(uid, chain, chain.add(segment, is_last))

    def _end(self, entry: PendingEntry) -> None:
        """A trajectory of which steps are pending has so many, or as many as were read; the first
        entry that says so counts. It stays with the trajectory, as a restart has to read it again.
        """
        uid, segments = entry.value("rollout_uid"), entry.value("segment_idx")
        chain = self.pending.chains.get(uid)
        if chain is None or chain.has_end:
            self._pass_over(entry, SettleReason.NOT_OPEN)
            return
        self.held.release(entry.held, entry.entry)
        group = chain.group
        self._follow(uid, chain, chain.end(entry.settlement(SettleReason.ENDED), segments))
        self._hold(group)

    def _follow(self, uid: str, chain: Chain, state: ChainState) -> None:
        """What the trajectory has become changes its group."""
        group = chain.group
        if state is ChainState.COMPLETE:
            self.pending.remove_chain(uid, chain)
            group.settlements += chain.ends
            for row in chain.rows():
                group.names.add(row.names())
            group.rows += chain.pending_rows()
            group.members += 1
        elif state is ChainState.BROKEN:
            self._drop_chain(uid, chain, SettleReason.BROKEN_CHAIN)
            group.failed += 1
            # Its later segments must not begin a trajectory that can never be complete.
            group.failed_uids.add(uid)

    def _drop_chain(self, uid: str, chain: Chain, reason: SettleReason) -> None:
        """Settles the trajectory's segments together with its group; only their numbers are kept
        until then."""
        self.pending.remove_chain(uid, chain)
        rows = sorted(chain.rows(), key=lambda row: (row.held.offset, row.entry))  # As they came.
        chain.group.settlements += [*chain.ends, *(row.settlement(reason) for row in rows)]
        for row in rows:
            self.held.release(row.held, row.entry)

    # --- time and bounds ---

    def _advance(self, now_us: int) -> None:
        self.now_us = now_us
        pending = self.pending
        while (group := pending.next_timed_out(now_us)) is not None:
            self._seal_overdue(group)
        lag_limit = self.entries + 1 - LAG_ENTRIES_MAX
        while (group := pending.next_expired(now_us, lag_limit)) is not None:
            if not (group.overdue and self._seal_overdue(group)):
                self._expire(group)
        # Those that are left are too old only where they outlived the group that they came with.
        while pending.chains and (chain := pending.next_expired_chain(now_us, lag_limit)):
            self._decide(chain.ends, chain.pending_rows())

    def _expire_oldest(self) -> None:
        """A bound is exceeded: the oldest group expires. Reading goes on, for the members that
        would complete the others are still to come."""
        oldest = self.pending.oldest()
        assert oldest is not None, "something is pending"
        self._expire(oldest)

    # --- decisions ---

    def _close_if_due(self, group: PendingGroup) -> None:
        if group.members + group.failed >= group.size:
            self._seal(group, SealReason.FULL)
        elif group.overdue and group.members >= self._min_size:
            self._seal(group, SealReason.TIMEOUT)

    def _seal_overdue(self, group: PendingGroup) -> bool:
        """Seals a group whose time is over where it has members enough, trajectories that nobody
        ended among them where they are trained on."""
        partial = group.trainable_chains() if self._trains_partial else []
        if group.members + len(partial) < self._min_size:
            return False
        for uid, chain in partial:
            self._follow(uid, chain, ChainState.COMPLETE)
        self._seal(group, SealReason.TIMEOUT)
        return True

    def _seal(self, group: PendingGroup, reason: SealReason) -> None:
        """Decides the group; where every member failed, its settlements alone."""
        self.pending.remove(group)
        self._decide(group.settlements, group.rows, group, reason)
        if group.chains:
            self.pending.move_chains(group, self._begin(group.key, group.size))

    def _expire(self, group: PendingGroup) -> None:
        self.pending.remove_whole(group)
        self._decide(group.settlements, group.rows, group, None)

    def _decide(
        self,
        settled: Sequence[Settlement],
        pending: Sequence[PendingRow] = (),
        group: PendingGroup | None = None,
        reason: SealReason | None = None,
    ) -> None:
        """What is ``pending`` is written: sealed as the group's, for that reason, or expired."""
        rows, size, freed = self.held.take(pending)
        due, entries = None, len(settled) + len(rows)
        if rows and group is not None and reason is not None:
            due, rows = group.due(self._environment, reason, rows), []
        elif rows:
            settled = [*settled, *settlements_of(rows, SettleReason.EXPIRED)]
        *parts, last = parts_of(Decision(due, settled, rows, entries, size), group, reason)
        for part in parts:
            self.decided.append(part, 0)
        self.decided.append(last, freed)
