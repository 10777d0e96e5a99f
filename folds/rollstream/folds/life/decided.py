"""What decisions do to groups: they are taken, used, given back, and end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from rollstream.folds.batches.row_ends import GroupEnd
from rollstream.folds.batches.served import Outcome
from rollstream.folds.group.eligible import Stand, stand_of
from rollstream.folds.group.example_counts import ExampleCounts
from rollstream.folds.group.known import KnownGroup
from rollstream.folds.life import uses
from rollstream.folds.life.alive_groups import AliveGroups
from rollstream.folds.life.retired import RetiredGroups
from rollstream.folds.life.taken import TakenGroups
from rollstream.folds.life.to_come import GroupsToCome
from rollstream.folds.life.uses import Change, GroupUses
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import Event, Flushed, LogPosition, Retired
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef, position_of

_NEVER = 1 << 62  # Above every offset.


class DecidedGroups:
    """Whatever the order in which flushes and the decisions about their groups are folded.

    Args:
        applied: the next offset of each seal log to be applied.

    Attributes:
        alive: those that have not ended, or that a batch holds.
        uses: how often each was served, and may be.
        taken: by a batch, or for ever.
        retired: those whose file is.
        to_come: what was decided about groups whose flush is still to be applied.
        outcomes: how groups ended.
    """

    def __init__(self, choosing: Choosing, applied: dict[PartitionAddress, int]) -> None:
        self.alive = AliveGroups(choosing, list(applied))
        self.uses = GroupUses(choosing.max_samples)
        self.taken = TakenGroups()
        self.retired = RetiredGroups()
        self.to_come = GroupsToCome()
        self.outcomes = ExampleCounts(get_args(Outcome))
        # Of another start's settings those that a fold looks at are the same.
        self._choosing = choosing
        self._applied = applied

    # Events of the seal logs.

    def of_flush(
        self, log: PartitionAddress, offset: int, event: Event, logged_ts: int
    ) -> list[tuple[KnownGroup, Stand]]:
        """The groups of a flush of which more than their keys is needed, and how they stand; none
        of another event. Changes nothing, and raises where the event does not hold together."""
        if not isinstance(event, Flushed):
            return []
        taken, left = self.taken.of_flush(log, offset)
        # Of most groups of a start from the logs all was decided: their keys are enough.
        wanted = [
            index
            for index in range(len(event.groups))
            if left >> index & 1
            and (not taken >> index & 1 or self.uses.held(GroupRef(*log, offset, index)))
        ]
        return self.alive.of_flush(log, offset, event, logged_ts, wanted, self._choosing)

    def apply(
        self,
        log: PartitionAddress,
        offset: int,
        event: Event,
        groups: Sequence[tuple[KnownGroup, Stand]],
    ) -> None:
        """Applies the next event of a seal log, and its groups as ``of_flush`` gave them: whatever
        may raise was done there."""
        examples = event.groups.example_ids if isinstance(event, Flushed) else ()
        taken, _ = self.taken.of_flush(log, offset)
        self.taken.apply(log, self._applied[log], offset, len(examples))
        self._applied[log] = offset + 1
        if isinstance(event, Retired) and event.files:
            self._retire(log, offset, event)
        turns, outcomes = self.to_come.arrive(log, offset, len(examples))
        served = [(examples[index], turn) for index, turn in turns.items()]
        self.alive.ready.mark_served(log.environment, served)
        ended = [(examples[index], outcome) for index, outcome in outcomes.items()]
        self.outcomes.add_all(log.environment, ended)
        for group, stand in groups:
            self.alive.arrive(group)
            if not taken >> group.ref.index_in_flush & 1:
                self.alive.add(group, stand)
            elif group.is_train:
                self.alive.known.put(group)  # A batch is held for it: all but few of a start.

    def _retire(self, log: PartitionAddress, offset: int, event: Retired) -> None:
        """Groups of these files are not ready any more. Those that the decision log takes later
        were decided before: of these it counts what was decided."""
        for file in event.files:
            for known in self.alive.known.of_flush(log, file.offset):
                if known.file.path == file.path:
                    self.retired.add(known.ref, offset, taken=known.ref in self.taken)
                    self.alive.withdraw([known.ref])
        self.retired.newest[log] = offset
        self._end_retired()

    # Decisions.

    def record(self, cursor: Sequence[LogPosition]) -> None:
        """A decision was made with this cursor."""
        if self.retired.record(position_of(cursor)):
            self._end_retired()

    def serve(self, refs: Sequence[GroupRef], turn: int) -> None:
        """A batch of this turn takes the groups."""
        served: dict[str, list[tuple[str, int]]] = {}
        self.uses.change(refs, uses.BEGIN)
        self._take(refs)
        for ref in refs:
            if self._is_to_come(ref):
                if self._choosing.takes_turns:
                    self.to_come.serve(ref, turn)
            elif (key := self.alive.known.key_of(ref)) is not None:
                served.setdefault(key.environment, []).append((key.example_id, turn))
        for environment, examples in served.items():
            self.alive.ready.mark_served(environment, examples)

    def change(self, refs: Iterable[GroupRef], change: Change) -> None:
        """Changes the uses of each: it may be served again, or no longer."""
        for ref, found in self.uses.change(refs, change):
            if found.available:
                self.release(ref)
                continue
            if found.taken:
                self._take([ref])
            if not found.kept:
                self._forget(ref)

    def release(self, ref: GroupRef) -> None:
        """The group may be served (again)."""
        if not self.taken.remove(ref):
            return
        if self.retired.release(ref):
            self._end_retired()
            return
        if (known := self.alive.known.pop(ref, None)) is not None:
            self.alive.add(known, stand_of(known, self._choosing))

    def drop(self, refs: Sequence[GroupRef], reason: Outcome) -> None:
        """The groups will never be served (again), unless a release gives them back."""
        self.uses.drop(refs, reason)
        self._end(refs, reason)

    def end(self, refs: Sequence[GroupRef], outcome: Outcome) -> None:
        """The groups will never be served (again)."""
        self.uses.change(refs, uses.END)
        self._end(refs, outcome)

    def _end(self, refs: Sequence[GroupRef], outcome: Outcome) -> None:
        self._take(refs)
        for ref in refs:
            self.count(ref, outcome)
            if not self.uses.held(ref):
                self._forget(ref)

    def count(self, ref: GroupRef, outcome: Outcome) -> None:
        """A use of the group, or the group, ended so."""
        if self._is_to_come(ref):
            self.to_come.end(ref, outcome)
        elif (key := self.alive.known.key_of(ref)) is not None:
            self.outcomes.add(outcome, key)

    def count_all(self, ended: Iterable[GroupEnd]) -> None:
        """``count`` for each."""
        for ref, outcome in ended:
            self.count(ref, outcome)

    def _end_retired(self) -> None:
        self.end(self.retired.undecidable(), "retired")

    def _forget(self, ref: GroupRef) -> None:
        """The group is taken for ever, and no batch that is held has it: nobody needs it."""
        if not self._is_to_come(ref):
            self.alive.discard(ref)
            self.retired.discard(ref)
        self.taken.end(ref)

    def _take(self, refs: Sequence[GroupRef]) -> None:
        # One that is taken, or to come, as most are of a start from the logs, is not ready.
        found = [ref for ref in refs if self.taken.add(ref) and not self._is_to_come(ref)]
        for ref in found:
            self.retired.take(ref)
        self.alive.withdraw(found)  # One by one costs more.

    def _is_to_come(self, ref: GroupRef) -> bool:
        """Whether the flush of the group is still to be applied; of another log none ever is."""
        # An address equals the plain tuple, which costs less to make.
        applied: int = self._applied.get(ref[:3], _NEVER)  # type: ignore[call-overload]
        return ref.offset >= applied
