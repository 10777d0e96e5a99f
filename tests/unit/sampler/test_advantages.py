"""Advantages, beside values worked out by hand and a loop over groups."""

from __future__ import annotations

import math
import statistics
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.sampler import InvalidRequest
from rollstream.sampler.shaping.advantages import STD_EPSILON, Advantage, advantages_of

NAMES: tuple[Advantage, ...] = get_args(Advantage)
rewards = st.floats(-1000, 1000, width=32) | st.sampled_from([0.0, 1.0])
members = st.lists(st.tuples(rewards, st.integers(0, 4)), max_size=40)


@pytest.mark.proves("D2")
@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        # Group 0 earned 1, 0, 0, 1, 1: their mean is 0.6, the variance of the sample 0.3.
        ("rloo", [0.5, -0.75, -0.75, 0.5, 0.5]),
        ("dr_grpo", [0.4, -0.6, -0.6, 0.4, 0.4]),
        ("grpo", [0.7302967, -1.0954451, -1.0954451, 0.7302967, 0.7302967]),
    ],
)
def test_values_worked_out_by_hand_in_groups_that_are_not_adjacent(
    advantage: Advantage, expected: list[float]
) -> None:
    found = advantages_of([1, 7, 0, 0, 2, 1, 1, 5], [0, 1, 0, 0, 2, 0, 0, 2], advantage)
    assert found.dtype == np.float32
    assert found[[0, 2, 3, 5, 6]] == pytest.approx(expected, rel=3e-6)
    assert found[1] == 0
    two = {"rloo": 3, "dr_grpo": 1.5, "grpo": math.sqrt(0.5)}[advantage]
    assert found[[4, 7]] == pytest.approx([-two, two], rel=3e-6)


@pytest.mark.proves("D2")
@pytest.mark.parametrize("advantage", NAMES)
@given(drawn=members)
def test_advantages_are_those_of_a_loop_over_the_groups(
    advantage: Advantage, drawn: list[tuple[float, int]]
) -> None:
    returns = [reward for reward, _ in drawn]
    groups = [group for _, group in drawn]
    expected = [naive(index, returns, groups, advantage) for index in range(len(drawn))]
    found = advantages_of(returns, groups, advantage)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def naive(index: int, returns: list[float], groups: list[int], advantage: Advantage) -> float:
    """Of one trajectory, as the papers have it."""
    mates = [i for i, group in enumerate(groups) if group == groups[index]]
    others = [returns[i] for i in mates if i != index]
    if not others:
        return 0.0
    if advantage == "rloo":
        return returns[index] - statistics.fmean(others)
    of_group = [returns[i] for i in mates]
    distance = returns[index] - statistics.fmean(of_group)
    if advantage == "dr_grpo":
        return distance
    return distance / (statistics.stdev(of_group) + STD_EPSILON)


@pytest.mark.parametrize("advantage", NAMES)
@given(reward=rewards, size=st.integers(1, 40))
def test_who_did_as_all_others_has_exactly_0(
    advantage: Advantage, reward: float, size: int
) -> None:
    assert not advantages_of(np.full(size, reward, np.float32), np.zeros(size), advantage).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [0], "gae"), "advantage 'gae' is unknown; use one of"),
        (([1.0, 2.0], [0]), r"returns have shape \(2,\) and groups \(1,\)"),
        (([[1.0]], [[0]]), r"returns have shape \(1, 1\)"),
    ],
)
def test_what_is_no_argument_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        advantages_of(*arguments)
