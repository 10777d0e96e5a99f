"""What a batch maker knows of a trajectory besides its reward, and a maker with nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

import pytest

from contract.sampler.test_late_scores import scorer
from harness.groups import GroupSpec
from harness.sampler_worlds import memory_world
from rollstream.sampler import (
    BatchMaker,
    InvalidRequest,
    MadeBatch,
    Sampler,
    TrainingBatches,
    advantages_of,
)

WAIT_S = 30.0
LIMIT, BUFFER = 10, 4
OUTPUTS = (4, 8, 9, 12)
STOPS = ("stop", "stop", "stop", "length")


class Dapo(BatchMaker):
    """Overlong shaping of DAPO (Yu et al. 2025), of a reward that is made of components; without
    what is flagged, or was truncated."""

    def create_batch(self, batch_size: int) -> MadeBatch:
        rewards, trained = [], []
        for index, rollout in enumerate(self.rollouts):
            parts = rollout.reward_components
            over = max(0, rollout.output_tokens - (LIMIT - BUFFER)) / BUFFER
            temperature = float(rollout.metadata["temperature"])
            rewards.append(0.8 * parts["correct"] + 0.2 * parts["style"] - over - temperature)
            if rollout.stop_reason != "length" and "cheats" not in rollout.flags:
                trained.append(index)
        groups = [rollout.group for rollout in self.rollouts]
        advantages = advantages_of(rewards, groups, "dr_grpo")
        return MadeBatch.of(self.rollouts, advantages, trained=trained[:batch_size])

    def get_batch_metadata(self, batch: MadeBatch) -> Mapping[str, float]:
        return {"trained": float(len(batch.trajectories))}


def a_group() -> GroupSpec:
    """Four rollouts that wait for a score."""
    return GroupSpec(
        rewards=(None,) * 4,
        extras=[
            {
                "rollout_uid": f"r{n}",
                "output_tokens": list(range(OUTPUTS[n])),
                "logprobs": [-1.0] * OUTPUTS[n],
                "stop_reason": STOPS[n],
                "metadata": f'{{"temperature": {n}}}',
            }
            for n in range(4)
        ],
    )


def test_a_maker_weighs_components_and_shapes_by_length_and_leaves_out_by_stop_and_flag() -> None:
    with closing(memory_world()) as world:
        world.configure(score_timeout_s=4e9)
        world.writer().flush(a_group())
        sampler = world.open()
        assert isinstance(sampler, Sampler)
        with scorer(world, "judge") as scores:
            for n in range(4):
                parts = {"correct": float(n % 2), "style": n / 4}
                flags = ["cheats"] if n == 1 else []
                scores.publish(rollout_uid=f"r{n}", reward=n, rewards=parts, flags=flags)
            scores.flush()
        step = sampler.resume(None)
        batches = TrainingBatches(sampler, Dapo(), num_groups=1, batch_size=8, columns=["metadata"])
        training = batches.next(step, timeout_s=WAIT_S)
        (score,) = [one for row, one in training.batch.scores.items() if row == 1]
        assert (score.scorer, score.version, score.flags) == ("judge", 1, ("cheats",))
        shaped = [0.8 * (n % 2) + 0.2 * n / 4 - max(0, OUTPUTS[n] - 6) / 4 - n for n in range(4)]
        expected = [one - sum(shaped) / 4 for one in shaped]
        assert training.made.trajectories.tolist() == [0, 2]
        assert training.made.advantages.tolist() == pytest.approx([expected[0], expected[2]])
        assert training.metadata == {"trained": 2.0, "carried_stale": 0.0}
        batches.ack(training)
        with pytest.raises(InvalidRequest, match=r"metadata of a rollout was not asked for; give"):
            TrainingBatches(sampler, Dapo(), num_groups=1, batch_size=8).next(step)


@pytest.mark.proves("D1")
def test_a_maker_with_create_batch_and_metadata_alone_is_recorded_by_its_name() -> None:
    class Everything(BatchMaker):
        def create_batch(self, batch_size: int) -> MadeBatch:
            indexes = range(min(batch_size, len(self.rollouts)))
            rewards = [rollout.reward for rollout in self.rollouts]
            return MadeBatch.of(self.rollouts, rewards, trained=indexes)

    with closing(memory_world()) as world:
        world.writer().flush(GroupSpec())
        sampler = world.open()
        step = sampler.resume(None)
        batches = TrainingBatches(sampler, Everything(), num_groups=1, batch_size=8)
        training = batches.next(step, timeout_s=WAIT_S)
        assert training.made.advantages.tolist() == [0.0, 1.0]
        batches.ack(training)
