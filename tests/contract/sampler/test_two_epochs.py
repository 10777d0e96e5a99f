"""What a resume left, kept beside what came after it: step numbers come twice, and are two versions
of the weights."""

from __future__ import annotations

import time

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld
from harness.training_batches import WAIT_S
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import (
    Batch,
    ChannelB,
    GrpoBatchMaker,
    Policy,
    ReadyPacks,
    SamplerApi,
    TrainingBatches,
)

PACKS = ReadyPacksConfig.model_validate(
    {
        "schedule": {"b_ratio": 1.0},
        "pack_length": 10,  # Two trajectories.
        "gradient_accumulation_steps": 3,
        "queue_limit": 32,
        "prefetch_target_packs": 32,
        "version_window": 8,
    }
)


def two_policies_of_step_1(world: SamplerWorld) -> tuple[SamplerApi, Policy, Policy]:
    """A trainer that was at step 2, and goes on from before step 1."""
    world.configure(off_branch="keep")
    sampler = world.open()
    sampler.resume(None)
    world.writer().flush(GroupSpec(example_id="first"))
    sampler.next_batch(0, 1, timeout_s=WAIT_S)
    left = sampler.publish_policy(1, policy_version="step-1")
    sampler.resume(None, later="release")
    sampler.ack(sampler.next_batch(0, 1, timeout_s=WAIT_S))
    sampler.checkpointed(0)
    now = sampler.publish_policy(1, policy_version="step-1")
    assert (left.step, left.version, now.step, now.version) == (1, "step-1", 1, "step-1.e1")
    assert now.epoch > left.epoch
    return sampler, left, now


def sampled_by(policy: Policy, example: str, members: int = 2) -> GroupSpec:
    stamped = {"policy_version": policy.version, "policy_epoch": policy.epoch}
    return GroupSpec(
        example_id=example,
        rewards=tuple(float(n % 2) for n in range(members)),
        weight_step=policy.step,
        policy_epoch=policy.epoch,
        extras=(stamped,) * members,
    )


def versions(batch: Batch, rows: list[int]) -> set[str]:
    return {batch.policy_versions[row] for row in rows}


@WITHOUT_RAY
@pytest.mark.proves("C5", "I9", "F3")
def test_no_pack_has_what_two_epochs_sampled_at_the_same_step(world: SamplerWorld) -> None:
    sampler, left, now = two_policies_of_step_1(world)
    writer = world.writer()
    # One by one, so that they would take turns in the packs.
    for number in range(3):
        writer.flush(sampled_by(left, f"left-{number}", 1), sampled_by(now, f"now-{number}", 1))
    writer.flush(sampled_by(now, "now-3"))
    deadline = time.monotonic() + WAIT_S
    while sampler.stats().ready.get("math", 0) < 7:
        assert time.monotonic() < deadline
    ready = ReadyPacks(sampler, PACKS, dp_rank=0, dp_size=1)
    decided = ready.next_step(1, timeout_s=WAIT_S)
    assert isinstance(decided, ChannelB)
    inside = [versions(decided.batch, rows.tolist()) for rows in decided.packs.examples]
    assert inside == [{left.version}, {left.version}, {now.version}]
    assert decided.policy_epochs == (left.epoch, left.epoch, now.epoch)
    assert decided.versions == (1, 1, 1)


@WITHOUT_RAY
@pytest.mark.proves("D2", "F3")
def test_a_problem_is_trained_on_under_the_weights_of_the_newer_epoch(world: SamplerWorld) -> None:
    sampler, left, now = two_policies_of_step_1(world)
    world.writer().flush(sampled_by(left, "a"), sampled_by(now, "a"), sampled_by(left, "b"))
    batches = TrainingBatches(sampler, GrpoBatchMaker(seed=1), num_groups=3, batch_size=8)
    training = batches.next(1, timeout_s=WAIT_S)
    batch = training.batch
    trained = {
        (batch.example_ids[row], batch.policy_versions[row]) for row in training.examples.rows
    }
    assert trained == {("a", now.version), ("b", left.version)}
    assert training.made.filtered == {"older_policy": 2}
    of_left = [name == left.version for name in batch.policy_versions]
    assert batch.off_branch.tolist() == of_left
    assert batch.policy_epochs.tolist() == [left.epoch if one else now.epoch for one in of_left]
