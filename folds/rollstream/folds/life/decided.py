"""What decisions do to groups: they are taken, used, given back, and end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, get_args

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


class _Parted(NamedTuple):
    log: tuple[str, int, int]
    applied: int
    to_come: list[GroupRef]
    here: list[GroupRef]


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
            for index in range((left & (1 << len(event.groups)) - 1).bit_length())
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
        self.uses.change(refs, uses.BEGIN)
        parted = self._parted(refs)
        self._take(parted)
        for log, _, to_come, here in parted:
            if to_come and self._choosing.takes_turns:
                self.to_come.serve(log, to_come, turn)
            keys = filter(None, map(self.alive.known.key_of, here))
            served = [(key.example_id, turn) for key in keys]
            if served:
                self.alive.ready.mark_served(log[0], served)

    def change(self, refs: Iterable[GroupRef], change: Change) -> None:
        """Changes the uses of each: it may be served again, or no longer."""
        forgotten = []
        for ref, found in self.uses.change(refs, change):
            if found.available:
                self.release(ref)
                continue
            if found.taken:
                self._take(self._parted([ref]))
            if not found.kept:
                forgotten.append(ref)
        self._forget(forgotten)

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
        self._take(self._parted(refs))
        self._count(refs, outcome)
        self._forget([ref for ref in refs if not self.uses.held(ref)])

    def count_all(self, ended: Iterable[GroupEnd]) -> None:
        """A use of each group, or the group, ended so."""
        by_outcome: dict[Outcome, list[GroupRef]] = {}
        for ref, outcome in ended:
            by_outcome.setdefault(outcome, []).append(ref)
        for outcome, refs in by_outcome.items():
            self._count(refs, outcome)

    def _count(self, refs: Sequence[GroupRef], outcome: Outcome) -> None:
        for log, _, to_come, here in self._parted(refs):
            if to_come:
                self.to_come.end(log, to_come, outcome)
            for key in filter(None, map(self.alive.known.key_of, here)):
                self.outcomes.add(outcome, key)

    def _end_retired(self) -> None:
        self.end(self.retired.undecidable(), "retired")

    def _forget(self, refs: Sequence[GroupRef]) -> None:
        """The groups are taken for ever, and no batch that is held has them: nobody needs them."""
        for log, _, to_come, here in self._parted(refs):
            for ref in here:
                self.alive.discard(ref)
                self.retired.discard(ref)
            self.taken.end(log, to_come)
            self.taken.end(log, here)

    def _take(self, parted: Iterable[_Parted]) -> None:
        found: list[GroupRef] = []
        for log, _, to_come, here in parted:
            self.taken.add(log, to_come)
            found += self.taken.add(log, here)
        for ref in found:
            self.retired.take(ref)
        self.alive.withdraw(found)  # One by one costs more.

    def _parted(self, refs: Iterable[GroupRef]) -> list[_Parted]:
        """By log, the groups whose flush is still to be applied, and the others; of a log that is
        not folded none ever is."""
        logs: dict[tuple[str, int, int], _Parted] = {}
        for ref in refs:
            log = ref[:3]
            parted = logs.get(log)
            if parted is None:
                # An address equals the plain tuple, which costs less to make.
                applied: int = self._applied.get(log, _NEVER)  # type: ignore[call-overload]
                parted = logs[log] = _Parted(log, applied, [], [])
            (parted.to_come if ref[3] >= parted.applied else parted.here).append(ref)
        return [*logs.values()]
