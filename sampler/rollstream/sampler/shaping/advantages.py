"""How much better than its group each trajectory did. Pure."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Advantage = Literal["rloo", "grpo", "dr_grpo"]
"""``rloo``: return minus the mean of the others in its group (Ahmadian et al. 2024, Kool et al.
2019). ``grpo``: return minus the group's mean, divided by the group's standard deviation (Shao et
al. 2024, DeepSeekMath). ``dr_grpo``: minus the group's mean alone (Liu et al. 2025)."""


def advantages_of(
    returns: NDArray[np.float32], groups: NDArray[np.int32], advantage: Advantage = "rloo"
) -> NDArray[np.float32]:
    """The advantage of each trajectory, float32 [m]; a group of one has 0.

    Args:
        returns: float32 [m], of trajectories: the sum of what their segments earned.
        groups: int32 [m], which group each belongs to; they need not be adjacent.

    Raises:
        InvalidRequest: the name is unknown, or the arrays differ in length.
    """
    raise NotImplementedError
