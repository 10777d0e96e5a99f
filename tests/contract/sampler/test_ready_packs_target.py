"""A step of ready packs asks for what the queues need, and workers may bring it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from contract.sampler.test_admission import Worker
from harness.brokers import until
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, memory_world
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import ChannelA, ChannelB, InvalidRequest, ReadyPacks, SamplerApi

METRICS = "stage2_ab/async/"
DEFAULTS: dict[str, Any] = {"pack_length": 8192, "schedule": {"b_ratio": 0.5}}


def section(**changed: Any) -> dict[str, Any]:
    return {**DEFAULTS, **changed}


def long_groups(first: int, count: int, version: int) -> list[GroupSpec]:
    """Eight rollouts of 2,000 tokens a group: two packs of 8,192."""
    return [
        GroupSpec(
            example_id=f"ex-{first + n}",
            rewards=(0.0, 1.0) * 4,
            weight_step=version,
            prompt=1000,
            output=1000,
        )
        for n in range(count)
    ]


def ready_groups(sampler: SamplerApi, count: int) -> None:
    until(lambda: sampler.stats().ready.get("math", 0) >= count, lambda: None)


def run(
    world: LocalWorld, config: dict[str, Any], *, ranks: int, steps: int, groups: int
) -> list[ChannelA | ChannelB]:
    """Rank 0's decisions, while more groups are ready than any step needs."""
    world.configure(ready_packs=config, max_policy_lag=-1)
    writer, found = world.writer(), []
    sampler = world.open()
    sampler.resume(None)
    writer.flush(*long_groups(0, groups, version=0))
    ready_groups(sampler, groups)
    packs = ReadyPacksConfig.model_validate(config)
    every = [ReadyPacks(sampler, packs, dp_rank=rank, dp_size=ranks) for rank in range(ranks)]
    for step in range(steps):
        decided = [ready.next_step(step) for ready in every]
        assert len({(one.batch.digest, *one.metrics.items()) for one in decided}) == 1
        every[0].ack(decided[0])
        found.append(decided[0])
    return found


def metric(decided: ChannelA | ChannelB, name: str) -> int:
    return int(decided.metrics[METRICS + name])


@pytest.mark.proves("C4")
@pytest.mark.parametrize(("ranks", "groups"), [(1, 24), (4, 56)])
def test_with_defaults_queues_come_near_their_target_and_no_pack_is_dropped(
    ranks: int, groups: int
) -> None:
    with closing(memory_world()) as world:
        found = run(world, section(version_window=64), ranks=ranks, steps=12, groups=groups)
    assert sum(metric(one, "drop_oldest") for one in found) == 0
    depths = [metric(one, "queue_depth") for one in found]
    assert all(8 <= depth <= 10 for depth in depths[2:]), str(depths)
    assert [type(one) for one in found[2:]] == [ChannelA, ChannelB] * 5


@pytest.mark.proves("C4")
def test_of_groups_of_many_packs_a_step_takes_as_many_as_a_queue_has_space_for() -> None:
    """Each has eight; how large they are the first step does not know."""
    config = section(pack_length=2_000, version_window=64, schedule={"b_ratio": 1.0})
    with closing(memory_world()) as world:
        found = run(world, config, ranks=1, steps=12, groups=12)
    assert sum(metric(one, "drop_oldest") for one in found[1:]) == 0
    assert {type(one) for one in found} == {ChannelB}
    assert {one.batch.num_groups - one.batch.carried_groups for one in found[1:]} == {0, 1}


@pytest.mark.proves("C4", "C6")
def test_groups_that_the_window_would_drop_are_not_taken() -> None:
    config = section(version_window=2, schedule={"b_ratio": 1.0})
    with closing(memory_world()) as world:
        world.configure(ready_packs=config, max_policy_lag=8)
        writer, sampler = world.writer(), world.open()
        sampler.resume(None)
        ready = ReadyPacks(sampler, ReadyPacksConfig.model_validate(config), dp_rank=0, dp_size=1)
        for step in range(5):
            ready.ack(ready.next_step(step))
        writer.flush(*long_groups(0, 12, version=0), *long_groups(12, 12, version=5))
        ready_groups(sampler, 12)
        steps = [ready.next_step(step) for step in (5, 6)]
        assert {step for one in steps for step in one.batch.weight_steps.tolist()} == {5}
        assert isinstance(steps[1], ChannelB)


@pytest.mark.proves("C4", "C7")
@pytest.mark.parametrize(
    ("ranks", "changed"),
    [
        (1, {}),
        (4, {}),
        (4, {"schedule": {"b_ratio": 1.0}}),
        (1, {"schedule": {"b_ratio": 1.0}, "gradient_accumulation_steps": 4}),
    ],
)
def test_queues_stay_near_their_target_while_each_step_has_a_new_policy(
    ranks: int, changed: dict[str, Any]
) -> None:
    config = section(**changed)
    with closing(memory_world()) as world:
        world.configure(ready_packs=config)
        writer, sampler = world.writer(), world.open()
        sampler.resume(None)
        packs = ReadyPacksConfig.model_validate(config)
        every = [ReadyPacks(sampler, packs, dp_rank=rank, dp_size=ranks) for rank in range(ranks)]
        found, groups = [], 16 * ranks
        for step in range(8):
            sampler.publish_policy(step, policy_version=f"step-{step}")
            writer.flush(*long_groups(groups * step, groups, version=step))
            ready_groups(sampler, groups)
            decided = [ready.next_step(step) for ready in every]
            every[0].ack(decided[0])
            sampler.checkpointed(step)
            found.append(decided[0])
    depths = [metric(one, "queue_depth") for one in found]
    assert all(8 <= depth <= 10 for depth in depths[1:]), str(depths)
    assert sum(metric(one, "b_step_skipped_due_to_queue") for one in found) == 0


def test_another_window_than_the_samplers_is_refused_with_both() -> None:
    with closing(memory_world()) as world:
        world.configure(ready_packs=section())
        sampler = world.open()
        sampler.resume(None)
        other = ReadyPacksConfig.model_validate(section(version_window=3))
        ready = ReadyPacks(sampler, other, dp_rank=0, dp_size=1)
        with pytest.raises(InvalidRequest, match=r"is 3, .* has 2"):
            ready.next_step(0)
        assert sampler.progress().next_step == 0


@pytest.mark.proves("C4", "F5")
def test_a_worker_is_admitted_after_steps_that_found_no_group() -> None:
    with closing(memory_world()) as world, closing(Worker(world)) as worker:
        config = section(schedule={"b_ratio": 0.1})
        world.configure(ready_packs=config, environments=("math",))
        with world.open() as sampler:
            sampler.resume(None)
            sampler.publish_policy(0, policy_version="v0")
            packs = ReadyPacksConfig.model_validate(config)
            ready = ReadyPacks(sampler, packs, dp_rank=0, dp_size=1)
            for step in range(10):
                ready.ack(ready.next_step(step))
            world.writer().report(a=(0, 0, 9))
            shares = worker.until(lambda one: "a" in one.producer_ids)
            assert int(shares.totals[0]) >= 1
