"""What a trainer says of the weights that it publishes, and what is remembered of it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.decider import Decider
from harness.groups import GroupSpec
from rollstream.folds import published
from rollstream.sampler.decide.trainer.announced import announced_policy
from rollstream.sampler.decide.trainer.commands import PublishPolicy, Resume
from rollstream.sampler.errors import RequestDiffers


def test_what_was_said_of_weights_is_returned_and_never_said_otherwise() -> None:
    sampler = Decider()
    sampler.do(Resume(checkpointed_step=1))
    said: Any = {"policy_version": "step-2", "weights": "s3://w/2", "metadata": '{"dtype":"bf16"}'}
    policy = sampler.do(PublishPolicy(step=2, **said))
    assert (policy.weights, policy.metadata) == ("s3://w/2", {"dtype": "bf16"})
    assert sampler.do(PublishPolicy(step=2, **said)) == policy
    written = len(sampler.events)
    with pytest.raises(RequestDiffers, match=r"weights 's3://w/2' and now with 'elsewhere'"):
        sampler.do(PublishPolicy(step=2, **{**said, "weights": "elsewhere"}))
    with pytest.raises(
        RequestDiffers, match=r"metadata '\{\"dtype\":\"bf16\"\}' and now with '\{\}'"
    ):
        sampler.do(PublishPolicy(step=2, **{**said, "metadata": "{}"}))
    assert len(sampler.events) == written
    assert sampler.state.newest_policy() == policy


def test_weights_are_remembered_of_so_many_policies_and_versions_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(published, "KEPT_MAX", 3)
    sampler = Decider()
    sampler.seal(*[GroupSpec(example_id=f"ex-{n}") for n in range(8)])
    sampler.do(Resume(checkpointed_step=None))
    for step in range(5):
        sampler.do(PublishPolicy(step=step, policy_version=f"v{step}", weights=f"/w/{step}"))
        sampler.serve(step, 1)
    assert sampler.do(PublishPolicy(step=0, policy_version="v0", weights="/w/0")).weights == ""
    assert sampler.do(PublishPolicy(step=3, policy_version="v3", weights="/w/3")).weights == "/w/3"
    sampler.do(Resume(checkpointed_step=1, later="release"))
    left = announced_policy(sampler.state)
    assert left is not None
    assert (left.step, left.branch_steps.tolist()) == (2, [2])
    sampler.do(Resume(checkpointed_step=0, later="release"))
    left = announced_policy(sampler.state)
    assert left is not None  # Those on the branch are forgotten: this one is known to be off it.
    assert (left.step, left.branch_steps.tolist()) == (4, [1])


@pytest.mark.parametrize(
    ("settings", "lag"),
    [
        ({"max_policy_lag": -1}, -1),
        ({"max_policy_lag": 0}, 0),
        ({"max_policy_lag": 8, "max_rollout_step_delay": 3}, 3),
        ({"max_policy_lag": -1, "max_rollout_step_delay": 3}, 3),
    ],
)
def test_workers_are_told_the_bound_on_staleness_that_is_reached_first(
    settings: dict[str, Any], lag: int
) -> None:
    sampler = Decider(**settings)
    sampler.do(PublishPolicy(step=0, policy_version="v0"))
    told = announced_policy(sampler.state)
    assert told is not None
    assert told.max_policy_lag == lag


def test_a_trainer_that_keeps_what_is_off_the_branch_says_so_with_its_branches() -> None:
    sampler = Decider(off_branch="keep")
    sampler.do(PublishPolicy(step=0, policy_version="v0"))
    sampler.do(Resume(checkpointed_step=None))
    told = announced_policy(sampler.state)
    assert told is not None
    assert not told.drops_off_branch
    assert told.branch_epochs.tolist() == [1]


def test_workers_are_told_in_log_time_when_the_newest_policy_was_published() -> None:
    """Neither a resume nor who owns the sampler moves it, so a repetition is as old as it was."""
    sampler = Decider()
    published = []
    for step, log_us in ((0, 5_000_000), (0, 6_000_000), (3, 9_000_000)):
        sampler.log_us = log_us
        sampler.do(PublishPolicy(step=step, policy_version=f"v{step}"))
        sampler.log_us += 1_000_000
        sampler.do(Resume(checkpointed_step=2))
        told = announced_policy(sampler.state)
        assert told is not None
        published.append(told.published_ts)
    assert published == [5_000_000, 6_000_000, 9_000_000]
