"""How much better than its group each trajectory did. Pure."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollstream.sampler.arguments import array
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
    """Returns the advantage of each trajectory within its group, float32 [m].

    It is exactly 0 in a group of one, in a group whose returns are all equal, and for a return that
    is the group's mean. The standard deviation of ``grpo`` is the sample's (divided by n - 1), as
    in verl and TRL. In a group of one verl gives the return itself.

    Args:
        returns: float32 [m], of trajectories: the sum of what their segments earned.
        groups: whole numbers [m], the group of each; in any order.
        advantage: ``rloo``, ``grpo`` or ``dr_grpo``.

    Raises:
        InvalidRequest: the name is unknown, the arrays differ in length, a return or an advantage
            is no finite float32, or a group is no whole number.
    """
    if not isinstance(advantage, str) or advantage not in get_args(Advantage):
        raise InvalidRequest(
            f"advantage {advantage!r:.80} is unknown; use one of {get_args(Advantage)}"
        )
    earned, of_group = _returns(returns), _dense(groups)
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
        return as_float32("advantages", distances / others)
    distances /= sizes
    if advantage == "grpo":
        squares = np.bincount(of_group, distances**2)[of_group]
        distances /= np.sqrt(squares / others) + STD_EPSILON
    return as_float32("advantages", distances)


def as_float32(name: str, values: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers [m] as float32; refuses those of which one is none, has no end, or is too large
    for it."""
    with np.errstate(over="ignore"):
        found = values.astype(np.float32)
    for wrong in np.flatnonzero(~np.isfinite(found))[:1]:
        raise InvalidRequest(
            f"{name} has {values[wrong]} at {wrong}, which makes the loss NaN; give finite numbers "
            "that float32 has room for"
        )
    return found


def _returns(returns: ArrayLike) -> NDArray[np.float64]:
    found = _of_kind("returns", returns, "fiub", "give numbers, [m]")
    if found.ndim == 1:
        as_float32("returns", found)
    return found.astype(np.float64)


def _dense(groups: ArrayLike) -> NDArray[np.int64]:
    """The groups counted from 0, so that counts by group take no more memory than the groups."""
    found = _of_kind(
        "groups",
        groups,
        "iu",
        "give whole numbers, [m]: np.unique(ids, return_inverse=True)[1] makes them of other ids",
    )
    if found.size and (found.min() < 0 or found.max() >= found.size):
        found = np.unique(found, return_inverse=True)[1].reshape(found.shape)
    return found.astype(np.int64)


def _of_kind(name: str, values: ArrayLike, kinds: str, remedy: str) -> NDArray[Any]:
    found = array(values)
    if found.dtype.kind not in kinds and (found.size or found.dtype == object):
        raise InvalidRequest(f"{name} is {values!r:.200}; {remedy}")
    return found
