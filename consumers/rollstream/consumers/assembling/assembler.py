"""The state machine that turns one source partition into decisions.

It decides by the log alone: the same records in the same order give the same decisions, however
they are cut into polls and whenever they are flushed. Time is log time, the running maximum of the
records' LogAppendTime; ``tick`` moves it on where nothing arrives.

Rules of its own, where several would do:

- A group's members are trajectories (distinct ``rollout_uid``); a member is complete when its last
  segment and every one before it were read. A group's rows are all segments of its complete
  members.
- ``Failed`` members, broken chains, and rejected versions of a group that the producer named will
  never come, so they count towards its size. Their offsets are settled together with the group,
  so that a restart, which does not see settled offsets again, counts the same.
- Whatever arrives for a group that is decided begins a new group under the same key; so do the
  trajectories that were not complete when it was sealed. The group is new, the trajectories are
  not: each expires by its own age, or one that never ends would live for as long as its key is
  sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rollstream.schemas.header import RolloutHeader

from rollstream.consumers.assembling.decisions import (
    NO_SEGMENT,
    Decision,
    DecisionQueue,
    DueGroup,
    Plan,
    Settlement,
    segments_of,
)
from rollstream.consumers.assembling.groups import PendingGroups
from rollstream.consumers.assembling.pending import (
    Chain,
    ChainState,
    PendingGroup,
    PendingKey,
    group_key,
    pending_key,
)
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.codec import Segment
from rollstream.schemas.events import Dispatched, Failed
from rollstream.schemas.ids import SegmentId
from rollstream.schemas.reasons import SealReason, SettleReason

# A pending group expires at the latest when this many records were read after its first, and so
# does a trajectory that is not complete: what is settled above the watermark is held in memory and
# read again after a restart. The worst case is twice as many: a trajectory that was completed in a
# later group waits for that group.
LAG_RECORDS_MAX = 1_000_000
_LOST_AT_ONCE = 1_024  # Lost offsets in one decision, so that a flush stays within its bounds.


class Assembler:
    """Decides what becomes of every offset of one source partition, each exactly once.

    Args:
        environment: of the partition.
        config: how its rollouts become groups.
        seen: whether a segment was settled before, within the dedupe horizon.
        watermark: where reading begins: every offset below it is settled.

    Attributes:
        position: the next offset to be read.
        now_us: log time.
        pending: what is not decided.
        decided: what is decided and not committed, and the watermark.
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
        self.now_us = 0
        self.pending = PendingGroups(config)
        self.decided = DecisionQueue(watermark)
        self._environment = environment
        self._strict = config.grouping == "strict"
        self._target = config.target_group_size
        self._min_size = config.min_group_size
        self._cap = config.max_per_replica
        accepted = config.accept_policy_versions
        self._accepted = None if accepted is None else frozenset(accepted)
        self._seen = seen
        self._uncommitted: set[SegmentId] = set()  # Segments that are pending or decided.

    def add(
        self, offset: int, timestamp_us: int, event: Segment | Dispatched | Failed, size: int
    ) -> None:
        """The next record; ``size`` is that of its bytes."""
        assert offset == self.position, (offset, self.position)
        self.position = offset + 1
        if timestamp_us > self.now_us:
            self._advance(timestamp_us)
        if not isinstance(event, Segment):
            self._add_control_event(offset, event)
            return
        header, pending = event.header, self.pending
        uid = header.rollout_uid
        idx = header.segment_idx
        segment = (uid, idx) if idx else uid  # As `segment_id`, without a call for each rollout.
        if segment in self._uncommitted or self._seen(segment):
            self._settle_alone(Settlement(SettleReason.DUPLICATE, offset, uid, idx))
            return
        self._uncommitted.add(segment)
        if self._accepted is not None and header.policy_version not in self._accepted:
            self._reject(offset, header)
            return
        chain = pending.chains.get(uid) if pending.chains else None
        if chain is None:
            key = pending_key(header, self._strict)
            group = pending.by_key.get(key) or self._begin(key, header.group_size)
        else:
            group = chain.group
        if group.failed_uids and uid in group.failed_uids:
            self._add_settlement(group, Settlement(SettleReason.FAILED, offset, uid, idx))
            return
        if self._cap is not None and chain is None:
            taken = group.replicas.get(header.replica_id, 0)
            if taken >= self._cap:
                self._settle_alone(Settlement(SettleReason.REPLICA_CAP, offset, uid, idx))
                return
            group.replicas[header.replica_id] = taken + 1
        group.size = max(group.size, header.group_size)
        if header.split != "train":
            group.split = header.split
        group.records += 1
        group.payload += size
        pending.records += 1
        pending.size += size
        if chain is None and idx == 0 and header.is_last_segment:
            group.offsets.append(offset)
            group.segments.append(event)
            group.members += 1
            self._close_if_due(group)
        else:
            self._add_to_chain(group, chain, offset, event, size)
        if pending.records > pending.records_max or pending.size > pending.size_max:
            self._expire_over_limit()

    def unreadable(self, offset: int, timestamp_us: int) -> None:
        """The next record cannot be read."""
        self._pass_over(offset, timestamp_us)
        self._settle_alone(Settlement(SettleReason.UNREADABLE, offset))

    def skip(self, offset: int, timestamp_us: int) -> None:
        """The next record was settled by an earlier owner: it only advances log time."""
        self._pass_over(offset, timestamp_us)
        self.decided.skip(offset)

    def lost(self, end: int, settled: Callable[[int], bool]) -> None:
        """Retention deleted every offset from the position up to ``end``, unread.

        Those for which ``settled`` is true were settled by an earlier owner.
        """
        unread = []
        for offset in range(self.position, end):
            if settled(offset):
                self.decided.skip(offset)
            else:
                unread.append(Settlement(SettleReason.LOST, offset))
        for first in range(0, len(unread), _LOST_AT_ONCE):
            chunk = unread[first : first + _LOST_AT_ONCE]
            self.decided.append(Decision(None, chunk, (), len(chunk), 0))
        self.position = max(self.position, end)

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
        """The plan is in the seal log and confirmed; from now on ``seen`` is true for its
        segments."""
        self.decided.commit(plan)
        for decision in plan.decisions:
            self._uncommitted.difference_update(segments_of(decision))

    # --- records ---

    def _pass_over(self, offset: int, timestamp_us: int) -> None:
        assert offset == self.position, (offset, self.position)
        self.position = offset + 1
        if timestamp_us > self.now_us:
            self._advance(timestamp_us)

    def _begin(self, key: PendingKey, group_size: int) -> PendingGroup:
        """A new group, by the record that was read last; its size is the producer's, if any."""
        return self.pending.begin(key, group_size or self._target, self.position - 1, self.now_us)

    def _add_control_event(self, offset: int, event: Dispatched | Failed) -> None:
        if isinstance(event, Dispatched):
            settlement = Settlement(SettleReason.DISPATCHED, offset)
            failed = 0
        else:
            settlement = Settlement(SettleReason.FAILED, offset, event.rollout_uid, NO_SEGMENT)
            failed = event.count
        uid = settlement.rollout_uid
        chain = self.pending.chains.get(uid) if failed else None
        if chain is not None:
            group = chain.group
        elif event.group_uid:
            key = (event.group_uid, event.example_id)
            group = self.pending.by_key.get(key) or self._begin(key, event.group_size)
        else:
            # Without a group_uid its inferred group is unknown.
            self._settle_alone(settlement)
            return
        group.size = max(group.size, event.group_size)
        if chain is not None:
            self._drop_chain(uid, chain, SettleReason.FAILED)
        # A member fails once, however often it is reported and for whatever reasons.
        if failed and uid not in group.failed_uids:
            group.failed += failed
        if failed and uid:
            group.failed_uids.add(uid)
        self._add_settlement(group, settlement)

    def _add_settlement(self, group: PendingGroup, settlement: Settlement) -> None:
        group.settlements.append(settlement)
        group.records += 1
        self.pending.records += 1
        self._close_if_due(group)
        self._expire_over_limit()

    def _reject(self, offset: int, header: RolloutHeader) -> None:
        reason, uid = SettleReason.VERSION_REJECTED, header.rollout_uid
        settlement = Settlement(reason, offset, uid, header.segment_idx)
        chain = self.pending.chains.get(uid)
        if chain is not None:
            group = chain.group
            self._drop_chain(uid, chain, reason)
        elif header.group_uid:
            key = pending_key(header, self._strict)
            group = self.pending.by_key.get(key) or self._begin(key, header.group_size)
        else:
            self._settle_alone(settlement)
            return
        if uid not in group.failed_uids:
            group.failed += 1
            group.failed_uids.add(uid)
        self._add_settlement(group, settlement)

    # --- trajectories ---

    def _add_to_chain(
        self, group: PendingGroup, chain: Chain | None, offset: int, segment: Segment, size: int
    ) -> None:
        uid = segment.header.rollout_uid
        if chain is None:
            chain = self.pending.begin_chain(uid, group, offset, self.now_us)
        state = chain.add(offset, segment, size)
        if state is ChainState.COMPLETE:
            self.pending.remove_chain(uid, chain)
            for row_offset, row in chain.rows():
                group.offsets.append(row_offset)
                group.segments.append(row)
            group.members += 1
        elif state is ChainState.BROKEN:
            self._drop_chain(uid, chain, SettleReason.BROKEN_CHAIN)
            group.failed += 1
            # Its later segments must not begin a trajectory that can never be complete.
            group.failed_uids.add(uid)
        self._close_if_due(group)

    def _drop_chain(self, uid: str, chain: Chain, reason: SettleReason) -> None:
        """Settles the trajectory's segments together with its group."""
        group = chain.group
        self.pending.remove_chain(uid, chain)
        group.payload -= chain.size  # Only the offsets are kept.
        self.pending.size -= chain.size
        group.settlements += [
            Settlement(reason, offset, uid, segment.header.segment_idx)
            for offset, segment in sorted(chain.rows())  # As they came.
        ]

    # --- time and bounds ---

    def _advance(self, now_us: int) -> None:
        self.now_us = now_us
        pending = self.pending
        while (group := pending.next_timed_out(now_us)) is not None:
            if group.members >= self._min_size:
                self._seal(group, SealReason.TIMEOUT)
        lag_limit = self.position - LAG_RECORDS_MAX
        while (group := pending.next_expired(now_us, lag_limit)) is not None:
            self._expire(group)
        # Those that are left are too old only where they outlived the group that they came with.
        while pending.chains:
            chain = pending.next_expired_chain(now_us, lag_limit)
            if chain is None:
                return
            self._settle_expired((), chain.rows(), chain.size)

    def _expire_over_limit(self) -> None:
        """While a bound is exceeded, the oldest group expires. Reading goes on, for the members
        that would complete the others are still to come."""
        pending = self.pending
        while pending.records > pending.records_max or pending.size > pending.size_max:
            oldest = pending.oldest()
            assert oldest is not None, "something is pending"
            self._expire(oldest)

    # --- decisions ---

    def _close_if_due(self, group: PendingGroup) -> None:
        if group.members + group.failed >= group.size:
            self._seal(group, SealReason.FULL)
        elif group.overdue and group.members >= self._min_size:
            self._seal(group, SealReason.TIMEOUT)

    def _seal(self, group: PendingGroup, reason: SealReason) -> None:
        """Decides the group; where every member failed, its settlements alone."""
        self.pending.remove(group)
        due = None
        if group.members:
            due = DueGroup(
                group_key(self._environment, group.segments[0].header, self._strict),
                group.split,
                reason,
                group.failed,
                group.offsets,
                group.segments,
                group.first_ts,
            )
        payload = group.payload - sum(chain.size for chain in group.chains.values())
        records = len(group.offsets) + len(group.settlements)
        self.decided.append(Decision(due, group.settlements, (), records, payload))
        if group.chains:
            self.pending.move_chains(group, self._begin(group.key, group.size))

    def _expire(self, group: PendingGroup) -> None:
        self.pending.remove(group)
        rows = list(zip(group.offsets, group.segments, strict=True))
        for uid, chain in group.chains.items():
            del self.pending.chains[uid]
            rows += chain.rows()
        self._settle_expired(group.settlements, rows, group.payload)

    def _settle_expired(
        self, settlements: Iterable[Settlement], rows: Sequence[tuple[int, Segment]], size: int
    ) -> None:
        settled = list(settlements)
        settled += [
            Settlement(SettleReason.EXPIRED, offset, s.header.rollout_uid, s.header.segment_idx)
            for offset, s in rows
        ]
        self.decided.append(Decision(None, settled, tuple(rows), len(settled), size))

    def _settle_alone(self, settlement: Settlement) -> None:
        self.decided.append(Decision(None, (settlement,), (), 1, 0))
