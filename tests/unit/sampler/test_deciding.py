"""The decider: what it chooses, refuses and remembers, over a decision log in a list."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec
from rollstream.folds.batches.served import ServedBatch
from rollstream.sampler.decide.batches.next_batch import NextBatch, Replace
from rollstream.sampler.decide.command import Command
from rollstream.sampler.decide.trainer.commands import (
    Ack,
    AckStatus,
    MarkCheckpointed,
    PublishPolicy,
    Resume,
)
from rollstream.sampler.errors import (
    InvalidRequest,
    NotEnoughGroups,
    RequestDiffers,
    TooManyOpenBatches,
    UnknownStep,
)
from rollstream.schemas.events import Checkpointed
from rollstream.schemas.order import Policy
from rollstream.streams.errors import Fenced
from rollstream.streams.folds.refs import GroupRef


def specs(count: int, **fields: Any) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{i}", **fields) for i in range(count)]


def test_the_same_step_is_the_same_batch() -> None:
    sampler = Decider()
    sampler.seal(*specs(6))
    first = sampler.serve(0)
    events = len(sampler.events)
    assert sampler.serve(0) == first
    assert len(sampler.events) == events


def test_other_arguments_for_a_served_step_name_both() -> None:
    sampler = Decider()
    sampler.seal(*specs(6))
    sampler.serve(0, 2)
    with pytest.raises(RequestDiffers, match=r'"num_groups":2.*"num_groups":3'):
        sampler.serve(0, 3)


def test_a_step_may_be_asked_one_ahead_but_not_skipped() -> None:
    sampler = Decider()
    sampler.seal(*specs(6))
    sampler.serve(0)
    sampler.serve(1)
    with pytest.raises(UnknownStep, match="next one to be served is 2"):
        sampler.serve(3)


def test_too_few_groups_say_what_is_there() -> None:
    sampler = Decider(max_policy_lag=3)
    sampler.seal(
        *specs(1, weight_step=0),
        GroupSpec(rewards=(None, 1.0)),
        GroupSpec(split="eval"),
        GroupSpec(weight_step=-1),
    )
    command = NextBatch(step=0, num_groups=2)
    error = sampler.choose(command)
    assert isinstance(error, NotEnoughGroups)
    assert error.ready == {"math": 1}
    assert error.waiting == {"reward": 1, "eval": 1}
    assert error.dropped == {"no_weight_step": 1}
    assert "no reward and no score; see that its scorer runs" in str(error)
    assert "publish(weight_step=N)" in str(error)
    assert str(error).count("eval") == 1
    assert "1 eval group, never served for training" in str(error)


def test_groups_off_the_branch_name_the_epoch_that_workers_must_publish() -> None:
    sampler = Decider()
    sampler.seal(*specs(2))
    sampler.serve(0)
    sampler.do(Resume(checkpointed_step=None))
    sampler.seal(*specs(3, weight_step=1))
    command = NextBatch(step=1, num_groups=2)
    error = sampler.choose(command)
    assert isinstance(error, NotEnoughGroups)
    assert error.dropped == {"off_branch": 3}
    published = sampler.do(PublishPolicy(step=1, policy_version="step-1"))
    assert f"or its policy_epoch, which is {published.epoch} now" in str(error)
    assert "of lineage '': begin anew with a sampler that has its own" in str(error)
    sampler.seal(*specs(2, weight_step=1, policy_epoch=published.epoch))
    assert isinstance(sampler.choose(command), ServedBatch), "what the message says does help"


@pytest.mark.parametrize(
    ("config", "spec", "remedy"),
    [
        (
            {"max_policy_lag": 0},
            GroupSpec(weight_step=0),
            r"as stale: .*max_policy_lag = 0 .*raise samplers\.trainer-a\.max_policy_lag",
        ),
        (
            {"capacity_groups": 1},
            GroupSpec(weight_step=1),
            r"as capacity: .*raise samplers\.trainer-a\.capacity_groups",
        ),
        (
            {"capacity": 1},
            GroupSpec(weight_step=1),
            r"as capacity: more than capacity = 1 were kept, .*raise samplers\.trainer-a\.capacity",
        ),
        ({}, GroupSpec(rewards=(1.0, 1.0)), r"as filtered: .*ask without accept"),
        (
            {"max_policy_lag": 0, "lineage": "a"},
            GroupSpec(lineage="b"),
            r"wait: .*publish\(lineage='a'\), or samplers\.trainer-a\.lineage",
        ),
        (
            {},
            GroupSpec(rewards=(None, 1.0)),
            r"3 wait: .*no reward and no score; .*publish\(reward=R\)",
        ),
    ],
    ids=["stale", "capacity", "capacity of each", "filtered", "lineage", "reward"],
)
def test_every_reason_has_its_remedy(config: dict[str, Any], spec: GroupSpec, remedy: str) -> None:
    sampler = Decider(**config)
    sampler.do(Resume(checkpointed_step=0))
    sampler.do(PublishPolicy(step=1, policy_version="step-1"))
    sampler.seal(spec, spec, spec)
    sampler.evict()
    error = sampler.choose(NextBatch(step=1, num_groups=1, mix={"code": 1.0}, accept="nonzero_std"))
    assert isinstance(error, NotEnoughGroups)
    assert re.search(remedy, str(error))


def test_keys_take_turns_so_that_no_example_starves() -> None:
    sampler = Decider()
    for _ in range(4):
        sampler.seal(*specs(3))
    served = Counter[str]()
    for step in range(6):
        batch = sampler.examples(sampler.serve(step))
        assert len(set(batch)) == 2, "a key gives a second group only after every other gave one"
        served.update(batch)
    assert set(served.values()) == {4}


def test_a_batch_larger_than_the_keys_takes_several_of_each() -> None:
    sampler = Decider()
    for _ in range(3):
        sampler.seal(*specs(2))
    assert Counter(sampler.examples(sampler.serve(0, 5))) in (
        {"ex-0": 3, "ex-1": 2},
        {"ex-0": 2, "ex-1": 3},
    )


def test_mix_sets_shares_by_environment_with_the_largest_remainder() -> None:
    sampler = Decider()
    sampler.seal(*specs(8))
    sampler.seal(*specs(8), log=LOGS[0])
    batch = sampler.serve(0, 5, mix={"math": 0.72, "code": 0.28})
    assert Counter(chosen.environment for chosen in batch.groups) == {"math": 4, "code": 1}
    with pytest.raises(InvalidRequest, match="physics"):
        sampler.serve(1, 5, mix={"physics": 1.0})


@pytest.mark.parametrize("recency", ["linear", "exp"])
def test_recency_prefers_newer_policies_within_a_key(recency: str) -> None:
    newer = 0
    for seed in range(60):
        sampler = Decider(recency=recency, seed=seed, max_policy_lag=-1, capacity=192)
        sampler.seal(*(GroupSpec(weight_step=step) for step in range(4)))
        chosen = sampler.serve(0, 1).groups[0]
        newer += chosen.index >= 2
    assert newer > 36


def test_stale_groups_are_dropped_and_counted() -> None:
    sampler = Decider(max_policy_lag=2)
    sampler.seal(*specs(2, weight_step=0), *specs(2, weight_step=3))
    sampler.do(Resume(checkpointed_step=2))
    sampler.do(PublishPolicy(step=3, policy_version="step-3"))
    batch = sampler.serve(3)
    assert {chosen.index for chosen in batch.groups} == {2, 3}
    assert sampler.progress().dropped == {"math": {"ex-0": {"stale": 1}, "ex-1": {"stale": 1}}}


def test_a_group_of_mixed_policies_is_as_stale_as_its_oldest_member() -> None:
    sampler = Decider(max_policy_lag=2)
    sampler.seal(GroupSpec(weight_steps=(0, 5)), GroupSpec(weight_steps=(4, 5)))
    sampler.do(Resume(checkpointed_step=4))
    sampler.do(PublishPolicy(step=5, policy_version="step-5"))
    assert [chosen.index for chosen in sampler.serve(5, 1).groups] == [1]


def test_policies_beyond_the_checkpoint_are_off_the_branch_after_a_resume() -> None:
    sampler = Decider()
    sampler.seal(*specs(4))
    sampler.serve(0)
    sampler.serve(1)
    sampler.do(Resume(checkpointed_step=0, later="release"))
    assert sampler.state.policy_epoch == 1
    sampler.seal(
        GroupSpec(example_id="loaded", weight_step=1),
        GroupSpec(example_id="old", weight_step=2),
        GroupSpec(example_id="new", weight_step=1, policy_epoch=1),
    )
    chosen = sampler.examples(sampler.serve(1, 4))
    assert {"loaded", "new"} <= set(chosen)
    assert "old" not in chosen
    assert sampler.progress().dropped == {"math": {"old": {"off_branch": 1}}}


def test_a_name_that_begins_at_a_checkpoint_has_the_weights_beyond_it_off_its_branch() -> None:
    sampler = Decider()
    sampler.do(Resume(checkpointed_step=20))
    assert sampler.do(PublishPolicy(step=21, policy_version="step-21")).epoch == 1
    sampler.seal(
        GroupSpec(example_id="loaded", weight_step=21),
        GroupSpec(example_id="lost", weight_step=40),
        GroupSpec(example_id="new", weight_step=21, policy_epoch=1),
    )
    assert set(sampler.examples(sampler.serve(21, 2))) == {"loaded", "new"}
    assert sampler.progress().dropped == {"math": {"lost": {"off_branch": 1}}}


def test_a_resume_drops_no_group_of_another_lineage() -> None:
    sampler = Decider(lineage="b", max_policy_lag=-1)
    sampler.seal(*specs(2, lineage="b"))
    sampler.serve(0)
    sampler.do(Resume(checkpointed_step=None))
    sampler.seal(
        GroupSpec(example_id="ours", lineage="b", weight_step=9),
        GroupSpec(example_id="theirs", lineage="a", weight_step=9),
    )
    assert sampler.examples(sampler.serve(1, 1)) == ["theirs"]
    assert sampler.progress().dropped == {"math": {"ours": {"off_branch": 1}}}


def test_the_first_resume_of_a_new_run_keeps_what_was_sampled_before_it() -> None:
    sampler = Decider()
    sampler.seal(*specs(2, weight_step=0))
    assert sampler.do(Resume(checkpointed_step=None)) == 0
    assert sampler.do(Resume(checkpointed_step=None)) == 0, "as after a lost reply"
    sampler.serve(0)


def test_groups_with_equal_rewards_are_filtered_on_request() -> None:
    sampler = Decider()
    sampler.seal(*specs(3, rewards=(1.0, 1.0)), *specs(2))
    batch = sampler.serve(0, 2, accept="nonzero_std")
    assert {chosen.index for chosen in batch.groups} == {3, 4}
    assert sampler.progress().filtered == {"math": {"ex-0": 1, "ex-1": 1, "ex-2": 1}}


def test_capacity_evicts_the_oldest_and_never_a_group_of_an_open_batch() -> None:
    sampler = Decider(capacity_groups=3)
    sampler.seal(*specs(2))
    batch = sampler.serve(0, 2)
    for _ in range(3):
        sampler.seal(*specs(2))
    sampler.evict()
    assert sampler.state.ready.refs() == [
        GroupRef("math", 1, 0, 2, 1),
        GroupRef("math", 1, 0, 3, 0),
        GroupRef("math", 1, 0, 3, 1),
    ]
    assert all(sampler.state.group(chosen) is not None for chosen in batch.groups)


def test_open_batches_are_bounded_until_checkpointed() -> None:
    sampler = Decider(max_open_batches=2)
    sampler.seal(*specs(8))
    sampler.serve(0)
    sampler.serve(1)
    with pytest.raises(TooManyOpenBatches, match="checkpointed"):
        sampler.serve(2)
    sampler.do(MarkCheckpointed(step=0))
    sampler.serve(2)


def test_resume_with_replay_serves_later_batches_again() -> None:
    sampler = Decider()
    sampler.seal(*specs(8))
    batches = [sampler.serve(step) for step in range(3)]
    assert sampler.do(Resume(checkpointed_step=0, later="replay")) == 1
    assert [sampler.serve(step).digest for step in (1, 2)] == [b.digest for b in batches[1:]]
    assert sampler.state.batches[0].final


def test_resume_with_release_makes_later_groups_eligible_again() -> None:
    sampler = Decider()
    sampler.seal(*specs(6))
    first = sampler.serve(0)
    later = [sampler.serve(step) for step in (1, 2)]
    sampler.do(Resume(checkpointed_step=0, later="release"))
    again = sampler.serve(1, 4)
    assert {g.group_id for g in again.groups} == {g.group_id for b in later for g in b.groups}
    assert not {g.group_id for g in again.groups} & {g.group_id for g in first.groups}


@pytest.mark.proves("F1", "F3")
def test_final_groups_stay_final_when_a_trainer_goes_back_before_its_checkpoint() -> None:
    sampler = Decider()
    sampler.seal(*specs(4))
    batches = [sampler.serve(step) for step in range(2)]
    sampler.do(MarkCheckpointed(step=1))
    sampler.do(Resume(checkpointed_step=0, later="release"))
    again = sampler.choose(NextBatch(step=1, num_groups=1))
    assert isinstance(again, NotEnoughGroups), "no final group is served anew"
    sampler.do(Resume(checkpointed_step=None, later="replay"))
    assert sampler.serve(0).digest == batches[0].digest


def test_final_batches_are_held_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollstream.folds.state.FINAL_BATCHES_KEPT", 2)
    sampler = Decider()
    sampler.seal(*specs(8))
    for step in range(4):
        sampler.serve(step)
        sampler.do(MarkCheckpointed(step=step))
    assert sorted(sampler.state.batches) == [2, 3]
    with pytest.raises(UnknownStep, match="next one to be served is 4"):
        sampler.serve(5)
    assert sampler.do(Resume(checkpointed_step=0, later="replay")) == 1
    with pytest.raises(AssertionError, match="step 1 is read from the record"):
        sampler.do(NextBatch(step=1, num_groups=2))
    sampler.do(Ack(step=1, batch_id="whichever"))
    assert sampler.state.next_step == 4
    assert sampler.do(Resume(checkpointed_step=0, later="release")) == 1
    assert sampler.state.next_step == 1


def test_a_replay_after_a_release_goes_on_with_final_steps_that_are_no_longer_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.folds.state.FINAL_BATCHES_KEPT", 1)
    sampler = Decider()
    sampler.seal(*specs(8))
    for step in range(3):
        sampler.serve(step)
        sampler.do(MarkCheckpointed(step=step))
    sampler.do(Resume(checkpointed_step=1, later="release"))
    assert not sampler.state.batches
    assert sampler.do(Resume(checkpointed_step=None, later="replay")) == 0
    with pytest.raises(AssertionError, match="step 0 is read from the record"):
        sampler.do(NextBatch(step=0, num_groups=2))
    assert sampler.state.next_step == 2, "what was released is served anew"


def test_a_checkpoint_beyond_what_was_served_is_refused() -> None:
    sampler = Decider()
    sampler.seal(*specs(2))
    sampler.serve(0)
    with pytest.raises(UnknownStep, match="newest step that sampler 'trainer-a' served is 0"):
        sampler.do(Resume(checkpointed_step=7))


def test_a_trainer_of_an_older_epoch_is_fenced() -> None:
    sampler = Decider()
    sampler.seal(*specs(2))
    sampler.do(Resume(checkpointed_step=None))
    old = sampler.state.trainer_epoch
    batch = sampler.serve(0, trainer_epoch=old)
    sampler.do(Resume(checkpointed_step=None))
    commands: tuple[Command[Any], ...] = (
        NextBatch(step=0, num_groups=2, trainer_epoch=old),
        Ack(step=0, batch_id=batch.event.batch_id, trainer_epoch=old),
        MarkCheckpointed(step=0, trainer_epoch=old),
        PublishPolicy(step=1, policy_version="step-1", trainer_epoch=old),
    )
    for command in commands:
        with pytest.raises(Fenced, match="successor has resumed"):
            sampler.do(command)


def test_progress_follows_examples_until_they_are_final() -> None:
    sampler = Decider()
    sampler.seal(*specs(3))
    sampler.serve(0, 2)
    sampler.serve(1, 1)
    assert sum(sampler.progress().handed_out["math"].values()) == 3
    sampler.do(MarkCheckpointed(step=0))
    now = sampler.progress()
    assert sum(now.trained["math"].values()) == 2
    assert sum(now.handed_out["math"].values()) == 1
    assert (now.next_step, now.final_step) == (2, 0)


def test_replace_puts_other_groups_into_the_slots_once() -> None:
    sampler = Decider()
    sampler.seal(*specs(6))
    batch = sampler.serve(0, 3)
    command = Replace(step=0, digest=batch.digest, slots=(1,), reason="all equal")
    new = sampler.choose(command)
    assert isinstance(new, ServedBatch)
    assert [a == b for a, b in zip(batch.groups, new.groups, strict=True)] == [True, False, True]
    assert sampler.choose(command) == new
    assert sampler.serve(0, 3) == new
    with pytest.raises(RequestDiffers, match="has changed"):
        sampler.choose(Replace(step=0, digest=batch.digest, slots=(2,), reason="all equal"))


@pytest.mark.parametrize("status", ["trained", "failed", None])
def test_groups_of_a_final_batch_stay_whatever_it_was_acked_as(status: AckStatus | None) -> None:
    sampler = Decider()
    sampler.seal(*specs(6))
    batch = sampler.serve(0, 3)
    if status is not None:
        sampler.do(Ack(step=0, batch_id=batch.event.batch_id, status=status))
    sampler.do(MarkCheckpointed(step=0))
    with pytest.raises(RequestDiffers, match="step 0 is final: a checkpoint or a resume") as told:
        sampler.choose(Replace(step=0, digest=batch.digest, slots=(1,), reason="late"))
    assert "trained" not in str(told.value)


def test_policies_have_one_version_each_and_no_version_names_two() -> None:
    sampler = Decider()
    sampler.do(Resume(checkpointed_step=1))
    first = sampler.do(PublishPolicy(step=1, policy_version="step-1"))
    assert first == Policy("", 1, 1, "step-1")
    assert sampler.do(PublishPolicy(step=1, policy_version="step-1")) == first
    with pytest.raises(RequestDiffers, match="one version"):
        sampler.do(PublishPolicy(step=1, policy_version="other"))
    with pytest.raises(RequestDiffers, match="never used again"):
        sampler.do(PublishPolicy(step=2, policy_version="step-1"))
    sampler.do(Resume(checkpointed_step=0))
    again = sampler.do(PublishPolicy(step=1, policy_version="step-1"))
    assert again == Policy("", 2, 1, "step-1.e2")
    assert sampler.do(PublishPolicy(step=1, policy_version="step-1")) == again


def test_weights_beyond_the_next_batch_cannot_be_published() -> None:
    sampler = Decider(max_policy_lag=4)
    sampler.seal(*specs(4))
    sampler.serve(0)
    written = len(sampler.events)
    with pytest.raises(UnknownStep, match=r"weights 5000 .* next batch to be served is 1; .* 1, "):
        sampler.do(PublishPolicy(step=5000, policy_version="step-5000"))
    assert len(sampler.events) == written
    sampler.do(PublishPolicy(step=1, policy_version="step-1"))
    assert isinstance(sampler.serve(1), ServedBatch), "nothing was dropped"
    sampler.do(Resume(checkpointed_step=0, later="release"))
    with pytest.raises(UnknownStep, match="at most 1"):
        sampler.do(PublishPolicy(step=2, policy_version="step-2"))


def test_more_ranks_than_groups_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"dp_size 4 is above num_groups 2, .* a group a rank"):
        NextBatch(step=0, num_groups=2, dp_rank=3, dp_size=4)


@pytest.mark.proves("F20")
def test_a_replacement_is_another_batch_and_acks_and_checkpoints_name_it() -> None:
    sampler = Decider()
    sampler.seal(*specs(8))
    first = sampler.serve(0, 3)
    ids = [first.batch_id]
    for _ in range(2):
        before = sampler.state.batches[0]
        new = sampler.choose(Replace(step=0, digest=before.digest, slots=(1,), reason="equal"))
        assert isinstance(new, ServedBatch)
        ids.append(new.batch_id)
    assert ids == [first.batch_id, f"{first.batch_id}-r1", f"{first.batch_id}-r2"]
    for old in ids[:2]:
        with pytest.raises(RequestDiffers, match=f"is batch '{ids[2]}', not '{old}': .* replaced"):
            sampler.do(Ack(step=0, batch_id=old))
    sampler.do(Ack(step=0, batch_id=ids[2]))
    with pytest.raises(RequestDiffers, match="acked as 'trained'"):
        sampler.choose(Replace(step=0, digest=None, slots=(0,), reason="late"))
    sampler.do(MarkCheckpointed(step=0))
    saved = sampler.events[-1]
    assert isinstance(saved, Checkpointed)
    assert saved.batch_id == ids[2]


@pytest.mark.parametrize(("uses", "named"), [(-1, "they are"), (2, "max_samples = 2"), (1, "")])
def test_groups_that_an_ack_gives_back_and_retired_ones_are_named(uses: int, named: str) -> None:
    sampler = Decider(max_samples=uses)
    sampler.seal(*specs(2))
    sampler.seal(*specs(3))
    sampler.retire(LOGS[1], 1)
    sampler.evict()
    sampler.serve(0, 2)
    error = sampler.choose(NextBatch(step=1, num_groups=2))
    assert "3 were retired" in str(error)
    assert "no more were sealed" not in str(error)
    said = f"2 are in batches that are not acked: {named}" if uses < 0 else "that are not acked"
    assert (said in str(error), named in str(error)) == (uses != 1, True)
