"""Groups that name weights which the trainer cannot have made yet."""

from __future__ import annotations

import pytest

from harness.decider import Decider
from harness.groups import GroupSpec
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.trainer.commands import Resume
from rollstream.sampler.errors import NotEnoughGroups


@pytest.mark.proves("F22")
def test_weights_that_the_trainer_cannot_have_made_are_dropped_and_counted() -> None:
    sampler = Decider()
    sampler.seal(*(GroupSpec(example_id=f"ex-{i}") for i in range(3)))
    sampler.serve(0, 1)
    sampler.serve(1, 1)  # Asked ahead: its trainer may be done with it before another is asked for.
    sampler.seal(
        GroupSpec(example_id="newest", weight_step=2),
        GroupSpec(example_id="ahead", weight_step=3),
        GroupSpec(example_id="in part", weight_steps=(0, 9)),
        GroupSpec(example_id="of no epoch", weight_step=1, policy_epoch=1),
    )
    assert sampler.examples(sampler.serve(2, 2)) == ["ex-2", "newest"]
    dropped = ("ahead", "in part", "of no epoch")
    assert sampler.progress().dropped == {"math": {name: {"ahead": 1} for name in dropped}}
    sampler.seal(GroupSpec(weight_step=4))
    error = sampler.choose(NextBatch(step=3, num_groups=1))
    assert isinstance(error, NotEnoughGroups)
    assert error.dropped == {"ahead": 4}
    assert "4 were dropped as ahead: they name weights that the trainer cannot have" in str(error)


@pytest.mark.proves("F22")
def test_weights_of_before_the_trainer_resumed_are_there_however_soon_they_come() -> None:
    sampler = Decider()
    sampler.seal(GroupSpec(example_id="loaded", weight_step=501))
    sampler.evict()  # Which is done whenever something was sealed.
    sampler.do(Resume(checkpointed_step=500))
    sampler.seal(GroupSpec(example_id="another run's", weight_step=501, policy_epoch=7))
    sampler.seal(GroupSpec(example_id="and beyond", weight_step=502, policy_epoch=7))
    assert sampler.examples(sampler.serve(501, 2)) == ["loaded", "another run's"]
    assert sampler.progress().dropped == {"math": {"and beyond": {"ahead": 1}}}


@pytest.mark.proves("F22")
def test_without_a_bound_what_is_ahead_is_served() -> None:
    sampler = Decider(max_policy_lag=-1)
    sampler.seal(GroupSpec(weight_step=9), GroupSpec(weight_step=9, policy_epoch=3))
    assert len(sampler.serve(0, 2).groups) == 2
