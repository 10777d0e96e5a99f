"""Refuses what a maker made where it is not what ``MadeBatch`` says. Pure.

A maker is anybody's, and what it names is recorded, carried and acked: an index that counts from
the end, or a trajectory that is there twice, would be trained on without a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollstream.sampler.arguments import array
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.training.makers.interface import BatchMaker, MadeBatch, Rollout


def check_made(
    maker: BatchMaker, rollouts: Sequence[Rollout], made: Any, batch_size: int
) -> MadeBatch:
    """What this maker made of these rollouts, of which there are ``batch_size`` at most.

    Raises:
        InvalidRequest: names the maker, the field, and what is wrong with it.
    """
    wrong = _wrong_with(rollouts, made, batch_size)
    if wrong is not None:
        raise InvalidRequest(
            f"create_batch of {type(maker).__name__} returned {wrong}; MadeBatch.of(self.rollouts, "
            "…) makes one, and docs/guides/batch_makers.md has the rules"
        )
    checked: MadeBatch = made
    return checked


def _wrong_with(rollouts: Sequence[Rollout], made: Any, batch_size: int) -> str | None:
    if not isinstance(made, MadeBatch):
        return f"{made!r:.200}, which is no MadeBatch"
    for name in ("trajectories", "kept", "filtered_groups"):
        value = getattr(made, name)
        if not (isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"):
            return f"{name} {value!r:.200}, which is no int32 array [n]"
    trained, kept = made.trajectories.tolist(), made.kept.tolist()
    if len(trained) > batch_size:
        return f"{len(trained)} trajectories, where batch_size is {batch_size}"
    advantages = array(made.advantages)
    if advantages.shape != (len(trained),) or advantages.dtype.kind != "f":
        return f"advantages {made.advantages!r:.200}, which are no float32 array [{len(trained)}]"
    if not np.isfinite(advantages).all():
        return f"advantages {made.advantages!r:.200}, which are not all finite"
    there = {rollout.trajectory: rollout for rollout in rollouts}
    for index in (*trained, *kept):
        rollout = there.pop(index, None)  # So that a second time there is none.
        if rollout is None:
            return f"trajectory {index}, which was not added, or stands there twice"
        if rollout.used:
            return f"trajectory {index}, which an earlier step trained on, or left out"
    left = sum(not rollout.used for rollout in there.values())
    counts = list(made.filtered.values()) if isinstance(made.filtered, Mapping) else [0]
    if any(count < 1 for count in counts) or sum(counts) != left:
        return f"filtered {made.filtered!r:.200}, where {left} are neither trained on nor kept"
    stay = {*trained, *kept}
    groups = {rollout.group for rollout in rollouts}
    groups -= {rollout.group for rollout in rollouts if rollout.trajectory in stay}
    if sorted(made.filtered_groups.tolist()) != sorted(groups):
        return (
            f"filtered_groups {made.filtered_groups!r:.200}, where none is trained on or kept of "
            f"{sorted(groups)}"
        )
    return None
