"""When pending groups and trajectories are decided, and as what: sealed, expired, or settled.

Rules of its own, where several would do:

- Failures, broken chains, rejected versions of a group that the producer named, and members whose
  named arrays have other dtypes or shapes than those before them will never come, so they count
  towards its size. Their entries are settled together with the group, so that a restart, which does
  not see settled entries again, counts the same.
- Whatever else arrives for a group that is decided begins a new group under the same key; so do the
  trajectories that were not complete when it was sealed. The group is new, the trajectories are
  not: each expires by its own age, or one that never ends would live for as long as its key is
  sealed.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollstream.consumers.assembling.decisions import Decision, DecisionQueue, Settlement
from rollstream.consumers.assembling.fitting import parts_of, settlements_of
from rollstream.consumers.assembling.groups import PendingGroups
from rollstream.consumers.assembling.held import HeldRecords, PendingRow
from rollstream.consumers.assembling.pending import (
    Chain,
    ChainState,
    PendingEntry,
    PendingGroup,
    PendingKey,
)
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.reasons import SealReason, SettleReason

# A pending group expires at the latest when this many entries were read after its first, and so
# does a trajectory that is not complete: what is settled above the watermark is held in memory and
# read again after a restart. The worst case is twice as many: a trajectory that was completed in a
# later group waits for that group.
LAG_ENTRIES_MAX = 1_000_000


class Outcomes:
    """Decides each pending group and trajectory once: when it is complete or full, when its time is
    over, or when a bound is exceeded. Whatever an entry changes, what is due then is decided before
    the call returns.

    Args:
        environment: of the partition.
        config: how its rollouts become groups.
        watermark: every offset below it is settled.

    Attributes:
        entries: how many were read, among them the one that is being decided.
        now_us: log time.
        pending: what is not decided.
        held: the records that hold it.
        decided: what is decided and not committed.
    """

    def __init__(self, environment: str, config: EnvironmentConfig, watermark: int) -> None:
        self.entries = 0
        self.now_us = 0
        self.pending = PendingGroups(config)
        self.decided = DecisionQueue(watermark)
        self.held = HeldRecords(config.max_pending_bytes, self.decided.hold)
        self._environment = environment
        self._target = config.target_group_size
        self._min_size = config.min_group_size
        self._trains_partial = config.partial_trajectories == "train"

    def flush(self) -> None:
        """Seals every group that has enough members; the rest stays pending."""
        for group in list(self.pending.by_key.values()):
            if group.members >= self._min_size:
                self._seal(group, SealReason.FLUSH)

    def pass_over(self, entry: PendingEntry, reason: SettleReason, settled: bool = False) -> None:
        """The entry belongs to no group; it may be ``settled`` already."""
        self.held.release(entry.held, entry.entry)
        if not settled:
            self.decide([entry.settlement(reason)])

    def begin(self, key: PendingKey, group_size: int) -> PendingGroup:
        """A new group, by the newest entry; its size is the producer's, if any."""
        return self.pending.begin(key, group_size or self._target, self.entries, self.now_us)

    def fail_member(
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
        self.settle_with(group, entry, reason)

    def settle_with(self, group: PendingGroup, entry: PendingEntry, reason: SettleReason) -> None:
        """The entry is settled together with the group."""
        self.held.release(entry.held, entry.entry)
        group.settlements.append(entry.settlement(reason))
        self._hold(group)

    def _hold(self, group: PendingGroup) -> None:
        """The group has one more entry, which changed what it is."""
        group.entries += 1
        self.pending.entries += 1
        self.close_if_due(group)
        if self.pending.entries > self.pending.entries_max:
            self.expire_oldest()

    # --- trajectories ---

    def extend(
        self,
        segment: PendingEntry,
        is_last: bool,
        group: PendingGroup,
        chain: Chain | None,
        replica_id: str,
    ) -> None:
        """The trajectory has one more segment, and is begun where it had none."""
        uid = segment.uid
        if chain is None:
            chain = Chain(group, self.entries, self.now_us, replica_id)
            self.pending.chains[uid] = group.chains[uid] = chain
        self._follow(uid, chain, chain.add(segment, is_last))

    def end(self, entry: PendingEntry) -> None:
        """A trajectory of which steps are pending has so many, or as many as were read; the first
        entry that says so counts. It stays with the trajectory, as a restart has to read it again.
        """
        uid, segments = entry.value("rollout_uid"), entry.value("segment_idx")
        chain = self.pending.chains.get(uid)
        if chain is None or chain.has_end:
            self.pass_over(entry, SettleReason.NOT_OPEN)
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

    def advance(self, now_us: int) -> None:
        """Moves log time on: decides whatever waited for as long as it may."""
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
            self.decide(chain.ends, chain.pending_rows())

    def expire_oldest(self) -> None:
        """A bound is exceeded: the oldest group expires. Reading goes on, for the members that
        would complete the others are still to come."""
        oldest = self.pending.oldest()
        assert oldest is not None, "something is pending"
        self._expire(oldest)

    # --- decisions ---

    def close_if_due(self, group: PendingGroup) -> None:
        """Seals the group where it is full, or overdue with members enough."""
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
        self.decide(group.settlements, group.rows, group, reason)
        if group.chains:
            self.pending.move_chains(group, self.begin(group.key, group.size))

    def _expire(self, group: PendingGroup) -> None:
        self.pending.remove_whole(group)
        self.decide(group.settlements, group.rows, group, None)

    def decide(
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
