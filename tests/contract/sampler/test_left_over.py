"""What the step before left over, and when nothing is carried: in process on the twin and on Kafka,
and over Ray."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld, memory_world
from harness.training_batches import WAIT_S, everything, made_by, run, seal, trained_uids
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import (
    GroupsUnreadable,
    InvalidRequest,
    NotEnoughGroups,
    ReadyPacks,
    RlooBatchMaker,
    SamplerApi,
    UnknownStep,
)
from rollstream.sampler.batch.carried import left_over
from rollstream.sampler.history import lineage_of_step, replay_step, report_of
from rollstream.store.errors import StoreAway

pytestmark = pytest.mark.proves("D2")
STEPS = 6
AWAY_S = 3.0  # A store that is away is waited for as long.


@WITHOUT_RAY
def test_a_step_that_was_replaced_keeps_what_the_maker_keeps_of_it_now(world: SamplerWorld) -> None:
    seal(world, 2 * STEPS)
    sampler = world.open()
    sampler.resume(None)
    batches = made_by(sampler)
    first = batches.next(0, timeout_s=WAIT_S)
    sampler.replace(first.batch, [0, 1], "bad", timeout_s=WAIT_S)
    after = batches.next(1, timeout_s=WAIT_S)
    before = batches.next(0, timeout_s=WAIT_S)
    assert after.batch.carried_groups
    assert not {*trained_uids(before)} & {*trained_uids(after)}
    assert not {*first.batch.uids} & {*after.batch.uids}


@WITHOUT_RAY
def test_what_is_kept_stays_when_other_numbers_of_new_groups_are_asked_for(
    world: SamplerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    seal(world, 2 * STEPS)
    sampler = world.open()
    sampler.resume(None)
    run(made_by(sampler), 0, 2)
    other = made_by(sampler, num_groups=1, mix={"math": 1.0})
    assert other.next(2, timeout_s=WAIT_S).batch.carried_groups
    assert "carries nothing" not in caplog.text


@pytest.mark.parametrize("lost", ["mixed", "step", "shaping"])
def test_after_a_step_that_cannot_be_made_again_nothing_is_carried(
    lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(memory_world()) as world:
        world.configure(max_policy_lag=-1)
        writer = world.writer()
        for i in range(8):
            steps = (0, 1, 0, 1) if lost == "mixed" else None
            rewards = (0.0, 1.0, i % 3, 0.5)
            writer.flush(GroupSpec(example_id=f"ex-{i}", rewards=rewards, weight_steps=steps))
        sampler = world.open()
        step = sampler.resume(1000 if lost == "step" else None)
        if lost == "shaping":
            sampler.next_batch(0, 1, timeout_s=WAIT_S)
            step = sampler.resume(0)
        if lost == "mixed":
            run(made_by(sampler), 0, 1)
            sampler.checkpointed(0)
            found = lineage_of_step(world.name, 0, config=world.config, broker=world.broker())
            world.store.delete(found.groups[0].origin.path)
            world.restart()
            sampler = world.open()
            step = sampler.resume(0)
        training = made_by(sampler).next(step, timeout_s=WAIT_S)
        assert f"step {step} carries nothing from the one before: " in caplog.text
        assert ("not known what step 0 left over" in caplog.text) == (lost == "mixed")
        assert training.batch.carried_groups == 0
        again = made_by(sampler).next(step, timeout_s=WAIT_S)
        assert everything(again) == everything(training)


@pytest.mark.parametrize("final", [False, True])
def test_a_store_that_is_away_is_no_reason_to_carry_nothing(final: bool) -> None:
    with closing(memory_world()) as world:
        seal(world, 8)
        sampler = world.open()
        sampler.resume(None)
        run(made_by(sampler), 0, 1)
        if final:
            sampler.checkpointed(0)
        found = lineage_of_step(world.name, 0, config=world.config, broker=world.broker())
        world.restart()
        kafka = world.config.kafka.model_copy(update={"timeout_s": AWAY_S})
        world.config = world.config.model_copy(update={"kafka": kafka})
        sampler = world.open()
        world.store.delete(found.groups[0].origin.path)  # All that there is.
        assert sampler.resume(0 if final else None, later="replay") == int(final)
        with pytest.raises(StoreAway):
            made_by(sampler).next(1, timeout_s=2 * AWAY_S)


@pytest.mark.parametrize("saved", [True, False])
def test_of_three_groups_that_are_left_over_the_one_whose_file_is_lost_is_not_carried(
    saved: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the step was remembered when the file went, or is known from the record alone."""
    with closing(memory_world()) as world:
        world.configure(cache_bytes=0)
        writer = world.writer()
        for i in range(8):
            writer.flush(GroupSpec(example_id=f"ex-{i}", rewards=(0.0, 1.0, i % 3, 0.5)))
        asked: dict[str, Any] = {"num_groups": 3, "batch_size": 2}
        sampler = world.open()
        sampler.resume(None)
        batches = made_by(sampler, **asked)
        first = batches.next(0, timeout_s=WAIT_S)
        batches.ack(first)
        sampler.checkpointed(0)
        left = {
            one.group_id: one.wanted.tolist() for one in left_over(first.batch, first.made.kept)
        }
        assert len(left) == 3
        found = lineage_of_step(world.name, 0, config=world.config, broker=world.broker())
        lost, path = first.batch.sampled.group_ids[1], found.groups[1].origin.path
        world.store.delete(path)
        if saved:
            world.restart()
            sampler = world.open()
            sampler.resume(0)
            batches = made_by(sampler, **asked)
        else:
            with pytest.raises(GroupsUnreadable, match="carried from the step before"):
                batches.next(1, timeout_s=WAIT_S)
            sampler.resume(0, later="release")
        second = batches.next(1, timeout_s=WAIT_S)
        carried = second.batch.sampled.group_ids[-second.batch.carried_groups :]
        assert {*carried} == {*left} - {lost}
        assert second.batch.num_groups == 5
        used = second.batch.used
        assert used is not None
        for group, group_id in enumerate(carried, start=3):
            rows = second.batch.group_index == group
            trajectories = second.batch.trajectory_index[rows]
            assert (~used[trajectories]).tolist() == left[group_id]
        assert not {*trained_uids(first)} & {*trained_uids(second)}
        assert "step 1 does not carry groups that are lost: " in caplog.text
        told = report_of(world.name, config=world.config, broker=world.broker())
        assert [*told.carry_lost] == [lost]
        assert told.carry_lost[lost].endswith(f"cannot be read: there is no blob {path}")
        again = made_by(sampler, **asked).next(1, timeout_s=WAIT_S)
        assert everything(again) == everything(second)
        (decision,) = replay_step(world.name, 1, config=world.config, broker=world.broker())[-1:]
        assert decision.same
        with pytest.raises(GroupsUnreadable, match=path):
            made_by(sampler, **asked).next(0, timeout_s=WAIT_S)


def packs_of(sampler: SamplerApi) -> ReadyPacks:
    config = ReadyPacksConfig.model_validate({"schedule": {"b_ratio": 0.5}, "pack_length": 64})
    return ReadyPacks(sampler, config, dp_rank=0, dp_size=1)


@pytest.mark.parametrize(
    ("refusal", "call"),
    [
        (UnknownStep, lambda sampler: made_by(sampler).next(99, timeout_s=0)),
        (UnknownStep, lambda sampler: packs_of(sampler).next_step(99, timeout_s=0)),
        (InvalidRequest, lambda sampler: made_by(sampler, num_groups=10**9).next(1, timeout_s=0)),
        (NotEnoughGroups, lambda sampler: made_by(sampler, num_groups=99).next(1, timeout_s=0)),
    ],
)
def test_a_call_that_is_refused_warns_of_nothing(
    refusal: type[Exception],
    call: Callable[[SamplerApi], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(memory_world()) as world:
        seal(world, 8)
        sampler = world.open()
        sampler.resume(None)
        sampler.next_batch(0, 1, timeout_s=WAIT_S)
        with caplog.at_level(logging.WARNING, "rollstream.sampler"), pytest.raises(refusal):
            call(sampler)
        assert caplog.messages == []


def test_of_what_is_not_carried_a_warning_tells_once_when_the_step_is_decided(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(memory_world()) as world:
        seal(world, 1)
        sampler = world.open()
        sampler.resume(None)
        sampler.next_batch(0, 1, timeout_s=WAIT_S)
        batches = made_by(sampler)
        with pytest.raises(NotEnoughGroups):
            batches.next(1, timeout_s=0)
        assert caplog.messages == []
        seal(world, 4)
        for _ in range(2):
            batches.next(1, timeout_s=WAIT_S)
        (told,) = caplog.messages
        assert told.startswith("step 1 carries nothing from the one before: step 0 was served by")


def test_a_lost_group_of_which_nothing_was_left_is_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(memory_world()) as world:
        writer = world.writer()
        for i in range(4):
            writer.flush(GroupSpec(example_id=f"ex-{i}", rewards=(0.0, 1.0, 2.0, 0.5)))
        sampler = world.open()
        sampler.resume(None)
        asked: dict[str, Any] = {"maker": RlooBatchMaker(), "batch_size": 4}
        (first,) = run(made_by(sampler, **asked), 0, 1)  # All of one group, none of the other.
        sampler.checkpointed(0)
        found = lineage_of_step(world.name, 0, config=world.config, broker=world.broker())
        world.store.delete(found.groups[0].origin.path)
        world.restart()
        sampler = world.open()
        sampler.resume(0)
        after = made_by(sampler, **asked).next(1, timeout_s=WAIT_S)
        assert after.batch.sampled.group_ids[-1] == first.batch.sampled.group_ids[1]
        assert "lost" not in caplog.text
        told = report_of(world.name, config=world.config, broker=world.broker())
        assert told.carry_lost == {}


def test_of_several_groups_that_are_lost_each_has_its_own_reason() -> None:
    with closing(memory_world()) as world:
        writer = world.writer()
        for i in range(8):
            writer.flush(GroupSpec(example_id=f"ex-{i}", rewards=(0.0, 1.0, i % 3, 0.5)))
        sampler = world.open()
        sampler.resume(None)
        asked: dict[str, Any] = {"num_groups": 3, "batch_size": 2}
        (first,) = run(made_by(sampler, **asked), 0, 1)
        sampler.checkpointed(0)
        found = lineage_of_step(world.name, 0, config=world.config, broker=world.broker())
        paths = [group.origin.path for group in found.groups[:2]]
        for path in paths:
            world.store.delete(path)
        world.restart()
        sampler = world.open()
        sampler.resume(0)
        made_by(sampler, **asked).next(1, timeout_s=WAIT_S)
        told = report_of(world.name, config=world.config, broker=world.broker())
        assert told.carry_lost == {
            group_id: f"its file cannot be read: there is no blob {path}"
            for group_id, path in zip(first.batch.sampled.group_ids, paths, strict=False)
        }
