"""The sampler's state: a fold over the seal logs and its own decision log. Pure.

The two kinds of log may be folded in any interleaving: a decision about a group whose flush was not
applied yet is kept until it is. So every reader reaches the same state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter

import xxhash

from rollstream.folds.batches.life import BatchLife, Change, FinalTo
from rollstream.folds.batches.row_ends import RowEnds
from rollstream.folds.batches.served import Outcome, ServedBatch
from rollstream.folds.branches import Branches, branches_at
from rollstream.folds.group.known import Key, KnownGroup
from rollstream.folds.group.scored import Given
from rollstream.folds.life import uses
from rollstream.folds.life.decided import DecidedGroups
from rollstream.folds.life.dispatched import DispatchedGroups
from rollstream.folds.pace import Pace
from rollstream.folds.published import PublishedPolicies
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import (
    Acked,
    BatchServed,
    ChosenGroup,
    Claimed,
    CurrentStepSet,
    CursorRecorded,
    Dropped,
    Event,
    LogPosition,
    PolicyPublished,
    Replaced,
    Resumed,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.order import UNKNOWN_STEP, Branch, Policy, PolicyRef, off_branch
from rollstream.schemas.reasons import DropReason
from rollstream.streams.folds.refs import GroupRef, ref_of
from rollstream.streams.owned.fold import FoldCheckpoint

FINAL_BATCHES_KEPT = 512  # Final batches that a trainer can still ask for; the log keeps all.
NOTHING = -1
_CHOSEN = (
    *("seed", "lineage", "bounds_lag", "max_samples", "scorer", "score_version"),
    *("filters", "takes_turns", "least_of_aged"),
)
_FOLDED_BY = attrgetter("name", "late.waits_us", *(f"choosing.{name}" for name in _CHOSEN))


class SamplerState:
    """What a sampler knows and has decided. Only ``apply`` and ``apply_groups`` change it.

    Attributes:
        owner: who claimed the decision log last; empty: nobody did.
        claimed_at: offset of that claim; -1: there is none.
        trainer_epoch: of the newest resume; 0 before the first.
        policy_epoch: of the policies that are published now.
        epoch_used: whether policies of that epoch may exist.
        is_pool: whether a pool's reader ever began: each example is a prompt that does not come
            back, so what ended is counted for all of an environment as one, "".
        branches: one a policy epoch that a resume began.
        current_step: what the trainer last called the current step; None: it never did since it
            resumed.
        batches: by step, in order; open ones and the newest final ones.
        ends: how the rows of final batches ended, and which may still be carried.
        published: the policies that workers can sample with.
        over_step_delay, over_timestamp_delay: rollouts of final batches and dropped groups that
            were too old, by their weights, and by their time alone.
        dispatched: groups that are not back yet, or never came.
        pace: how fast rollouts are sealed, and how long that and acks take.
        late: which groups take late scores, and which wait for them.
        evaluated: groups that are never served for training.
        events: how many were applied, of all logs.
        aside: logs that are not read on, each with the reason: not folded, but said by who reads.
    """

    def __init__(self, name: str, choosing: Choosing, logs: Sequence[PartitionAddress]) -> None:
        self.name = name
        self.choosing = choosing
        self.owner = ""
        self.claimed_at = NOTHING
        self.epoch_used = self.is_pool = False
        self.trainer_epoch = self.policy_epoch = 0
        self.branches = Branches()
        self._newest_kept = NOTHING  # Step of the newest policy that the newest resume kept.
        self.current_step: int | None = None
        self._life = BatchLife()
        self.batches = self._life.batches
        self._pinned: dict[int, tuple[GroupRef, ...]] = {}  # By step that may be carried from.
        self.published = PublishedPolicies()
        self.dispatched = DispatchedGroups()
        self.pace = Pace()
        self.over_step_delay = self.over_timestamp_delay = 0
        self.aside: Mapping[str, str] = {}
        self._turn = self.events = 0
        self._applied: dict[PartitionAddress, int] = dict.fromkeys(sorted(logs), 0)
        self._seal_claims: dict[PartitionAddress, tuple[int, str]] = {}
        self._groups = DecidedGroups(choosing, self._applied)
        self._alive, self.uses = self._groups.alive, self._groups.uses
        self.outcomes, self.ends = self._groups.outcomes, RowEnds()
        self._known, self.ready = self._alive.known, self._alive.ready
        self.waiting, self.late = self._alive.waiting, self._alive.late
        self.evaluated = self._alive.evaluated

    # Questions.

    @property
    def next_step(self) -> int:
        """The first step that was not served."""
        return self._life.next_step

    @property
    def final_step(self) -> int:
        """The newest step that ever was final; -1: none was."""
        return self._life.final_step

    @property
    def over(self) -> bool:
        """Whether the run was finished, and nothing was decided since."""
        return self._life.over

    @property
    def over_decided_at(self) -> int:
        """Offset of the decision that finished it, or began it again; -1: none did."""
        return self._life.over_decided_at

    def is_like(self, other: SamplerState) -> bool:
        """Whether both fold the logs of one sampler to the same: of the settings a fold looks at
        these alone."""
        logs_are_same = self._applied.keys() == other._applied.keys()
        return logs_are_same and _FOLDED_BY(self) == _FOLDED_BY(other)

    def cursor(self) -> tuple[LogPosition, ...]:
        """How far the logs were applied, by environment, generation, partition."""
        return tuple(
            LogPosition(
                **log._asdict(),
                groups_next_offset=offset,
                scores_next_offset=self.late.applied(log),
            )
            for log, offset in self._applied.items()
        )

    def applied(self, log: PartitionAddress) -> int:
        """The next offset of this seal log to be applied."""
        return self._applied[log]

    def claim_of(self, log: PartitionAddress) -> tuple[int, str] | None:
        """Offset and nonce of the newest claim of this seal log that was applied: whoever reads it
        from there on finds what is to be applied next. None: there is none."""
        return self._seal_claims.get(log)

    def taken_before(self, log: PartitionAddress, offset: int) -> int:
        """How many groups of flushes before ``offset``, the first that was applied, are taken."""
        return self._groups.taken.count_before(log, offset)

    def is_done(self, ref: GroupRef) -> bool:
        """Whether the group is in a final batch, or will never be served: it stays so, since a
        final batch is never released. Known from the decision log alone."""
        return ref in self._groups.taken and not self.is_open(ref)

    def is_open(self, ref: GroupRef) -> bool:
        """Whether the group is in a batch that is not final, or that the next step may carry it
        from."""
        return self.uses.is_open(ref)

    def recorded(self, log: PartitionAddress) -> int:
        """How far the seal log was applied, by the newest cursor in the decision log; 0 before."""
        return self._groups.retired.recorded.get(log, 0)

    def is_retired(self, ref: GroupRef) -> bool:
        """Whether the file of a group in a batch that is held was retired."""
        return ref in self._groups.retired

    @property
    def cursor_is_due(self) -> bool:
        """Whether files were retired that a later decision may name, by the recorded cursor."""
        return self._groups.retired.cursor_is_due

    def group(self, chosen: ChosenGroup) -> KnownGroup | None:
        """The group as it was sealed; None where its seal log was not applied that far."""
        return self._known.get(ref_of(chosen))

    def key(self, chosen: ChosenGroup) -> Key | None:
        """The key of that group alone."""
        return self._known.key_of(ref_of(chosen))

    def paths(self, environment: str) -> list[str]:
        """Files of flushes of the environment with groups that are known and have not ended, but
        for retired files."""
        retired = {one.file.path for ref in self._groups.retired if (one := self._known.get(ref))}
        return sorted(self._known.paths(environment) - retired)

    def sealed(self, ref: GroupRef) -> KnownGroup:
        """A group that is ready, waits, or is in a batch that is held."""
        return self._known[ref]

    def known_as(self, group_ids: Collection[str]) -> list[KnownGroup]:
        """Those of these ids that are ready, wait, or are in a batch that is held."""
        return self._known.with_ids(group_ids)

    def undecided(self, group_ids: Collection[str]) -> list[GroupRef]:
        """Of groups of these ids: those that are ready or wait."""
        refs = [known.ref for known in self.known_as(group_ids)]
        return [ref for ref in refs if ref in self.ready or ref in self.waiting]

    def branches_of(self, batch: ServedBatch) -> tuple[Branch, ...]:
        """Those that resumes had begun when its groups were chosen, as they were known then."""
        return branches_at(self.branches.entries(), batch.policy_epoch, batch.chosen_at)

    def open_batches(self) -> list[ServedBatch]:
        """Served and not final."""
        return self._life.opened()

    def open_groups(self) -> set[GroupRef]:
        """Those of ``is_open``."""
        opened = {ref for batch in self.open_batches() for ref in batch.all_refs}
        return opened.union(*self._pinned.values())

    def unacked(self, max_samples: int) -> tuple[Counter[str], Counter[str]]:
        """By environment the groups in batches that are neither acked nor final, and how often
        these may be served once more, with this limit."""
        skipped = Counter(one.refs[slot] for one in self.open_batches() for slot in one.untrained)
        return self.uses.unacked(max_samples, skipped)

    def left(self) -> Iterator[tuple[Key, str]]:
        """Of groups in final batches that do not count as anything yet: key and ``as_of_now``."""
        return self.ends.uncounted(self._known.key_of, over=self.over)

    def newest_policy(self) -> Policy | None:
        """Of the policy epoch in effect."""
        return self.published.newest(self.choosing.lineage, self.policy_epoch)

    def newest_step_on_branch(self) -> int:
        """Of the newest policy that the trainer has not left: after a resume one of an earlier
        epoch, until it publishes; ``NOTHING``: there is none."""
        published = self.published.newest_step(self.policy_epoch)
        return self._newest_kept if published == UNKNOWN_STEP else published

    def clock(self, step: int) -> int:
        """The weights that the batch of ``step`` updates, or what the trainer calls its step."""
        return step if self.current_step is None else self.current_step

    def reference(self, step: int) -> PolicyRef:
        """What lag is measured against when weights ``step`` are updated."""
        published = self.published.newest_step(self.policy_epoch)
        return PolicyRef(self.choosing.lineage, self.policy_epoch, max(step, published))

    def possible(self) -> PolicyRef:
        """The newest weights that the trainer may have made: batch n, as soon as it is served,
        turns weights n into n + 1."""
        return PolicyRef(self.choosing.lineage, self.policy_epoch, self.next_step)

    # The fold.

    def put_aside(self, reasons: Mapping[str, str]) -> None:
        """These logs are not read on. What was folded stays, and so does the cursor.

        Args:
            reasons: topic and partition to the reason, of logs of scores too.
        """
        self.aside = reasons

    def start_at(self, log: PartitionAddress, offset: int) -> None:
        """The seal log is applied from ``offset`` on; nothing is kept for groups before it."""
        self._applied[log] = offset

    def apply_groups(
        self, log: PartitionAddress, offset: int, event: Event, logged_ts: int = 0
    ) -> None:
        """Applies the next event of a seal log that counts, by rising offset. One that does not
        hold together changes nothing.

        Args:
            logged_ts: log time of its record, up to which scores of its groups are in time; 0: not
                known, and scores are in time however old they are.
        """
        assert offset >= self._applied[log], (log, offset, self._applied[log])
        groups = self._groups.of_flush(log, offset, event, logged_ts)
        self.dispatched.apply(log, event)
        self.pace.apply(log, event, logged_ts)
        self.events += 1
        if isinstance(event, Claimed):
            self._seal_claims[log] = (offset, event.nonce)
        self._groups.apply(log, offset, event, groups)
        self._alive.end_flush(log, event, logged_ts)

    def apply_scores(self, log: PartitionAddress, offset: int, given: Given) -> None:
        """Applies the next record of a log of scores, by rising offset."""
        self.events += 1
        self._alive.score(log, offset, given, self.choosing)

    def apply(self, offset: int, timestamp_us: int, event: Event) -> None:
        """Applies the next event of the decision log that counts, by rising offset."""
        self.events += 1
        self.late.passed(timestamp_us)
        self.published.apply(offset, timestamp_us, event)
        if isinstance(event, Resumed):
            self._begin_epoch(offset, event)
        for change in self._life.apply(offset, event, finals_kept=FINAL_BATCHES_KEPT):
            self._follow(change, event)
        match event:
            case Resumed() if self._pinned:
                self._pin()
            case PolicyPublished():
                self.epoch_used = True
                self.branches.publish(offset, event)
            case Dropped():
                for group in event.groups:
                    self.over_step_delay += group.over_step_delay
                    self.over_timestamp_delay += group.over_timestamp_delay
                refs = [ref_of(group) for group in event.groups]
                self._groups.drop(refs, DropReason(event.reason).value)
            case CurrentStepSet():
                self.current_step = event.step
            case Claimed():
                self.owner, self.claimed_at = event.owner, offset
            case CursorRecorded():
                self._groups.record(event.cursor)

    def checkpoint(self, claims: Sequence[int]) -> FoldCheckpoint:
        """Every decision matters for ever: a fold begins with the oldest claim."""
        counts = {"served": self._turn, "open": len(self.open_batches())}
        return FoldCheckpoint(claims[0], NOTHING, counts)

    def digest(self) -> bytes:
        """Equal for equal states, whatever the interleaving of the logs."""
        state = xxhash.xxh3_128()
        for part in (
            (
                self.over,
                self.over_decided_at,
                self.trainer_epoch,
                self.policy_epoch,
                self.epoch_used,
                self.is_pool,
                self._turn,
            ),
            (self.next_step, self._life.served_end, self.current_step, self.final_step),
            self.evaluated.sorted_items(),
            (self.over_step_delay, self.over_timestamp_delay),
            self.branches.entries(),
            [
                (
                    *(step, b.offset, b.batch_id, b.digest, b.status),
                    *(b.skipped, b.filtered, b.final, b.replaced, b.outcome_bytes),
                )
                for step, b in sorted(self.batches.items())
            ],
            sorted(self.published.versions.items()),
            (self.published.offset, sorted(self.published.kept.items())),
            sorted(self._applied.items()),
            self._groups.taken.sorted_items(),
            (self.ready.refs(), self.ready.turns()),
            sorted(self.waiting.items()),
            sorted(self._known),
            (self.uses.sorted_items(), self._groups.retired.sorted_items()),
            (self._groups.to_come.sorted_items(), self.outcomes.sorted_items()),
            self.ends.sorted_items(),
            self.dispatched.sorted_items(),
            (self.late.sorted_items(), self._alive.scores(), self.pace.sorted_items()),
        ):
            state.update(repr(part).encode())
        return state.digest()

    def _follow(self, change: Change, event: Event) -> None:
        """What a change in the life of a batch means for its groups."""
        if isinstance(change, FinalTo):
            if self._pinned:
                self._pin()
            if change.releases:
                self._groups.count_all(self.ends.release(change.step, self.batches)[1])
            return
        state, batch, before = change
        if state == "served":
            self.epoch_used = True
            self._hand_out(batch.event, batch.refs)
            self.uses.change(batch.carried_refs, uses.CARRY)
            if self._pinned or batch.is_shaped:
                self._pin()
        elif isinstance(event, Replaced):
            self._replace(event, batch, before)
        elif isinstance(event, Acked):
            if before.status is None and not before.final:
                self.pace.acked(event.now_ts - batch.since_ts)
                self._groups.change(batch.acked, uses.ACK)
        elif state == "final":
            self._finish(batch)
        elif state == "replayed" and not batch.final:
            self._groups.change(before.acked, uses.REOPEN)
        elif state == "released":
            self._groups.change(batch.acked, uses.REOPEN)
            self._groups.change(batch.refs, uses.GIVE_BACK)
            self._groups.change(batch.carried_refs, uses.FORGET)
        elif state == "forgotten":  # Groups that were used up stay taken.
            self._groups.change(batch.all_refs, uses.FORGET)

    def _hand_out(self, event: BatchServed | Replaced, refs: Sequence[GroupRef]) -> None:
        self._groups.change(self.uses.limit_by(event.choosing), uses.USE_UP)
        self._groups.record(event.cursor)
        self._turn = self.ready.begin_turn(self.reference(self.clock(event.step)))
        self._groups.serve(refs, self._turn)

    def _replace(self, event: Replaced, batch: ServedBatch, before: ServedBatch) -> None:
        outcome: Outcome = "unreadable" if event.outcome == "unreadable" else "filtered"
        slots = event.slots.tolist()
        others = [before.refs[slot] for slot in slots]
        self.uses.change(others, uses.GIVE_BACK)
        self._groups.end(others, outcome)
        self._hand_out(event, [batch.refs[slot] for slot in slots])
        if event.step in self._pinned:
            self._pin()

    def _finish(self, batch: ServedBatch) -> None:
        """The batch is final from now on."""
        self._groups.count_all(self.ends.finish(batch)[1])
        for chosen in batch.groups:
            self.over_step_delay += chosen.over_step_delay
            self.over_timestamp_delay += chosen.over_timestamp_delay
        trained = dict(enumerate(batch.refs))
        skipped = [trained.pop(slot) for slot in {*batch.untrained} & trained.keys()]
        finish = uses.FINISH_UNACKED if batch.status is None else uses.FINISH_ACKED
        self._groups.change(trained.values(), finish)
        self._groups.change(skipped, uses.SKIP)

    def _begin_epoch(self, offset: int, event: Resumed) -> None:
        if event.reads_pool and not self.is_pool:
            self.is_pool = True
            self.outcomes.count_as_one()
            self.dispatched.count_as_one()
        self.trainer_epoch, self.current_step = event.trainer_epoch, None
        self.uses.begin_epoch(event.trainer_epoch)
        if event.policy_epoch != self.policy_epoch:
            self.policy_epoch = event.policy_epoch
            self.epoch_used = False
        self.branches.resume(offset, event)
        before = self.published.newest_on(self.branches.now())
        kept = before and not off_branch(PolicyRef("", *before), self.branches.now())
        self._newest_kept = before[1] if before and kept else NOTHING

    def _pin(self) -> None:
        """A step may carry groups of the one before. So those of shaped batches are needed, and are
        not served again, while the batch is open, is the newest, or is the newest final one, to
        which a release goes back."""
        final = max((at for at, batch in self.batches.items() if batch.final), default=NOTHING)
        pinned = {
            at: batch.all_refs
            for at, batch in self.batches.items()
            if (not batch.final or at in (final, self.next_step - 1)) and batch.is_shaped
        }
        before, self._pinned = self._pinned, pinned
        # Those of one that is new first: what both have is not ready between.
        # They may be ready: a release goes back to a batch that is final long since.
        self._groups.change(_refs_of(pinned, before), uses.PIN)
        self._groups.change(_refs_of(before, pinned), uses.UNPIN)


def _refs_of(
    steps: Mapping[int, tuple[GroupRef, ...]], others: Mapping[int, tuple[GroupRef, ...]]
) -> list[GroupRef]:
    """The groups of those that are not the same among the others."""
    return [ref for at, refs in steps.items() if others.get(at) != refs for ref in refs]
