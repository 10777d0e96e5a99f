"""What a pool refuses. The checks are the same over every broker, so they run in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import SamplerWorld, memory_world
from rollstream.sampler import InvalidRequest, SamplerApi, TrajectoryPool, UnknownStep

POOL: dict[str, Any] = {"order": "ready", "max_policy_lag": -1, "off_branch": "keep"}
WAIT_S = 30.0


@pytest.fixture
def world() -> Iterator[SamplerWorld]:
    with closing(memory_world()) as made:
        yield made


@pytest.fixture
def sampler(world: SamplerWorld) -> SamplerApi:
    world.configure(**POOL)
    return world.open()


@pytest.mark.parametrize("wrong", [-1, 0.5])
def test_weights_to_go_on_with_that_are_none_are_refused(sampler: SamplerApi, wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="weight_step"):
        TrajectoryPool(sampler, weight_step=wrong)


def test_weights_that_cannot_be_there_yet_are_refused(sampler: SamplerApi) -> None:
    with pytest.raises(UnknownStep, match="weights 1 cannot be there yet: 0 groups were fetched"):
        TrajectoryPool(sampler, weight_step=1).fetch_batch()


def test_a_weight_that_is_none_is_refused(world: SamplerWorld, sampler: SamplerApi) -> None:
    world.writer().flush(GroupSpec(example_id="a"), GroupSpec(example_id="b"))
    weights: list[Any] = [
        [1.0] * 9,
        [-0.5, 0.5],
        [np.nan, 0.5],
        [np.inf, 0.5],
        [1e300, 0.5],
        ["x", "y"],
    ]
    given = iter([*weights, [0.0, 0.5]])
    pool = TrajectoryPool(sampler, weight_of_lag=lambda _: np.array(next(given)))
    assert pool.fetch_batch(timeout_s=WAIT_S) is not None
    sampler.publish_policy(1, policy_version="v1")
    for _ in weights:
        with pytest.raises(InvalidRequest, match="a finite number for each, 0 or more"):
            pool.fetch_batch(timeout_s=WAIT_S)
    found = pool.fetch_batch(timeout_s=WAIT_S)
    assert found is not None
    assert found.importance_weights.tolist() == [0.0, 0.5]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"order": "age"}, "order is 'age', and a pool needs 'ready'"),
        ({"max_policy_lag": 8}, "max_policy_lag is 8, and a pool needs -1"),
        ({"max_rollout_step_delay": 3}, "max_rollout_step_delay is 3"),
        ({"max_rollout_timestamp_delay": 60.0}, "max_rollout_timestamp_delay is 60.0"),
        ({"off_branch": "drop"}, "off_branch is 'drop', and a pool needs 'keep'"),
        ({"max_samples": 2}, "max_samples is 2, and a pool needs 1"),
    ],
)
def test_a_sampler_that_would_drop_or_reorder_is_refused_with_the_remedy(
    world: SamplerWorld, setting: dict[str, Any], told: str
) -> None:
    world.configure(**{**POOL, **setting})
    with pytest.raises(InvalidRequest, match=told):
        TrajectoryPool(world.open())


@pytest.mark.parametrize("wrong", [-1, float("nan"), "0.1", None])
def test_a_threshold_that_is_none_is_refused(sampler: SamplerApi, wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="staleness_threshold"):
        TrajectoryPool(sampler, staleness_threshold=wrong)
