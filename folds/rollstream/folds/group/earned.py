"""What rollouts earned: sums, mean and spread, which exist for any finite rewards. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def returns_of(earned: NDArray[np.float64], begins: NDArray[np.bool_]) -> NDArray[np.float64]:
    """float64 [rollouts], what the segments of each earned in sum, at most the largest float; where
    they earned that much and lost it, 0. ``begins``: bool [segments], where a rollout begins."""
    with np.errstate(over="ignore", invalid="ignore"):
        returns: NDArray[np.float64] = np.add.reduceat(earned, np.flatnonzero(begins))
    return returns if np.isfinite(returns).all() else np.nan_to_num(returns)


def mean_of(values: Sequence[float]) -> float:
    """Their mean, between the least and the greatest; the same on every machine."""
    scaled, exponent = _scaled(values)
    return math.ldexp(_mean(scaled), exponent)


def spread_of(values: Sequence[float]) -> float:
    """Their standard deviation, 0 where all are equal; the same on every machine."""
    scaled, exponent = _scaled(values)
    mean = _mean(scaled)
    spread = math.sqrt(math.fsum((one - mean) ** 2 for one in scaled) / len(scaled))
    return math.ldexp(min(spread, max(map(abs, scaled))), exponent)


def _scaled(values: Sequence[float]) -> tuple[list[float], int]:
    """The values over 2 to the power of the exponent, below 1: no sum of these overflows."""
    exponent = math.frexp(max(map(abs, values)))[1]
    return [math.ldexp(one, -exponent) for one in values], exponent


def _mean(scaled: Sequence[float]) -> float:
    # Rounding may lead out of these bounds, and so beyond the largest float.
    return min(max(math.fsum(scaled) / len(scaled), min(scaled)), max(scaled))
