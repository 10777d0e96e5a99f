"""Which groups of several policies have too few rollouts of weights from a step on. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from rollstream.folds.group.known import KnownGroup
from rollstream.folds.group.sorted_rows import SortedRows
from rollstream.schemas.order import UNKNOWN_STEP

_NEVER = np.iinfo(np.int64).max  # The step of a rollout whose weights are unknown.


class NeededSteps:
    """Of each group of several policies of a lineage: the step of the oldest rollout without which
    it has too few. A rollout is as old as its oldest segment.

    Args:
        least: fewest rollouts of a group that is served, by environment.
    """

    def __init__(self, lineage: str, least: Mapping[str, int]) -> None:
        self._lineage = lineage
        self._least = dict(least)
        self._rows = SortedRows(2)  # (Step, packed ref.)

    def is_of(self, lineage: str, least: Mapping[str, int]) -> bool:
        """Whether it was made with these."""
        return (lineage, least) == (self._lineage, self._least)

    def add(self, group: KnownGroup, packed: int) -> None:
        """The group is ready."""
        if self._has(group):
            self._rows.add(self._step(group), packed)

    def remove(self, group: KnownGroup, packed: int) -> None:
        """The group, which was ready, is so no longer."""
        if self._has(group):
            self._rows.remove(self._step(group), packed)

    def below(self, oldest_step: int) -> Iterator[int]:
        """The groups of which too few rollouts are of that step or later ones."""
        return (packed for _, packed in self._rows.below(oldest_step))

    def _has(self, group: KnownGroup) -> bool:
        return len(group.policies) > 1 and group.group.lineage == self._lineage

    def _step(self, group: KnownGroup) -> int:
        rows = group.rows.unpack()
        steps = np.where(rows.weight_steps == UNKNOWN_STEP, _NEVER, rows.weight_steps)
        oldest = np.sort(np.minimum.reduceat(steps, np.flatnonzero(rows.begins)))
        return int(oldest[-min(self._least[group.key.environment], len(oldest))])
