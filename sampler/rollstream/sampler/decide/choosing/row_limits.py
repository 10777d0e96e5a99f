"""Which rollouts of a group are too old to be trained on. Pure."""

from __future__ import annotations

from collections.abc import Iterator
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

    def all_made_late(self, rollouts: int) -> KeptRows | None:
        """What is left of a group whose rollouts, so many, were all made too long ago: nothing;
        None: ask ``kept``, for which ones have too old weights, too."""
        if self._oldest_step is not None:
            return None
        return KeptRows(None, 0, rollouts, DropReason.TOO_OLD)

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


def _all_equal(returns: NDArray[np.float64]) -> bool:
    return bool(returns.min() == returns.max())
