"""What was decided about groups whose flush is still to be applied. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.sampler.served import Outcome


class Decided(NamedTuple):
    """About one group.

    Attributes:
        turn: in which it was served last; 0: in none.
        outcomes: how its uses, or it, ended.
    """

    turn: int = 0
    outcomes: tuple[Outcome, ...] = ()


class GroupsToCome:
    """Kept until the flush of each is applied: the two kinds of log are folded in any order."""

    def __init__(self) -> None:
        # By log, offset of the flush, index there.
        self._logs: dict[tuple[str, int, int], dict[int, dict[int, Decided]]] = {}

    def serve(self, ref: GroupRef, turn: int) -> None:
        """The group was served in this turn, later than in any before."""
        of_flush = self._of_flush(ref)
        of_flush[ref[4]] = Decided(turn, of_flush.get(ref[4], _NOTHING).outcomes)

    def end(self, ref: GroupRef, outcome: Outcome) -> None:
        """A use of the group, or the group, ended so."""
        of_flush = self._of_flush(ref)
        turn, outcomes = of_flush.get(ref[4], _NOTHING)
        of_flush[ref[4]] = Decided(turn, (*outcomes, outcome) if outcomes else _ONLY[outcome])

    def arrive(self, log: PartitionAddress, offset: int, groups: int) -> list[tuple[int, Decided]]:
        """The event at this offset is applied, which sealed so many groups. Returns what was
        decided about them, by index."""
        decided = self._logs.get(log, {}).pop(offset, {})
        return [(index, one) for index, one in decided.items() if index < groups]

    def sorted_items(self) -> list[Any]:
        """For a digest."""
        return [
            (*log, offset, index, decided.turn, sorted(decided.outcomes))
            for log, flushes in sorted(self._logs.items())
            for offset, groups in sorted(flushes.items())
            for index, decided in sorted(groups.items())
        ]

    def _of_flush(self, ref: GroupRef) -> dict[int, Decided]:
        try:
            return self._logs[ref[:3]][ref[3]]
        except KeyError:
            return self._logs.setdefault(ref[:3], {}).setdefault(ref[3], {})


_NOTHING = Decided()
_ONLY: dict[Outcome, tuple[Outcome, ...]] = {one: (one,) for one in get_args(Outcome)}
