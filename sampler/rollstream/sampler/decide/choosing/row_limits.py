"""Which rollouts of a group are too old to be trained on. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.group.known import KnownGroup
from rollstream.folds.group.packed_rows import RowColumns
from rollstream.folds.ready.index import ReadyIndex
from rollstream.folds.state import SamplerState
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.order import UNKNOWN_STEP
from rollstream.schemas.reasons import DropReason


class KeptRows(NamedTuple):
    """What the limits leave of a group.

    Attributes:
        row_mask: bool [rows], those that are served; None: all, or the group is dropped.
        over_step_delay: rollouts that are left out since their weights are too old.
        over_timestamp_delay: others that are left out since they were made too long ago.
        drop: why the whole group is never served; None: it may be.
    """

    row_mask: NDArray[np.bool_] | None = None
    over_step_delay: int = 0
    over_timestamp_delay: int = 0
    drop: DropReason | None = None


_ALL = KeptRows()


class RowLimits:
    """``max_rollout_step_delay`` and ``max_rollout_timestamp_delay``, at one decision.

    A rollout is as old as its oldest segment and is left out whole. A group of which fewer than its
    environment's ``min_group_size`` are left is dropped.

    Args:
        step: of the weights that are updated.
        now_us: against which ages are measured.
        spread: whether groups whose rewards are all equal are not served.
    """

    def __init__(
        self, state: SamplerState, choosing: Choosing, step: int, now_us: int, *, spread: bool
    ) -> None:
        reference = state.reference(step)
        self._lineage = reference.lineage
        self._oldest_step = None
        if choosing.max_rollout_step_delay >= 0:
            self._oldest_step = reference.step - choosing.max_rollout_step_delay
        self._oldest_made_us = choosing.oldest_made_us(now_us)
        self._spread = spread
        self._least = {one.name: one.min_group_size for one in choosing.environments}

    def left_of(self, ready: ReadyIndex, packed: int, made_late: int = 0) -> KeptRows:
        """What is left of a ready group, which goes whole: ``kept``, but without a mask if the
        weights of all its rollouts are too old, or those of none.

        Args:
            made_late: how many rollouts it has, if all were made too long ago.
        """
        first = self._oldest_step
        if first is None and made_late:
            return _gone(0, made_late, DropReason.TOO_OLD)
        if first is None:
            return self.kept(ready.at(packed))
        lineage, _, rows = ready.aged(packed)
        steps = rows.steps() if lineage == self._lineage else (UNKNOWN_STEP,)
        oldest, newest = min(steps), max(steps)
        if oldest != UNKNOWN_STEP and newest < first:
            return _gone(rows.rollouts(), 0, DropReason.STALE)
        if made_late and (oldest >= first or newest == UNKNOWN_STEP):
            return _gone(0, made_late, DropReason.TOO_OLD)
        return self.kept(ready.at(packed))

    def may_be_late(self, ready: ReadyIndex, packed: int) -> bool:
        """Whether rollouts of a ready group may have been made too long ago."""
        if self._oldest_made_us is None:
            return False
        _, sealed_ts, rows = ready.aged(packed)
        return min(sealed_ts, rows.oldest_ts()) < self._oldest_made_us

    def short_by_step(self, ready: ReadyIndex) -> Iterator[int]:
        """Ready groups of several policies of which too few rollouts have weights that are not too
        old."""
        if self._oldest_step is None:
            return iter(())
        return ready.short_from(self._oldest_step, self._lineage, self._least)

    def kept(self, known: KnownGroup) -> KeptRows:
        """What is left of the group."""
        if self._oldest_step is None and self._oldest_made_us is None:
            return _ALL
        rows = known.rows.unpack()
        late_step, late_time = self._late_rows(known, rows)
        if not (late_step.any() or late_time.any()):
            return _ALL
        starts = np.flatnonzero(rows.begins)
        by_step = np.logical_or.reduceat(late_step, starts)
        by_time = np.logical_or.reduceat(late_time, starts) & ~by_step
        stays = ~(by_step | by_time)
        counts = (int(by_step.sum()), int(by_time.sum()))
        least = self._least[known.key.environment]
        drop = None
        if counts[0] and len(starts) - counts[0] < least:
            drop = DropReason.STALE
        elif int(stays.sum()) < least:
            drop = DropReason.TOO_OLD
        elif self._spread and _all_equal(rows.returns()[stays]):
            drop = DropReason.FILTERED
        of_rollout = np.cumsum(rows.begins) - 1
        return KeptRows(stays[of_rollout], *counts, drop)

    def _late_rows(
        self, known: KnownGroup, rows: RowColumns
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Of each row: whether its weights are too old, and whether it is."""
        late_step = late_time = np.zeros(len(rows.begins), np.bool_)
        if self._oldest_step is not None and known.group.lineage == self._lineage:
            steps = rows.weight_steps
            late_step = (steps != UNKNOWN_STEP) & (steps < self._oldest_step)
        if self._oldest_made_us is not None:
            late_time = rows.made_ts(known.sealed_ts) < self._oldest_made_us
        return late_step, late_time


@lru_cache(maxsize=1_024)  # Groups share the few values that there are.
def _gone(by_step: int, by_time: int, drop: DropReason) -> KeptRows:
    return KeptRows(None, by_step, by_time, drop)


def _all_equal(returns: NDArray[np.float64]) -> bool:
    return bool(returns.min() == returns.max())
