"""The state machine that turns one source partition into decisions.

It decides by the log alone: the same records in the same order give the same decisions, however
they are cut into polls and whenever they are flushed. Time is log time, the running maximum of the
records' LogAppendTime; ``tick`` moves it on where nothing arrives.

Rules of its own, where several would do:

- A group's members are trajectories (distinct ``rollout_uid``); a member is whole when its last
  segment and every one before it are here. Its rows are all segments of its whole members.
- ``Failed`` members, broken chains, and rejected versions of a group that the producer named will
  never come, so they count towards its size. Their offsets are settled together with the group,
  so that a restart, which does not see settled offsets again, counts the same.
- Whatever arrives for a group that is decided begins a new group under the same key; so do the
  trajectories that were not whole when it was sealed. The group is new, the trajectories are not:
  each expires by its own age, or one that never ends would live for as long as its key is sealed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

from rollstream.consumers.assembling.decisions import (
    NO_SEGMENT,
    Decision,
    DueGroup,
    Plan,
    Settlement,
    event_bytes,
    offsets_of,
    segments_of,
)
from rollstream.consumers.assembling.expiry import AgeOrder
from rollstream.consumers.assembling.grouping import PendingKey, group_key, pending_key
from rollstream.consumers.assembling.pending import Chain, PendingGroup
from rollstream.consumers.assembling.segments import contradicts, is_chain, last_index
from rollstream.consumers.assembling.watermark import Watermark
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.codec import Segment
from rollstream.schemas.events import Dispatched, Failed
from rollstream.schemas.header import RolloutHeader
from rollstream.schemas.ids import SegmentId
from rollstream.schemas.reasons import SealReason, SettleReason

# A pending group expires at the latest when this many records stand behind its first, and so does
# a trajectory that is not whole: what is settled above the watermark is held in memory and read
# again after a restart. (One that became whole in a later group waits for that: as many again.)
LAG_RECORDS_MAX = 1_000_000
# Bytes of one flush event, well below RECORD_BYTES_MAX of a topic.
EVENT_BYTES_MAX = 8 * 1024 * 1024
_LOST_AT_ONCE = 1_024  # Lost offsets in one decision, so that a flush stays within its bounds.


class Assembler:
    """Decides what becomes of every offset of one source partition, each exactly once.

    Args:
        environment: of the partition.
        config: how its rollouts become groups.
        seen: whether a segment was settled before, within the dedupe horizon.
        watermark: where reading begins: every offset below it is settled.
    """

    def __init__(
        self,
        environment: str,
        config: EnvironmentConfig,
        seen: Callable[[SegmentId], bool],
        *,
        watermark: int = 0,
    ) -> None:
        self._environment = environment
        self._strict = config.grouping == "strict"
        self._config = config
        self._target = config.target_group_size
        self._cap = config.max_per_replica
        accepted = config.accept_policy_versions
        self._accepted = None if accepted is None else frozenset(accepted)
        self._records_max = config.max_pending_rollouts
        self._payload_max = config.max_pending_bytes
        self._seen = seen
        self._groups: dict[PendingKey, PendingGroup] = {}
        self._expire_after_us = round(config.expire_after_s * 1e6)
        self._ages = AgeOrder(round(config.seal_timeout_s * 1e6), self._expire_after_us)
        # In the order in which they began, so of their ages, in whichever group they are now.
        self._chains: OrderedDict[str, Chain] = OrderedDict()
        self._segments: set[SegmentId] = set()
        self._decided: deque[Decision] = deque()
        self._watermark = Watermark(watermark)
        self._plans = 0
        self.position = watermark
        """The next offset to be read."""
        self.now_us = 0
        """Log time."""
        self.pending_records = 0
        """Offsets of groups that are not decided."""
        self.pending_bytes = 0
        """Payload of groups that are not decided."""
        self.decided_records = 0
        """Offsets that are decided and not committed."""
        self.decided_bytes = 0
        """Payload that is decided and not committed."""

    @property
    def watermark(self) -> int:
        """Every offset below it is settled and committed."""
        return self._watermark.low

    @property
    def pending_groups(self) -> int:
        return len(self._ages)

    def oldest_ts(self) -> int | None:
        """Log time from which the oldest pending group or trajectory counts; None without any."""
        group = self._ages.oldest()
        if group is None:
            return None
        chain = next(iter(self._chains.values()), None)
        return group.first_ts if chain is None else min(group.first_ts, chain.first_ts)

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
        header = event.header
        uid = header.rollout_uid
        idx = header.segment_idx
        segment = (uid, idx) if idx else uid  # As `segment_id`, without a call a rollout.
        if segment in self._segments or self._seen(segment):
            self._settle_alone(Settlement(SettleReason.DUPLICATE, offset, uid, idx))
            return
        self._segments.add(segment)
        if self._accepted is not None and header.policy_version not in self._accepted:
            self._reject(offset, header)
            return
        chain = self._chains.get(uid) if self._chains else None
        group = self._group_for(header) if chain is None else chain.group
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
        self.pending_records += 1
        self.pending_bytes += size
        if chain is None and idx == 0 and header.is_last_segment:
            group.offsets.append(offset)
            group.segments.append(event)
            group.members += 1
            self._close_if_due(group)
        else:
            self._add_to_chain(group, chain, offset, event, size)
        if self.pending_records > self._records_max or self.pending_bytes > self._payload_max:
            self._expire_over_limit()

    def unreadable(self, offset: int, timestamp_us: int) -> None:
        """The next record cannot be read."""
        assert offset == self.position, (offset, self.position)
        self.position = offset + 1
        if timestamp_us > self.now_us:
            self._advance(timestamp_us)
        self._settle_alone(Settlement(SettleReason.UNREADABLE, offset))

    def lost(self, end: int, settled: Callable[[int], bool]) -> None:
        """Retention deleted every offset from the position up to ``end``, unread.

        Those for which ``settled`` is true were settled before this life.
        """
        unread = []
        for offset in range(self.position, end):
            if settled(offset):
                self._watermark.settle((offset,))
            else:
                unread.append(Settlement(SettleReason.LOST, offset))
        for first in range(0, len(unread), _LOST_AT_ONCE):
            chunk = unread[first : first + _LOST_AT_ONCE]
            self._decide(Decision(None, chunk, (), len(chunk), 0))
        self.position = max(self.position, end)

    def skip(self, offset: int, timestamp_us: int) -> None:
        """The next record was settled before this life; only its time counts."""
        assert offset == self.position, (offset, self.position)
        self.position = offset + 1
        if timestamp_us > self.now_us:
            self._advance(timestamp_us)
        self._watermark.settle((offset,))

    def tick(self, now_us: int) -> None:
        """Moves log time on without a record. Only for a caller that has read up to the end offset
        that the log had when it took ``now_us``; else catching up would seal groups too early."""
        if now_us > self.now_us:
            self._advance(now_us)

    def flush(self) -> None:
        """Seals whatever has enough members; the rest stays pending."""
        for group in self._ages.all():
            if group.members >= self._config.min_group_size:
                self._seal(group, SealReason.FLUSH)

    def plan(self, records_max: int, size_max: int) -> Plan | None:
        """The oldest decisions within these bounds (always one at least); None without any.

        The same decisions come again until they are committed.
        """
        decisions: list[Decision] = []
        records = size = event_size = 0
        for decision in self._decided:
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
        low = self._watermark.after(offsets_of(decisions))
        return Plan(self._plans, tuple(decisions), low, self.now_us, records, size)

    def commit(self, plan: Plan) -> None:
        """The plan is in the seal log and confirmed; ``seen`` answers for it from now on."""
        assert plan.number == self._plans, "a plan is committed once, the newest only"
        self._plans += 1
        for decision in plan.decisions:
            first = self._decided.popleft()
            assert first is decision, "decisions are committed in order"
            self._segments.difference_update(segments_of(decision))
        self.decided_records -= plan.records
        self.decided_bytes -= plan.size
        self._watermark.settle(offsets_of(plan.decisions))
        assert self._watermark.low == plan.watermark, (self._watermark.low, plan.watermark)

    def _group_for(self, header: RolloutHeader) -> PendingGroup:
        key = pending_key(header, self._strict)
        group = self._groups.get(key)
        if group is None:
            group = self._begin(key, header.group_size or self._target)
        return group

    def _begin(self, key: PendingKey, size: int) -> PendingGroup:
        """By the record that was read last; groups stay in the order of time and of offsets."""
        group = PendingGroup(key, size, self.position - 1, self.now_us)
        self._groups[key] = group
        self._ages.add(group)
        return group

    def _forget(self, group: PendingGroup) -> None:
        del self._groups[group.key]
        self._ages.remove(group)
        self.pending_records -= group.records
        self.pending_bytes -= group.payload

    def _add_control_event(self, offset: int, event: Dispatched | Failed) -> None:
        """A dispatch or a failure."""
        if isinstance(event, Dispatched):
            settlement = Settlement(SettleReason.DISPATCHED, offset)
            failed = 0
        else:
            settlement = Settlement(SettleReason.FAILED, offset, event.rollout_uid, NO_SEGMENT)
            failed = event.count
        chain = self._chains.get(settlement.rollout_uid) if failed else None
        if chain is not None:
            group = chain.group
        elif event.group_uid:
            key = (event.group_uid, event.example_id)
            found = self._groups.get(key)
            group = found or self._begin(key, event.group_size or self._target)
        else:
            # Nobody can say which inferred group it belongs to.
            self._settle_alone(settlement)
            return
        group.size = max(group.size, event.group_size)
        if chain is not None:
            self._drop_chain(settlement.rollout_uid, chain, SettleReason.FAILED)
        # A member fails once, however often and for whatever reasons it is said.
        if failed and settlement.rollout_uid not in group.failed_uids:
            group.failed += failed
        if failed and settlement.rollout_uid:
            group.failed_uids.add(settlement.rollout_uid)
        self._add_settlement(group, settlement)

    def _add_settlement(self, group: PendingGroup, settlement: Settlement) -> None:
        group.settlements.append(settlement)
        group.records += 1
        self.pending_records += 1
        self._close_if_due(group)
        if self.pending_records > self._records_max:
            self._expire_over_limit()

    def _reject(self, offset: int, header: RolloutHeader) -> None:
        settlement = Settlement(
            SettleReason.VERSION_REJECTED, offset, header.rollout_uid, header.segment_idx
        )
        uid = header.rollout_uid
        chain = self._chains.get(uid)
        if chain is not None:
            group = chain.group
            self._drop_chain(uid, chain, SettleReason.VERSION_REJECTED)
        elif header.group_uid:
            group = self._group_for(header)
        else:
            self._settle_alone(settlement)
            return
        if uid not in group.failed_uids:
            group.failed += 1
            group.failed_uids.add(uid)
        self._add_settlement(group, settlement)

    def _add_to_chain(
        self, group: PendingGroup, chain: Chain | None, offset: int, segment: Segment, size: int
    ) -> None:
        header = segment.header
        uid = header.rollout_uid
        if chain is None:
            chain = Chain(group, offset, self.now_us)
            self._chains[uid] = group.chains[uid] = chain
        chain.size += size
        chain.offsets[header.segment_idx] = offset
        chain.segments[header.segment_idx] = segment
        last = last_index(chain.segments)
        broken = contradicts(chain.segments)
        if not broken and last is not None and len(chain.segments) == last + 1:
            ordered = [chain.segments[idx] for idx in range(last + 1)]
            broken = not is_chain(ordered)
            if not broken:
                group.offsets += [chain.offsets[idx] for idx in range(last + 1)]
                group.segments += ordered
                group.members += 1
                del self._chains[uid], group.chains[uid]
        if broken:
            self._drop_chain(uid, chain, SettleReason.BROKEN_CHAIN)
            group.failed += 1
            # What still comes of it must not begin a trajectory that can never be whole.
            group.failed_uids.add(uid)
        self._close_if_due(group)

    def _drop_chain(self, uid: str, chain: Chain, reason: SettleReason) -> None:
        del self._chains[uid], chain.group.chains[uid]
        chain.group.settlements += [
            Settlement(reason, chain.offsets[idx], uid, idx) for idx in chain.segments
        ]

    def _advance(self, now_us: int) -> None:
        self.now_us = now_us
        while (group := self._ages.next_timed_out(now_us)) is not None:
            if group.members >= self._config.min_group_size:
                self._seal(group, SealReason.TIMEOUT)
        while (group := self._ages.next_expired(now_us)) is not None:
            self._expire(group)
        lag_limit = self.position - LAG_RECORDS_MAX
        while (group := self._ages.oldest()) is not None and group.first_offset < lag_limit:
            self._expire(group)
        # Those that are left are too old only where they outlived the group that they came with.
        while self._chains:
            uid, chain = next(iter(self._chains.items()))
            young = chain.first_ts + self._expire_after_us > now_us
            if young and chain.first_offset >= lag_limit:
                return
            self._expire_chain(uid, chain)

    def _expire_over_limit(self) -> None:
        """Over a bound: the oldest groups expire. Reading goes on, for the members that would
        complete the others are still to come."""
        while self.pending_records > self._records_max or self.pending_bytes > self._payload_max:
            oldest = self._ages.oldest()
            assert oldest is not None, "something is pending"
            self._expire(oldest)

    def _close_if_due(self, group: PendingGroup) -> None:
        if group.members + group.failed >= group.size:
            if group.members:
                self._seal(group, SealReason.FULL)
            else:
                self._settle_without_members(group)
        elif group.overdue and group.members >= self._config.min_group_size:
            self._seal(group, SealReason.TIMEOUT)

    def _settle_without_members(self, group: PendingGroup) -> None:
        self._forget(group)
        self._decide(Decision(None, group.settlements, (), len(group.settlements), 0))
        self._keep_rest(group)

    def _seal(self, group: PendingGroup, reason: SealReason) -> None:
        self._forget(group)
        header = group.segments[0].header
        due = DueGroup(
            group_key(self._environment, header, self._strict),
            group.split,
            reason,
            group.failed,
            group.offsets,
            group.segments,
            group.first_ts,
        )
        payload = group.payload - sum(chain.size for chain in group.chains.values())
        records = len(group.offsets) + len(group.settlements)
        self._decide(Decision(due, group.settlements, (), records, payload))
        self._keep_rest(group)

    def _keep_rest(self, group: PendingGroup) -> None:
        """Trajectories that are not whole go on in a new group."""
        if not group.chains:
            return
        rest = self._begin(group.key, group.size)
        for uid, chain in group.chains.items():
            chain.group = rest
            rest.chains[uid] = chain
            rest.records += len(chain.offsets)
            rest.payload += chain.size
            if self._cap is not None:
                rest.replicas[chain.replica_id] = rest.replicas.get(chain.replica_id, 0) + 1
            for segment in chain.segments.values():
                if segment.header.split != "train":
                    rest.split = segment.header.split
        self.pending_records += rest.records
        self.pending_bytes += rest.payload

    def _expire(self, group: PendingGroup) -> None:
        self._forget(group)
        rows = list(zip(group.offsets, group.segments, strict=True))
        for uid, chain in group.chains.items():
            del self._chains[uid]
            rows += chain.rows()
        self._settle_expired(group.settlements, rows, group.payload)

    def _expire_chain(self, uid: str, chain: Chain) -> None:
        """The rest of its group stays."""
        group, rows = chain.group, chain.rows()
        del self._chains[uid], group.chains[uid]
        group.records -= len(rows)
        group.payload -= chain.size
        self.pending_records -= len(rows)
        self.pending_bytes -= chain.size
        if self._cap is not None:
            group.replicas[chain.replica_id] -= 1
        if group.records == 0:
            self._forget(group)
        self._settle_expired((), rows, chain.size)

    def _settle_expired(
        self, settlements: Iterable[Settlement], rows: Sequence[tuple[int, Segment]], size: int
    ) -> None:
        settled = list(settlements)
        settled += [
            Settlement(SettleReason.EXPIRED, offset, s.header.rollout_uid, s.header.segment_idx)
            for offset, s in rows
        ]
        self._decide(Decision(None, settled, tuple(rows), len(settled), size))

    def _settle_alone(self, settlement: Settlement) -> None:
        self._decide(Decision(None, (settlement,), (), 1, 0))

    def _decide(self, decision: Decision) -> None:
        self._decided.append(decision)
        self.decided_records += decision.records
        self.decided_bytes += decision.size
