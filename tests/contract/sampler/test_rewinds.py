"""Trainers that go back to a checkpoint: what they get again, and what others sampled meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld, once_over_ray
from rollstream.sampler import Batch, NotEnoughGroups, SamplerApi
from rollstream.sampler.history import replay_step

WAIT_S = 30.0
STEPS = 4


def shares(sampler: SamplerApi, step: int, dp_size: int) -> list[Batch]:
    return [
        sampler.next_batch(step, 4, timeout_s=WAIT_S, dp_rank=rank, dp_size=dp_size)
        for rank in range(dp_size)
    ]


def rows(batches: list[Batch]) -> dict[int, tuple[str, ...]]:
    """The uids of each slot of the recorded batch."""
    return {
        slot: tuple(np.array(batch.uids)[batch.group_index == index])
        for batch in batches
        for index, slot in enumerate(batch.slots)
    }


@pytest.mark.proves("F3")
@once_over_ray("saved", 0, None, STEPS - 1)
def test_every_later_step_is_replayed_alike_on_another_number_of_ranks(
    world: SamplerWorld, saved: int | None
) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(4 * STEPS)))
    sampler = world.open()
    step = sampler.resume(None)
    served = []
    for step in range(STEPS):
        served.append(rows(shares(sampler, step, 2)))
        sampler.ack(sampler.next_batch(step, 4, timeout_s=WAIT_S))
        if step == 1:
            sampler.checkpointed(step)
    for dp_size in (1, 3):
        successor = world.open()
        begin = successor.resume(saved, later="replay")
        assert begin == (0 if saved is None else saved + 1)
        for step in range(begin, STEPS):
            again = shares(successor, step, dp_size)
            assert rows(again) == served[step]
            assert len({batch.batch_id for batch in again}) == 1


@WITHOUT_RAY
@pytest.mark.proves("F3")
@pytest.mark.parametrize("saved", [None, 0, 2])
def test_what_is_released_is_served_anew_and_what_is_final_never(
    world: SamplerWorld, saved: int | None
) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(4 * STEPS)))
    sampler = world.open()
    sampler.resume(None)
    served = []
    for step in range(STEPS):
        served.append({uid for uids in rows(shares(sampler, step, 1)).values() for uid in uids})
        if step == 1:
            sampler.checkpointed(step)
    successor = world.open()
    begin = successor.resume(saved, later="release")
    final = set[str]().union(*served[: max(begin, 2)])
    anew: set[str] = set()
    left = STEPS - max(begin, 2)
    for step in range(begin, begin + left):
        anew |= {uid for uids in rows(shares(successor, step, 4)).values() for uid in uids}
    assert anew == set[str]().union(*served) - final
    with pytest.raises(NotEnoughGroups):
        successor.next_batch(begin + left, 1, timeout_s=0.0)


@WITHOUT_RAY
@pytest.mark.proves("F3")
def test_groups_off_the_branch_are_kept_and_marked_where_a_trainer_asks_for_it(
    world: SamplerWorld,
) -> None:
    world.configure(off_branch="keep")
    writer = world.writer()
    writer.flush(GroupSpec(example_id="first"))
    sampler = world.open()
    sampler.resume(None)
    sampler.next_batch(0, 1, timeout_s=WAIT_S)
    sampler.publish_policy(1, policy_version="step-1")
    # Sampled by weights 0 and 1, of which the second are left by the resume.
    writer.flush(GroupSpec(example_id="mixed", weight_steps=(0, 1)))
    writer.flush(GroupSpec(example_id="old", weight_step=0))
    begin = sampler.resume(None, later="replay")
    epoch = sampler.publish_policy(1, policy_version="again").epoch
    writer.flush(GroupSpec(example_id="new", weight_step=1, policy_epoch=epoch))
    replayed = sampler.next_batch(begin, 1, timeout_s=WAIT_S)
    batch = sampler.next_batch(begin + 1, 3, timeout_s=WAIT_S)
    marked = {
        example: batch.off_branch[[one == example for one in batch.example_ids]].tolist()
        for example in set(batch.example_ids)
    }
    assert marked == {"mixed": [False, True], "old": [False, False], "new": [False, False]}
    assert batch.metrics()["off_branch_share"] == pytest.approx(1 / 6)
    starts = batch.offsets[:-1] + batch.prompt_lengths
    assert np.isfinite(batch.logprobs[starts]).all()
    assert not replayed.off_branch.any()
    # A later resume leaves weights that were on the branch when the batch was decided.
    sampler.resume(0)
    world.restart()
    again = world.open().next_batch(begin + 1, 3, timeout_s=WAIT_S)
    assert (again.digest, again.off_branch.tolist()) == (batch.digest, batch.off_branch.tolist())
    (decided,) = replay_step(
        world.name, begin + 1, config=world.config, broker=world.broker(), timeout_s=WAIT_S
    )
    assert decided.same
