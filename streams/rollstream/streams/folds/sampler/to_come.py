"""What was decided about groups whose flush is still to be applied. Pure."""

from __future__ import annotations

from typing import Any

from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.sampler.served import Outcome


class GroupsToCome:
    """Kept until the flush of each is applied: the two kinds of log are folded in any order."""

    def __init__(self) -> None:
        self._turns: dict[GroupRef, int] = {}
        self._outcomes: dict[GroupRef, tuple[Outcome, ...]] = {}

    def serve(self, ref: GroupRef, turn: int) -> None:
        """The group was served in this turn, later than in any before."""
        self._turns[ref] = turn

    def end(self, ref: GroupRef, outcome: Outcome) -> None:
        """A use of the group, or the group, ended so."""
        self._outcomes[ref] = (*self._outcomes.get(ref, ()), outcome)

    def arrive(self, ref: GroupRef) -> tuple[int, tuple[Outcome, ...]]:
        """Its flush is applied. Returns the turn in which it was served last, 0 for none, and how
        uses ended."""
        return self._turns.pop(ref, 0), self._outcomes.pop(ref, ())

    def sorted_items(self) -> list[Any]:
        """For a digest."""
        outcomes = sorted((ref, sorted(ends)) for ref, ends in self._outcomes.items())
        return [sorted(self._turns.items()), outcomes]
