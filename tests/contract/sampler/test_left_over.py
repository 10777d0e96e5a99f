"""What the step before left over, and when nothing is carried: in process on the twin and on Kafka,
and over Ray."""

from __future__ import annotations

from contextlib import closing

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import SamplerWorld, memory_world
from harness.training_batches import WAIT_S, everything, made_by, run, seal, trained_uids
from rollstream.sampler.history import lineage_of_step
from rollstream.store.errors import StoreAway

pytestmark = pytest.mark.proves("D2")
STEPS = 6


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


@pytest.mark.parametrize("lost", ["file", "step", "shaping"])
def test_after_a_step_that_cannot_be_made_again_nothing_is_carried(
    lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(memory_world()) as world:
        world.configure(max_policy_lag=-1)
        writer = world.writer()
        for i in range(8):
            writer.flush(GroupSpec(example_id=f"ex-{i}", rewards=(0.0, 1.0, i % 3, 0.5)))
        sampler = world.open()
        step = sampler.resume(1000 if lost == "step" else None)
        if lost == "shaping":
            sampler.next_batch(0, 1, timeout_s=WAIT_S)
            step = sampler.resume(0)
        if lost == "file":
            run(made_by(sampler), 0, 1)
            sampler.checkpointed(0)
            found = lineage_of_step(world.name, 0, config=world.config, broker=world.broker())
            world.store.delete(found.groups[0].origin.path)
            world.restart()
            sampler = world.open()
            step = sampler.resume(0)
        training = made_by(sampler).next(step, timeout_s=WAIT_S)
        assert f"step {step} carries nothing from the one before: " in caplog.text
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
        sampler = world.open()
        world.store.delete(found.groups[0].origin.path)  # All that there is.
        assert sampler.resume(0 if final else None, later="replay") == int(final)
        with pytest.raises(StoreAway):
            made_by(sampler).next(1, timeout_s=WAIT_S)
