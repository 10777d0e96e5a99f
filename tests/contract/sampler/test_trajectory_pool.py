"""Finished prompts in the order of readiness, on the twin, on Kafka, and over Ray."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.groups import GroupSpec
from harness.sampler_worlds import SamplerWorld
from rollstream.sampler import InvalidRequest, PoolBatch, SamplerApi, TrajectoryPool
from rollstream.streams.errors import Fenced

POOL: dict[str, Any] = {"order": "ready", "max_policy_lag": -1, "off_branch": "keep"}
WAIT_S = 30.0


def prompt(name: str, **fields: Any) -> GroupSpec:
    return GroupSpec(example_id=name, **fields)


def fetched(pool: TrajectoryPool) -> str:
    """The prompt that comes next; each has its own name as example."""
    found = pool.fetch_batch(timeout_s=WAIT_S)
    assert found is not None
    return found.batch.example_ids[0]


def everything(found: PoolBatch | None) -> tuple[object, ...]:
    assert found is not None
    arrays = {name: array.tobytes() for name, array in found.batch.arrays().items()}
    weights = found.importance_weights.tobytes()
    return found.prompt_uid, found.batch.step, found.batch.digest, arrays, weights


@pytest.fixture
def sampler(world: SamplerWorld) -> SamplerApi:
    world.configure(**POOL)
    return world.open()


@pytest.mark.proves("B3")
def test_prompts_come_as_they_became_ready_each_once_and_then_none(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    first, second = world.writer("math", 1), world.writer("code")
    first.flush(prompt("a", weight_step=5))
    second.flush(prompt("b", weight_step=9))
    first.flush(prompt("c", weight_step=1), prompt("a", weight_step=2))
    pool = TrajectoryPool(sampler)
    # The first two were sealed at one time: then the environment decides.
    assert [fetched(pool) for _ in range(4)] == ["b", "a", "c", "a"]
    assert pool.fetch_batch() is None
    assert pool.fetch_batch() is None
    first.flush(prompt("d"))
    assert fetched(pool) == "d"


@pytest.mark.proves("B3", "F2")
def test_a_crash_gives_the_same_group_again_and_none_that_was_acknowledged(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    world.writer().flush(*(prompt(name) for name in "abc"))
    pool = TrajectoryPool(sampler)
    assert fetched(pool) == "a"
    before = everything(pool.fetch_batch(timeout_s=WAIT_S))
    world.restart()
    again = TrajectoryPool(world.open())  # The reader's process is another one as well.
    assert everything(again.fetch_batch(timeout_s=WAIT_S)) == before
    assert fetched(again) == "c"
    assert again.fetch_batch() is None
    world.restart()
    assert TrajectoryPool(world.open()).fetch_batch() is None


def test_a_sampler_that_crashed_goes_on_under_the_same_reader(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    world.writer().flush(*(prompt(name) for name in "ab"))
    pool = TrajectoryPool(sampler)
    assert fetched(pool) == "a"
    with world.successor() as successor:
        later = TrajectoryPool(successor)
        assert fetched(later) == "a"
        with pytest.raises(Fenced):
            pool.fetch_batch(timeout_s=WAIT_S)
        assert fetched(later) == "b"


@pytest.mark.proves("B4")
def test_a_full_pool_drops_its_oldest_ready_group_on_record(world: SamplerWorld) -> None:
    world.configure(**POOL, capacity_groups=2)
    sampler = world.open()
    pool = TrajectoryPool(sampler)
    writer = world.writer()
    writer.flush(prompt("held"))
    assert fetched(pool) == "held"
    for name in "abcd":
        writer.flush(prompt(name))
    assert [fetched(pool) for _ in range(2)] == ["c", "d"]
    stats = sampler.stats()
    assert (stats.evictions, stats.outcomes["capacity"]) == (2, 2)


@pytest.mark.proves("B6")
def test_off_policy_steps_stay_marked_and_weighted(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    writer = world.writer()
    writer.flush(*[prompt("before", weight_step=3)] * 3)
    pool = TrajectoryPool(sampler, staleness_threshold=1)
    for step in range(1, 4):
        found = pool.fetch_batch(timeout_s=WAIT_S)
        assert found is not None
        assert not found.off_policy.any()
        assert found.importance_weights.tolist() == [1.0, 1.0]
        sampler.publish_policy(step, policy_version=f"v{step}")
    writer.flush(prompt("late", rewards=(0.0, 0.5, 0.75, 1.0), weight_steps=(0, 3, 2, -1)))
    found = pool.fetch_batch(timeout_s=WAIT_S)
    assert found is not None
    order = np.argsort(found.batch.rewards)
    assert found.off_policy[order].tolist() == [True, False, False, False]
    assert found.importance_weights[order].tolist() == [0.25, 1.0, 1.0, 1.0]


def test_the_weight_of_a_lag_is_the_callers(world: SamplerWorld, sampler: SamplerApi) -> None:
    writer = world.writer()
    writer.flush(prompt("a"), prompt("b"))

    def half(lags: NDArray[np.int64]) -> NDArray[np.float64]:
        return 0.5 ** lags.astype(float)

    pool = TrajectoryPool(sampler, weight_of_lag=half)
    assert fetched(pool) == "a"
    sampler.publish_policy(1, policy_version="v1")
    found = pool.fetch_batch(timeout_s=WAIT_S)
    assert found is not None
    assert found.importance_weights.tolist() == [0.5, 0.5]


def test_a_weight_that_is_none_is_refused(world: SamplerWorld, sampler: SamplerApi) -> None:
    world.writer().flush(prompt("a"), prompt("b"))
    weights: list[Any] = [[1.0] * 9, [-0.5, 0.5], [np.nan, 0.5], [np.inf, 0.5], ["x", "y"]]
    given = iter([*weights, [0.0, 0.5]])
    pool = TrajectoryPool(sampler, weight_of_lag=lambda _: np.array(next(given)))
    assert fetched(pool) == "a"
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


@pytest.mark.parametrize("wrong", [-1, 0.5, None])
def test_a_threshold_that_is_none_is_refused(sampler: SamplerApi, wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="staleness_threshold"):
        TrajectoryPool(sampler, staleness_threshold=wrong)
