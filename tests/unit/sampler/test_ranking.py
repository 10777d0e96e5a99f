"""Which rollouts of many rows come first, against the same written as a sort of all."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.sampler.history.ranking import Order, RankedRows, rank_of

REWARDS = st.sampled_from([math.nan, -1.0, 0.0, 0.5, 1.0])
TURNS = st.lists(st.tuples(REWARDS, st.integers(0, 3)), min_size=1, max_size=3)


class Rollout(NamedTuple):
    start: int
    rows: int
    reward: float
    tokens: int


def rows_of(rollouts: list[list[tuple[float, int]]]) -> tuple[RankedRows, list[Rollout]]:
    """These rollouts, each a list of turns, as columns, and each by itself."""
    turns = [turn for rollout in rollouts for turn in rollout]
    found = RankedRows.of(
        np.array([index for rollout in rollouts for index in range(len(rollout))], np.int32),
        np.array([reward for reward, _ in turns]),
        np.array([tokens for _, tokens in turns], np.int32),
    )
    each, start = [], 0
    for rollout in rollouts:
        rewards = [reward for reward, _ in rollout]
        earned = math.fsum(reward for reward in rewards if not math.isnan(reward))
        reward = math.nan if math.isnan(rewards[-1]) else earned
        each.append(Rollout(start, len(rollout), reward, sum(tokens for _, tokens in rollout)))
        start += len(rollout)
    return found, each


@given(st.lists(TURNS, min_size=1, max_size=12), st.integers(1, 15), st.data())
@pytest.mark.parametrize("order", ["lowest_reward", "highest_reward", "longest"])
def test_first_are_those_that_a_sort_of_all_puts_first(
    order: Order, rollouts: list[list[tuple[float, int]]], count: int, data: st.DataObject
) -> None:
    ranked, each = rows_of(rollouts)
    size = len(rollouts)
    among = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    found = [
        Rollout(
            int(ranked.starts[index]),
            int(ranked.rows[index]),
            float(ranked.rewards[index]),
            int(ranked.tokens[index]),
        )
        for index in ranked.first(order, count, np.array(among))
    ]
    wanted = [one for one, kept in zip(each, among, strict=True) if kept]
    if order != "longest":
        wanted = [one for one in wanted if not math.isnan(one.reward)]
    wanted.sort(key=lambda one: rank_of(order, one.reward, one.tokens))
    assert list(map(repr, found)) == list(map(repr, wanted[:count]))  # NaN equals no NaN.


def test_of_equal_rewards_the_longest_comes_first_and_of_equal_lengths_the_worst() -> None:
    ranked, _ = rows_of([[(0.0, 1)], [(0.0, 3)], [(-1.0, 3)], [(math.nan, 3)]])
    everything = np.ones(4, np.bool_)
    assert ranked.first("lowest_reward", 9, everything).tolist() == [2, 1, 0]
    assert ranked.first("highest_reward", 9, everything).tolist() == [1, 0, 2]
    assert ranked.first("longest", 9, everything).tolist() == [2, 1, 3, 0]
