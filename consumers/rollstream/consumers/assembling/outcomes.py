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

from rollstream.consumers.assembling.decisions import DecisionQueue, SealDecision, Settlement
from rollstream.consumers.assembling.fitting import parts_of, settlements_of
from rollstream.consumers.assembling.groups import PendingGroups
from rollstream.consumers.assembling.held import HeldRecords, Keep, PendingRow
from rollstream.consumers.assembling.pending import (
    Chain,
    ChainState,
    PendingEntry,
    PendingGroup,
    PendingKey,
)
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.ids import SegmentId, prompt_id
from rollstream.schemas.ingest.entry import STEP_KINDS
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
        keep: asked for each record that is held.

    Attributes:
        entries: how many were read, among them the one that is being decided.
        now_us: log time.
        uncommitted: segments that are pending or decided, and prompts that are.
        pending: what is not decided.
        held: the records that hold it.
        decided: what is decided and not committed.
    """

    def __init__(
        self, environment: str, config: EnvironmentConfig, watermark: int, keep: Keep
    ) -> None:
        self.entries = 0
        self.now_us = 0
        self.uncommitted: set[SegmentId] = set()
        self.pending = PendingGroups(config)
        self.decided = DecisionQueue(watermark)
        self.held = HeldRecords(config.max_pending_bytes, self.decided.hold, keep)
        self._environment = environment
        self._target = config.target_group_size
        self._min_size = config.min_group_size
        self._trains_partial = config.partial_trajectories == "train"

    def flush(self, members_min: int | None = None, *, begun_until_us: int | None = None) -> int:
        """Seals every group that has enough members; returns how many others stay pending.

        Args:
            members_min: complete ones, 1 or more; None: ``min_group_size``.
            begun_until_us: only groups that began up to this log time; None: all.
        """
        least = self._min_size if members_min is None else members_min
        left = 0
        for group in list(self.pending.by_key.values()):
            if begun_until_us is not None and group.first_ts > begun_until_us:
                break  # Oldest first.
            if group.members >= least and (members_min is not None or not _goes_on(group)):
                self._seal(group, SealReason.FLUSH)
            else:
                left += 1
        return left

    def pass_over(self, entry: PendingEntry, reason: SettleReason, settled: bool = False) -> None:
        """The entry belongs to no group; it may be ``settled`` already."""
        self.held.release(entry.held, entry.entry)
        if not settled:
            self.decide([entry.settlement(reason)])

    def begin(self, key: PendingKey, group_size: int, *, is_prompt: bool = False) -> PendingGroup:
        """A new group, by the newest entry; its size is the producer's, if any. A prompt's is 0
        where its steps do not say it."""
        size = group_size if is_prompt else group_size or self._target
        group = self.pending.begin(key, size, self.entries, self.now_us)
        if is_prompt:
            group.is_prompt = True
            self.pending.prompts[key[0]] = group
            self.pending.begin_trajectory(group, self.now_us)
        return group

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
            self._drop_chain(chain, reason)
        if entry.kind in STEP_KINDS:
            group.remember(entry)
        group.fail(entry.uid, count, given)
        later = SettleReason.FAILED if reason is not SettleReason.BROKEN_CHAIN else reason
        named = () if chain is None else (chain.uid, *chain.names)
        group.failed_uids |= dict.fromkeys((entry.uid, *named), later)
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
        if chain is None:
            chain = Chain(segment.uid, group, self.entries, self.now_us, replica_id)
            self.pending.chains[chain.uid] = group.chains[chain.uid] = chain
        prior = segment.value("continuation_of")
        self.pending.name_chain(chain, segment.uid, *([prior] if prior else []))
        self._follow(chain, chain.add(segment, is_last))

    def end(self, entry: PendingEntry) -> None:
        """A trajectory of which steps are pending has so many, or as many as were read; the first
        entry that says so counts. It stays with the trajectory, as a restart has to read it again.
        """
        segments, chain = entry.value("segment_idx"), self.pending.ended_chain(entry)
        if chain is None or chain.lasts:
            self.pass_over(entry, SettleReason.NOT_OPEN)
            return
        self.held.release(entry.held, entry.entry)
        group = chain.group
        self._follow(chain, chain.end(entry.settlement(SettleReason.ENDED), segments))
        self._hold(group)

    def _follow(self, chain: Chain, state: ChainState) -> None:
        """What the trajectory has become changes its group."""
        group = chain.group
        if state is ChainState.COMPLETE and _is_whole(group):
            self._drop_chain(chain, SettleReason.BEYOND_SIZE)
        elif state is ChainState.COMPLETE:
            self.pending.remove_chain(chain)
            group.settlements += chain.ends
            for row in chain.rows():
                group.names.add(row.names())
            group.rows += chain.pending_rows()
            group.members += 1
        elif state is ChainState.OPEN:
            self.pending.note_waiting(chain, self.now_us)
        elif state is ChainState.BROKEN:
            self._drop_chain(chain, SettleReason.BROKEN_CHAIN)
            group.failed += 1
            # Its later segments must not begin a trajectory that can never be complete.
            uids = (chain.uid, *chain.names)
            group.failed_uids |= dict.fromkeys(uids, SettleReason.BROKEN_CHAIN)

    def _drop_chain(self, chain: Chain, reason: SettleReason) -> None:
        """Settles the trajectory's segments together with its group; only their numbers are kept
        until then."""
        self.pending.remove_chain(chain)
        rows = sorted(chain.rows(), key=lambda row: (row.held.offset, row.entry))  # As they came.
        chain.group.settlements += [*chain.ends, *(row.settlement(reason) for row in rows)]
        for row in rows:
            self.held.release(row.held, row.entry)

    # --- time and bounds ---

    def tick(self, now_us: int) -> None:
        """Moves log time on, if it is later: decides whatever waited for as long as it may. Without
        a record only for a caller that has read up to the end offset that the log had when it took
        ``now_us``; else catching up would seal groups too early."""
        if now_us <= self.now_us:
            return
        self.now_us = now_us
        pending = self.pending
        while (group := pending.next_idle(now_us)) is not None:
            self.close_if_due(group)
        while (group := pending.next_timed_out(now_us)) is not None:
            self._seal_overdue(group)
        lag_limit = self.entries + 1 - LAG_ENTRIES_MAX
        while (group := pending.oldest()) and pending.too_old(group, now_us, lag_limit):
            if not (group.overdue and self._seal_overdue(group)):
                self._expire(group)
        # Those that are left are too old only where they outlived the group that they came with.
        while pending.chains and (chain := pending.next_expired_chain(now_us, lag_limit)):
            if chain.waiting() is None:
                self.decide(chain.ends, chain.pending_rows())
                continue
            for row in chain.rows():
                self.held.release(row.held, row.entry)
            broken = [row.settlement(SettleReason.BROKEN_CHAIN) for row in chain.rows()]
            self.decide([*chain.ends, *broken])

    def expire_oldest(self) -> None:
        """A bound is exceeded: the oldest group expires. Reading goes on, for the members that
        would complete the others are still to come."""
        oldest = self.pending.oldest()
        assert oldest is not None, "something is pending"
        self._expire(oldest)

    # --- decisions ---

    def close_if_due(self, group: PendingGroup) -> None:
        """Seals the group where it is full, or overdue with members enough."""
        if group.is_prompt:
            idle = group.begun_us + self.pending.prompt_idle_us <= self.now_us
            ready = not group.chains and (_is_whole(group) or (not group.size and idle))
            full = SealReason.FULL if group.size else SealReason.IDLE
        else:
            ready, full = group.members + group.failed >= group.size, SealReason.FULL
        if ready:
            self._seal(group, full)
        elif group.overdue and group.members >= self._min_size:
            self._seal(group, SealReason.TIMEOUT)

    def _seal_overdue(self, group: PendingGroup) -> bool:
        """Seals a group whose time is over where it has members enough, trajectories that nobody
        ended among them where they are trained on."""
        chains = group.chains.values() if self._trains_partial else ()
        partial = [chain for chain in chains if chain.is_trainable()]
        if group.members + len(partial) < self._min_size:
            return False
        for chain in partial:
            self._follow(chain, ChainState.COMPLETE)
        self._seal(group, SealReason.TIMEOUT)
        return True

    def _seal(self, group: PendingGroup, reason: SealReason) -> None:
        """Decides the group; where every member failed, its settlements alone. Trajectories of a
        prompt that have not ended are late from now on."""
        if group.is_prompt:
            for chain in list(group.chains.values()):
                self._drop_chain(chain, SettleReason.LATE)
        if group.rows and group.key[0]:
            self.uncommitted.add(prompt_id(group.key[0], reason))  # As the decision has it.
        self.pending.remove(group)
        self.decide(group.settlements, group.rows, group, reason)
        if group.chains:
            self.pending.move_chains(group, self.begin(group.key, group.size))

    def _expire(self, group: PendingGroup) -> None:
        for chain in [one for one in group.chains.values() if one.waiting() is not None]:
            self._drop_chain(chain, SettleReason.BROKEN_CHAIN)
        self.pending.remove(group)
        for chain in list(group.chains.values()):
            self.pending.remove_chain(chain)
            group.rows += chain.pending_rows()
            group.settlements += chain.ends
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
        *parts, last = parts_of(SealDecision(due, settled, rows, entries, size), group, reason)
        for part in parts:
            self.decided.append(part)
        self.decided.append(last, freed)


def _is_whole(group: PendingGroup) -> bool:
    """Whether it is a prompt with as many trajectories as it is to have."""
    return group.is_prompt and 0 < group.size <= group.members + group.failed


def _goes_on(group: PendingGroup) -> bool:
    return group.is_prompt and bool(group.chains)
