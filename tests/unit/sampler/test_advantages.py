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
from rollstream.sampler.training.examples.advantages import STD_EPSILON, Advantage, advantages_of

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
    assert not advantages_of(
        np.full(size, reward, np.float32), np.zeros(size, int), advantage
    ).any()


@pytest.mark.parametrize("advantage", NAMES)
@pytest.mark.parametrize(
    "groups",
    [[7, 7, 900_000_000_000], [-3, -3, -1], np.array([2**64 - 1, 2**64 - 1, 0], np.uint64)],
)
def test_ids_of_groups_may_be_any_whole_numbers(advantage: Advantage, groups: Any) -> None:
    found = advantages_of([1.0, 3.0, 9.0], groups, advantage)
    assert found.tolist() == advantages_of([1.0, 3.0, 9.0], [0, 0, 1], advantage).tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [0], "gae"), "advantage 'gae' is unknown; use one of"),
        (([1.0, 2.0], [0]), r"returns have shape \(2,\) and groups \(1,\)"),
        (([[1.0]], [[0]]), r"returns have shape \(1, 1\)"),
        (([1.0, float("nan")], [0, 0]), "returns has nan at 1, which makes the loss NaN; give fin"),
        (([float("inf"), 1.0], [0, 0]), "returns has inf at 0"),
        (([1e200, -1e200], [0, 0], "grpo"), r"returns has 1e\+200 at 0, .* that float32 has room"),
        (([3e38, -3e38], [0, 0]), r"advantages has 6e\+38 at 0, .* that float32 has room"),
        ((np.ma.array([1.0, 2.0], mask=[False, True]), [0, 0]), r"returns is masked_array\(data="),
        ((["1", "2"], [0, 0]), r"returns is \['1', '2'\]; give numbers"),
        (([1.0, 2.0], ["a", "b"]), r"groups is \['a', 'b'\]; give whole numbers.*np\.unique"),
        (([1.0, 2.0], [0.5, 1.0]), r"groups is \[0\.5, 1\.0\]; give whole numbers"),
        (([1.0, 2.0], [[0], [0, 1]]), "groups is .*; give whole numbers"),
    ],
)
def test_what_is_no_argument_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        advantages_of(*arguments)
