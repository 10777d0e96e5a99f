"""Finished prompts in the order of readiness, on the twin, on Kafka, and over Ray."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.brokers import until
from harness.groups import GroupSpec
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld, SecondClient
from rollstream.sampler import (
    Policy,
    PoolBatch,
    SamplerApi,
    TrajectoryPool,
)
from rollstream.sampler.decide.command import Command, R, Reply
from rollstream.sampler.decide.trainer.pool import AcknowledgeFetch
from rollstream.sampler.history import replay_step
from rollstream.streams.errors import Fenced

SampledBy = dict[str, int]
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


@WITHOUT_RAY
def test_a_pool_gives_trajectories_the_names_of_their_writers(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    world.writer().flush(prompt("a", extras=[{"trajectory_uid": "t"}, {}]))
    found = TrajectoryPool(sampler).fetch_batch(timeout_s=WAIT_S)
    assert found is not None
    whole = found.batch.uids[1]  # As one that was published whole, or by an older writer.
    assert found.batch.trajectory_uids == ("t", whole)


@WITHOUT_RAY
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


@WITHOUT_RAY
@pytest.mark.proves("B3")
def test_a_pool_has_one_reader_the_one_that_began_last(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    world.writer().flush(*(prompt(name) for name in "abc"))
    first, second = TrajectoryPool(sampler), TrajectoryPool(world.open())
    assert [fetched(first) for _ in range(2)] == ["a", "b"]
    assert fetched(second) == "b", "it was not acknowledged"
    for _ in range(2):
        with pytest.raises(Fenced, match="A pool has one reader, the one that began last"):
            first.fetch_batch()
    with pytest.raises(Fenced):
        sampler.publish_policy(1, policy_version="of what was dropped")
    assert fetched(second) == "c"
    assert fetched(TrajectoryPool(world.open())) == "c", "whoever begins is the reader"


class InterruptedClient(SecondClient):
    """A client before each of whose calls something else happens."""

    def __init__(self, sampler: SamplerApi, before: Callable[[], object]) -> None:
        super().__init__(sampler)
        self.before = before

    def _execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        self.before()
        return super()._execute(command, wait_s)


@WITHOUT_RAY
@pytest.mark.proves("B3")
def test_no_group_is_acknowledged_by_one_reader_and_fetched_by_another(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    world.writer().flush(*(prompt(name) for name in "abcdef"))
    first, by_first = TrajectoryPool(sampler), list[str]()

    def first_goes_on() -> None:
        with suppress(Fenced):
            by_first.append(fetched(first))

    second = TrajectoryPool(InterruptedClient(world.open(), first_goes_on))
    by_second = [fetched(second) for _ in range(2)]
    assert by_second[0] == by_first[-1], "the one that was not acknowledged"
    assert [*by_first[:-1], *by_second] == [*"abcdef"][: len(by_first) + 1]


def test_a_reader_that_waits_is_fenced_at_once(world: SamplerWorld, sampler: SamplerApi) -> None:
    writer = world.writer()
    writer.flush(prompt("a"))
    first, second = TrajectoryPool(sampler), TrajectoryPool(world.open())
    assert fetched(first) == "a"
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(first.fetch_batch, timeout_s=10 * WAIT_S)
        while not sampler.stats().calls_waiting:
            assert not waiting.done()
        assert second.fetch_batch() is None
        with pytest.raises(Fenced, match="A pool has one reader"):
            waiting.result(WAIT_S)
    writer.flush(prompt("b"))
    assert fetched(second) == "b"


@WITHOUT_RAY
def test_two_pools_of_one_sampler_object_are_two_readers(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    world.writer().flush(*(prompt(name) for name in "ab"))
    first, second = TrajectoryPool(sampler), TrajectoryPool(sampler)
    assert fetched(first) == "a"
    assert fetched(second) == "a"
    with pytest.raises(Fenced, match="through the same sampler object"):
        first.fetch_batch()
    sampler.publish_policy(1, policy_version="v1")
    assert fetched(second) == "b"


class OvertakenClient(SecondClient):
    """A client through which something else happens once an acknowledgement is on its way."""

    def __init__(self, sampler: SamplerApi) -> None:
        super().__init__(sampler)
        self.before = list[Callable[[], object]]()

    def _execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        while self.before and isinstance(command, AcknowledgeFetch):
            self.before.pop()()
        return super()._execute(command, wait_s)


@WITHOUT_RAY
@pytest.mark.proves("B3")
def test_an_acknowledgement_is_of_the_reader_whose_fetch_it_was(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    """Also where another thread begins to read through the same object meanwhile."""
    world.writer().flush(*(prompt(name) for name in "ab"))
    client = OvertakenClient(sampler)
    first, second = TrajectoryPool(client), TrajectoryPool(client)
    assert fetched(first) == "a"
    by_second = list[str]()
    client.before.append(lambda: by_second.append(fetched(second)))
    with pytest.raises(Fenced, match="A pool has one reader"):
        first.fetch_batch()
    assert by_second == ["a"]
    assert sampler.progress().trained == {}, "the second reader did not acknowledge it"
    assert fetched(second) == "b"


@WITHOUT_RAY
@pytest.mark.proves("B4")
@pytest.mark.parametrize(
    ("capacity_groups", "max_queue_size"), [(2, None), (2, 9), (9, 2)], ids=str
)
def test_a_full_pool_drops_its_oldest_ready_group_on_record(
    world: SamplerWorld, capacity_groups: int, max_queue_size: int | None
) -> None:
    world.configure(**POOL, capacity_groups=capacity_groups)
    sampler = world.open()
    pool = TrajectoryPool(sampler, max_queue_size=max_queue_size)
    writer = world.writer()
    writer.flush(prompt("held"))
    assert fetched(pool) == "held"
    for name in "abcd":
        writer.flush(prompt(name))
    sampler.flush()  # All four are known.
    assert [fetched(pool) for _ in range(2)] == ["c", "d"]
    stats = sampler.stats()
    assert (stats.evictions, stats.outcomes["capacity"]) == (2, 2)
    (replayed,) = replay_step(
        world.name, 1, config=world.config, broker=world.broker(), timeout_s=WAIT_S
    )
    assert replayed.same


@WITHOUT_RAY
@pytest.mark.proves("B6")
def test_off_policy_steps_stay_marked_and_weighted(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    writer = world.writer()
    writer.flush(*[prompt("before", weight_step=1)] * 3)
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


@WITHOUT_RAY
@pytest.mark.proves("B6")
def test_weights_that_were_not_published_are_off_policy(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    sampler.publish_policy(0, policy_version="v0")
    world.writer().flush(prompt("a", rewards=(0.0, 1.0, 2.0), weight_steps=(0, 1, 10**18)))
    found = TrajectoryPool(sampler, staleness_threshold=5).fetch_batch(timeout_s=WAIT_S)
    assert found is not None
    order = np.argsort(found.batch.rewards)
    assert found.off_policy[order].tolist() == [False, True, True]
    assert found.importance_weights[order].tolist() == [1.0, 0.5, pytest.approx(1e-18)]


@WITHOUT_RAY
@pytest.mark.proves("B6")
def test_a_policy_is_of_one_epoch_whether_it_is_published_before_the_first_fetch_or_after(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    before = sampler.publish_policy(0, policy_version="v0")
    pool = TrajectoryPool(sampler)
    assert pool.fetch_batch() is None
    assert sampler.publish_policy(0, policy_version="v0") == before
    world.writer().flush(prompt("a", **sampled_by(before)))
    assert marks(pool) == ("a", False, 1.0)
    assert sampler.publish_policy(1, policy_version="v1").epoch == before.epoch
    world.restart()
    sampler = world.open()
    assert marks(TrajectoryPool(sampler, weight_step=0)) == ("a", False, 1.0)
    assert sampler.publish_policy(1, policy_version="v1").epoch == before.epoch + 1


@WITHOUT_RAY
@pytest.mark.proves("B6")
def test_a_pool_drops_prompts_of_another_lineage_on_record(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    writer = world.writer()
    writer.flush(prompt("other", lineage="another"), prompt("own"))
    pool = TrajectoryPool(sampler)
    assert fetched(pool) == "own"
    writer.flush(prompt("late", lineage="another"))
    assert pool.fetch_batch() is None
    until(lambda: sampler.stats().outcomes["other_lineage"] == 2)  # By the thread that reads.


@WITHOUT_RAY
@pytest.mark.proves("B6")
def test_a_reader_that_comes_after_marks_what_is_behind_the_policies_before_it(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    """Though nothing was published in its epoch yet."""
    writer = world.writer()
    writer.flush(prompt("a"), prompt("b"), prompt("c"))
    pool = TrajectoryPool(sampler, staleness_threshold=1)
    for step, name in enumerate("abc", start=1):
        assert fetched(pool) == name
        sampler.publish_policy(step, policy_version=f"v{step}")
    writer.flush(prompt("late", rewards=(0.0, 0.5, 1.0), weight_steps=(0, 2, 3)))
    successor = TrajectoryPool(world.open(), staleness_threshold=1)
    assert fetched(successor) == "c"
    found = successor.fetch_batch(timeout_s=WAIT_S)
    assert found is not None
    assert found.batch.policy_step == 2, "weights 3 were left with the fetch that made them"
    order = np.argsort(found.batch.rewards)
    assert found.batch.off_branch[order].tolist() == [False, False, True]
    assert found.off_policy[order].tolist() == [True, False, True]
    assert found.importance_weights[order][:2].tolist() == [np.float32(1 / 3), 1.0]


FETCHES_A_POLICY = 2


def trained_to_step_4(world: SamplerWorld, sampler: SamplerApi) -> tuple[SampledBy, SampledBy]:
    """A trainer did four optimizer steps, each of two fetches. Returns how rollouts of its third
    and of its fourth weights are stamped."""
    world.writer().flush(*(prompt(f"trained-{n}") for n in range(4 * FETCHES_A_POLICY)))
    pool, policies = TrajectoryPool(sampler), list[Policy]()
    for step in range(1, 5):
        for _ in range(FETCHES_A_POLICY):
            fetched(pool)
        policies.append(sampler.publish_policy(step, policy_version=f"step-{step}"))
    assert pool.fetch_batch() is None, "all is final"
    third, fourth = (sampled_by(policy) for policy in policies[2:])
    return third, fourth


def sampled_by(policy: Policy) -> SampledBy:
    return {"policy_epoch": policy.epoch, "weight_step": policy.step}


def marks(pool: TrajectoryPool) -> tuple[str, bool, float]:
    """The prompt that comes next, whether it is off policy, all of it, and its weight."""
    found = pool.fetch_batch(timeout_s=WAIT_S)
    assert found is not None
    (marked,), (weight,) = {*found.off_policy.tolist()}, {*found.importance_weights.tolist()}
    assert marked is bool(found.batch.off_branch.any())
    return found.batch.example_ids[0], marked, weight


@WITHOUT_RAY
@pytest.mark.proves("B6")
def test_what_a_resume_went_back_behind_is_marked_with_several_fetches_a_policy(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    third, fourth = trained_to_step_4(world, sampler)
    second = {**third, "weight_step": 2}
    world.restart()
    sampler = world.open()
    pool = TrajectoryPool(sampler, staleness_threshold=1)
    assert pool.fetch_batch() is None
    # It went on from its own second step.
    now = sampler.publish_policy(3, policy_version="step-3")
    world.writer().flush(
        prompt("kept", **second),
        prompt("left", **fourth),
        prompt("of its step", **third),
        prompt("new", **sampled_by(now)),
    )
    found = [marks(pool) for _ in range(4)]
    assert found == [
        ("kept", False, 1.0),
        ("left", True, 0.5),
        ("of its step", True, 0.5),
        ("new", False, 1.0),
    ]


@pytest.mark.proves("B6", "F2")
def test_a_fetch_has_the_same_marks_when_it_comes_again_after_a_policy(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    """Until one is published nobody knows what the trainer went back to."""
    _, fourth = trained_to_step_4(world, sampler)
    world.restart()
    sampler = world.open()
    pool = TrajectoryPool(sampler)
    assert pool.fetch_batch() is None
    world.writer().flush(prompt("a", **fourth), prompt("b", **fourth))
    before = pool.fetch_batch(timeout_s=WAIT_S)
    assert before is not None
    assert not before.batch.off_branch.any()
    sampler.publish_policy(3, policy_version="step-3")
    world.restart()
    pool = TrajectoryPool(world.open())
    assert everything(pool.fetch_batch(timeout_s=WAIT_S)) == everything(before)
    assert marks(pool) == ("b", True, 0.5)


@WITHOUT_RAY
@pytest.mark.proves("B6")
def test_a_trainer_that_says_what_it_goes_on_with_has_marks_from_the_first_fetch(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    third, fourth = trained_to_step_4(world, sampler)
    world.restart()
    sampler = world.open()
    world.writer().flush(*(prompt("kept", **third), prompt("left", **fourth)) * 2)
    pool = TrajectoryPool(sampler, weight_step=3)
    assert [marks(pool) for _ in range(2)] == [("kept", False, 1.0), ("left", True, 0.5)]
    sampler.publish_policy(3, policy_version="step-3")  # The weights that it loaded.
    assert [marks(pool) for _ in range(2)] == [("kept", False, 1.0), ("left", True, 0.5)]


@WITHOUT_RAY
def test_a_reader_alone_that_begins_again_leaves_no_weights(
    world: SamplerWorld, sampler: SamplerApi
) -> None:
    _, fourth = trained_to_step_4(world, sampler)
    world.restart()
    sampler = world.open()
    pool = TrajectoryPool(sampler, staleness_threshold=1)
    assert pool.fetch_batch() is None
    sampler.publish_policy(5, policy_version="step-5")
    world.writer().flush(prompt("kept", **fourth))
    assert marks(pool) == ("kept", False, 1.0)


@WITHOUT_RAY
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
