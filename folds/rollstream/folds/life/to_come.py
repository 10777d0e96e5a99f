"""What was decided about groups whose flush is still to be applied. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from rollstream.folds.batches.served import Outcome
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef


class Decided(NamedTuple):
    """About the groups of one flush, by their index there. After a start from the logs this is
    there of each group that was ever sealed: numbers and texts that all share, which the garbage
    collector passes over.

    Attributes:
        turns: in which a group was served last.
        outcomes: how its uses, or it, ended.
    """

    turns: dict[int, int]
    outcomes: dict[int, tuple[Outcome, ...]]


class GroupsToCome:
    """Kept until the flush of each is applied: the two kinds of log are folded in any order."""

    def __init__(self) -> None:
        self._logs: dict[tuple[str, int, int], dict[int, Decided]] = {}  # By log and offset.

    def serve(self, log: tuple[str, int, int], refs: Sequence[GroupRef], turn: int) -> None:
        """The groups of a log were served in this turn, later than in any before."""
        flushes = self._logs.setdefault(log, {})
        for *_, offset, index in refs:
            decided = flushes.get(offset) or _new(flushes, offset)
            decided.turns[index] = turn

    def end(self, log: tuple[str, int, int], refs: Sequence[GroupRef], outcome: Outcome) -> None:
        """A use of each of the groups of a log, or the group, ended so."""
        flushes, only = self._logs.setdefault(log, {}), _ONLY[outcome]
        for *_, offset, index in refs:
            outcomes = (flushes.get(offset) or _new(flushes, offset)).outcomes
            before = outcomes.get(index)
            outcomes[index] = only if before is None else (*before, outcome)

    def arrive(self, log: PartitionAddress, offset: int, groups: int) -> Decided:
        """The event at this offset is applied, which sealed so many groups. Returns what was
        decided about them."""
        decided = self._logs.get(log, {}).pop(offset, None)
        if decided is None:
            return _NOTHING
        if max((*decided.turns, *decided.outcomes)) < groups:
            return decided
        return Decided(
            {index: turn for index, turn in decided.turns.items() if index < groups},
            {index: one for index, one in decided.outcomes.items() if index < groups},
        )

    def sorted_items(self) -> list[Any]:
        """For a digest."""
        return [
            (*log, offset, index, of.turns.get(index, 0), sorted(of.outcomes.get(index, ())))
            for log, flushes in sorted(self._logs.items())
            for offset, of in sorted(flushes.items())
            for index in sorted({*of.turns, *of.outcomes})
        ]


def _new(flushes: dict[int, Decided], offset: int) -> Decided:
    flushes[offset] = Decided({}, {})
    return flushes[offset]


_NOTHING = Decided({}, {})
_ONLY: dict[Outcome, tuple[Outcome, ...]] = {one: (one,) for one in get_args(Outcome)}
