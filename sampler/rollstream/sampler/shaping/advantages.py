"""How much better than its group each trajectory did. Pure."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollstream.sampler.errors import InvalidRequest

Advantage = Literal["rloo", "grpo", "dr_grpo"]
"""``rloo``: return minus the mean of the others in its group (Kool et al. 2019; Ahmadian et al.
2024, arXiv:2402.14740). ``grpo``: return minus the group's mean, divided by the group's standard
deviation (Shao et al. 2024, DeepSeekMath, arXiv:2402.03300). ``dr_grpo``: minus the group's mean
alone (Liu et al. 2025, arXiv:2503.20783)."""
STD_EPSILON = 1e-6
"""Added to the standard deviation, as verl does; TRL adds 1e-4, and the paper nothing."""


def advantages_of(
    returns: ArrayLike, groups: ArrayLike, advantage: Advantage = "rloo"
) -> NDArray[np.float32]:
    """The advantage of each trajectory, float32 [m]. A group of one has 0, and so has one whose
    returns are all equal: exactly, and so has a trajectory whose return is the group's mean.

    The standard deviation of ``grpo`` is the sample's (divided by n - 1), as in verl and TRL, whose
    ``torch.std`` it is; the paper leaves it open. In a group of one verl gives the return itself.

    Args:
        returns: float32 [m], of trajectories: the sum of what their segments earned.
        groups: int32 [m], which group each belongs to, from 0; they need not be adjacent.

    Raises:
        InvalidRequest: the name is unknown, or the arrays differ in length.
    """
    if advantage not in get_args(Advantage):
        raise InvalidRequest(
            f"advantage {advantage!r:.80} is unknown; use one of {get_args(Advantage)}"
        )
    earned, of_group = np.asarray(returns, np.float64), np.asarray(groups, np.int64)
    if earned.ndim != 1 or earned.shape != of_group.shape:
        raise InvalidRequest(
            f"returns have shape {earned.shape} and groups {of_group.shape}; give one of each for "
            "every trajectory"
        )
    sizes = np.bincount(of_group)[of_group]
    # n times the distance to the mean: sums of float32 are exact in float64, a mean is not.
    distances = earned * sizes - np.bincount(of_group, earned)[of_group]
    others = np.maximum(sizes - 1, 1)
    if advantage == "rloo":
        return (distances / others).astype(np.float32)
    distances /= sizes
    if advantage == "grpo":
        squares = np.bincount(of_group, distances**2)[of_group]
        distances /= np.sqrt(squares / others) + STD_EPSILON
    return distances.astype(np.float32)
