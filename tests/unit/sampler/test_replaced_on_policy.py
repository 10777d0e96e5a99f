"""A group of the newest policy gives way to one of it, and any other group to whichever is next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.decider import Decider
from harness.groups import GroupSpec
from rollstream.folds.batches.served import ServedBatch
from rollstream.sampler.decide.batches.next_batch import Replace
from rollstream.sampler.decide.trainer.commands import MarkCheckpointed, PublishPolicy, Resume


@pytest.mark.proves("A14", "F2")
def test_the_same_step_of_an_older_epoch_is_not_replaced_as_if_the_newest_policy_had_made_it() -> (
    None
):
    sampler = Decider(on_policy_fraction=0.5, off_branch="keep")
    sampler.seal(GroupSpec())
    sampler.do(Resume(checkpointed_step=None))
    sampler.serve(0, 1)
    sampler.do(PublishPolicy(step=1, policy_version="left"))
    sampler.do(Resume(checkpointed_step=None))
    epoch = sampler.do(PublishPolicy(step=1, policy_version="now")).epoch
    left, now = GroupSpec(weight_step=1), GroupSpec(weight_step=1, policy_epoch=epoch)
    named = [(now, "now"), (left, "left"), (left, "left-2"), (now, "now-2")]
    sampler.seal(*(replace(one, example_id=name) for one, name in named[:2]))
    batch = sampler.serve(1, 2)
    sampler.seal(*(replace(one, example_id=name) for one, name in named[2:]))
    slot = sampler.examples(batch).index("left")
    tried = Replace(step=1, digest=batch.digest, slots=(slot,), reason="tried")
    found = sampler.choose(tried)
    assert isinstance(found, ServedBatch)
    assert sampler.examples(found)[slot] == "left-2", "the next in turn, of whatever policy"


@pytest.mark.proves("A14")
def test_until_a_trainer_that_resumed_publishes_what_it_kept_is_the_newest_policy() -> None:
    sampler = Decider(on_policy_fraction=0.5)
    sampler.do(Resume(checkpointed_step=None))
    sampler.seal(GroupSpec())
    sampler.serve(0, 1)
    epoch = sampler.do(PublishPolicy(step=1, policy_version="kept")).epoch
    sampler.do(MarkCheckpointed(step=0))
    sampler.do(Resume(checkpointed_step=0))
    older, kept = GroupSpec(weight_step=0), GroupSpec(weight_step=1, policy_epoch=epoch)
    named = [(kept, "kept"), (older, "older"), (older, "older-2"), (kept, "kept-2")]
    sampler.seal(*(replace(one, example_id=name) for one, name in named[:2]))
    batch = sampler.serve(1, 2)
    sampler.seal(*(replace(one, example_id=name) for one, name in named[2:]))
    slot = sampler.examples(batch).index("kept")
    found = sampler.choose(Replace(step=1, digest=batch.digest, slots=(slot,), reason="tried"))
    assert isinstance(found, ServedBatch)
    assert sampler.examples(found)[slot] == "kept-2", "its share of the newest policy stays"
