"""A prompt whose steps give no number is sealed by a sealer although nothing else arrives."""

from __future__ import annotations

import pytest

from harness.producers import flush_by_jumps
from harness.sealing import SealWorld
from rollstream.producers import Step, StepProducer

IDLE_S = 5.0


def submit(world: SealWorld, uid: str, *, is_last: bool = True) -> None:
    step = Step(
        prompt_ids=[1, 2],
        response_ids=[3],
        reward=0.5,
        trajectory_uid=uid,
        prompt_uid="p",
        step_index=0,
        policy_version="step-7",
        weight_step=7,
        is_last=is_last,
    )
    with StepProducer(broker=world.new_broker(), clock=world.clock) as producer:
        producer.submit_step(step, environment="math")
        flush_by_jumps(producer)


@pytest.mark.proves("B3")
def test_a_prompt_on_a_quiet_partition_is_sealed_once_it_was_idle() -> None:
    world = SealWorld(partitions=1, prompt_idle_s=IDLE_S)
    sealer = world.sealer()
    world.run(sealer)
    submit(world, "a")
    world.run(sealer, seconds=IDLE_S - 1)
    submit(world, "b")
    world.run(sealer, seconds=IDLE_S - 1)
    assert world.groups() == [], "b began less than the time ago"
    world.run(sealer, seconds=2)
    assert [len(group) for group in world.groups()] == [2]


@pytest.mark.proves("B3")
def test_a_sealer_that_starts_later_seals_an_idle_prompt_at_once() -> None:
    world = SealWorld(partitions=1, prompt_idle_s=IDLE_S)
    submit(world, "a")
    world.clock.advance(2 * IDLE_S)
    world.run(world.sealer())
    assert [len(group) for group in world.groups()] == [1]


@pytest.mark.proves("B3")
def test_a_trajectory_that_goes_on_holds_its_idle_prompt() -> None:
    world = SealWorld(partitions=1, prompt_idle_s=IDLE_S)
    sealer = world.sealer()
    submit(world, "a", is_last=False)
    world.run(sealer, seconds=3 * IDLE_S)
    assert world.groups() == []


@pytest.mark.proves("B3")
def test_no_prompt_that_has_ended_is_idle_for_longer_than_the_seal_time_out() -> None:
    world = SealWorld(
        partitions=1, prompt_idle_s=10 * IDLE_S, seal_timeout_s=IDLE_S, min_group_size=2
    )
    sealer = world.sealer()
    world.run(sealer)
    submit(world, "a")
    world.run(sealer, seconds=IDLE_S + 1)
    assert [len(group) for group in world.groups()] == [1]
