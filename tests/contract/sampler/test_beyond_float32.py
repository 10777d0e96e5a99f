"""Rewards that float32 has no room for, each or in sum: no trainer is stopped by them, and none is
trained on."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld
from harness.training_batches import WAIT_S, made_by
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import (
    BatchMaker,
    ChannelB,
    Examples,
    GrpoBatchMaker,
    InvalidRequest,
    ReadyPacks,
    RlooBatchMaker,
)

SOUND = GroupSpec(example_id="sound", rewards=(0.0, 1.0, 2.0, 0.5))
GREATEST = float(np.finfo(np.float32).max)


def turns() -> list[dict[str, Any]]:
    """Of two trajectories, the first of two segments."""
    return [
        {"rollout_uid": "t0", "segment_idx": 0, "is_last_segment": False},
        {"rollout_uid": "t0", "segment_idx": 1},
        {"rollout_uid": "t1", "segment_idx": 0},
    ]


BEYOND = {
    "one reward": GroupSpec(example_id="beyond", rewards=(1e308, 1.0)),
    "a sum of turns": GroupSpec(
        example_id="beyond", rewards=(GREATEST, GREATEST, 0.0), extras=turns()
    ),
    "a difference": GroupSpec(example_id="beyond", rewards=(GREATEST, -GREATEST)),
}
each = pytest.mark.parametrize("beyond", BEYOND.values(), ids=BEYOND)


@WITHOUT_RAY
@each
@pytest.mark.parametrize(
    "maker", [RlooBatchMaker(), GrpoBatchMaker(seed=1, advantage="dr_grpo")], ids=["rloo", "grpo"]
)
def test_a_maker_trains_on_the_others_and_the_group_is_filtered_with_its_reason(
    world: SamplerWorld,
    maker: BatchMaker,
    beyond: GroupSpec,
    caplog: pytest.LogCaptureFixture,
) -> None:
    flushed = world.writer().flush(SOUND, beyond)
    sampler = world.open()
    sampler.resume(None)
    batches = made_by(sampler, maker, batch_size=8)
    with caplog.at_level(logging.WARNING, "rollstream.sampler"):
        training = batches.next(0, timeout_s=WAIT_S)
    assert {training.batch.example_ids[row] for row in training.examples.rows} == {"sound"}
    assert np.isfinite(training.examples.advantages).all()
    assert training.metadata["filtered/beyond_float32"] == 2
    assert training.metadata["filtered_groups"] == 1
    (warning,) = [one.message for one in caplog.records if "beyond_float32" in one.message]
    beyond_id = flushed.groups[1].group_id
    assert f"group {beyond_id} (slot " in warning
    batches.ack(training)
    sampler.checkpointed(0)
    assert sampler.stats().outcomes == {"trained": 1, "filtered": 1}


@WITHOUT_RAY
@each
def test_advantages_of_a_batch_name_the_group_and_the_call_that_takes_it_out(
    world: SamplerWorld, beyond: GroupSpec
) -> None:
    flushed = world.writer().flush(beyond)
    sampler = world.open()
    sampler.resume(None)
    batch = sampler.next_batch(0, 1, timeout_s=WAIT_S)
    with pytest.raises(InvalidRequest, match=r"rollout \S+ has .*float32'\) serves") as refused:
        Examples.of(batch, "grpo")
    assert f"group {flushed.groups[0].group_id} (slot 0)" in str(refused.value)
    assert "sampler.replace(0, [0], 'beyond float32')" in str(refused.value)
    world.writer().flush(SOUND)
    replaced = sampler.replace(0, [0], "beyond float32", timeout_s=WAIT_S)
    assert np.isfinite(Examples.of(replaced, "grpo").advantages).all()


@WITHOUT_RAY
@each
def test_of_packs_that_are_ready_no_token_of_it_counts_in_the_loss(
    world: SamplerWorld, beyond: GroupSpec, caplog: pytest.LogCaptureFixture
) -> None:
    world.writer().flush(SOUND, beyond)
    sampler = world.open()
    sampler.resume(None)
    config = ReadyPacksConfig.model_validate(
        {
            "schedule": {"b_ratio": 1.0},
            "channel_b": {"mode": "step"},
            "pack_length": 64,
            "num_groups": 2,
        }
    )
    ready = ReadyPacks(sampler, config, dp_rank=0, dp_size=1)
    with caplog.at_level(logging.WARNING, "rollstream.sampler"):
        decided = ready.next_step(0, timeout_s=WAIT_S)
    assert isinstance(decided, ChannelB)
    arrays = decided.packs.arrays()
    assert np.isfinite(arrays["advantages"]).all()
    assert arrays["advantages"].any()
    assert arrays["loss_mask"].sum() == 4 * SOUND.output
    assert "float32 cannot hold their returns" in caplog.text
    ready.ack(decided)
