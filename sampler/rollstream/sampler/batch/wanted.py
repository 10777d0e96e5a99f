"""Which trajectories of the groups that a step carries are still to be trained on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.batch.decided import Decided
from rollstream.sampler.batch.joining import GroupRows
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import CarriedRows
from rollstream.schemas.order import UNKNOWN_STEP


def used_in(
    decided: Decided,
    carried: Mapping[int, CarriedRows],
    parts: Sequence[GroupRows],
    per_row: Mapping[str, NDArray[Any]],
) -> tuple[NDArray[np.bool_], int]:
    """bool [m], trajectories of the batch that no step trains on any more; and how many of them an
    earlier step kept to be trained on. By what was recorded of the decision alone, so that it stays
    the same.

    Args:
        carried: by slot.
        per_row: ``trajectory_index``, ``weight_steps`` and ``off_branch``, as ``Batch`` has them.
    """
    trajectories = per_row["trajectory_index"]
    choosing = Choosing.of_record(decided.choosing)
    rows = [part.group.group.rows for part in parts]
    is_carried = np.repeat([part.slot in carried for part in parts], rows)
    same = np.repeat([part.group.group.lineage == choosing.lineage for part in parts], rows)
    beyond = _beyond(decided, choosing, per_row["weight_steps"], per_row["off_branch"], same)
    if decided.algorithm >= 4:
        oldest = choosing.oldest_made_us(decided.sampled.ts)
        beyond |= _made_too_long_ago(oldest, carried, parts)
    used, left = np.zeros((2, int(trajectories.max(initial=-1)) + 1), np.bool_)
    used[trajectories[np.concatenate([_unwanted(carried, part) for part in parts])]] = True
    left[trajectories[is_carried & beyond]] = True
    return used | left, int((left & ~used).sum())


def _unwanted(carried: Mapping[int, CarriedRows], part: GroupRows) -> NDArray[np.bool_]:
    """Of each row of a group, whether an earlier step trained on it, or left it out."""
    one = carried.get(part.slot)
    if one is None:
        return np.zeros(part.group.group.rows, np.bool_)
    mask = one.group.row_mask
    return ~(one.wanted if mask is None else one.wanted[mask])


def _beyond(
    decided: Decided,
    choosing: Choosing,
    weight_steps: NDArray[np.int64],
    off_branch: NDArray[np.bool_],
    comparable: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Of each row, whether it would not be chosen for this step."""
    beyond = off_branch.copy() if choosing.off_branch == "drop" else np.zeros_like(off_branch)
    limits = [choosing.max_policy_lag, choosing.max_rollout_step_delay]
    if choosing.bounds_lag:
        newest = max(decided.current_step, decided.policy_step)
        oldest = newest - min((limit for limit in limits if limit >= 0), default=newest)
        unknown = weight_steps == UNKNOWN_STEP
        beyond |= unknown | (comparable & (weight_steps < oldest))
    return beyond


def _made_too_long_ago(
    oldest: int | None, carried: Mapping[int, CarriedRows], parts: Sequence[GroupRows]
) -> NDArray[np.bool_]:
    """Of each row of a carried group, whether the step was decided when that was too old to be
    chosen, by the clock: made before ``oldest``, in microseconds."""
    of_parts = [np.empty(0, np.bool_)]
    for part in parts:
        late = np.zeros(part.group.group.rows, np.bool_)
        if oldest is not None and part.slot in carried:
            made = part.group.rows.unpack().made_ts(part.group.sealed_ts)
            mask = carried[part.slot].group.row_mask
            late = (made if mask is None else made[mask]) < oldest
        of_parts.append(late)
    return np.concatenate(of_parts)
