"""What every sampler promises: in process on the twin and on Kafka, and over Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.groups import EVERY_COLUMN, GroupSpec, every_extra, routed_experts
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld, log_end, memory_world
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import (
    Batch,
    Fenced,
    InvalidRequest,
    NotEnoughGroups,
    Policy,
    RequestDiffers,
    SamplerApi,
    TooManyOpenBatches,
    UnknownStep,
)
from rollstream.status import measure

WAIT_S = 30.0


def specs(count: int, **fields: Any) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{i}", **fields) for i in range(count)]


def same_bytes(left: Batch, right: Batch) -> bool:
    one, two = left.arrays(), right.arrays()
    return (
        list(one) == list(two)
        and all(one[name].tobytes() == two[name].tobytes() for name in one)
        and (left.batch_id, left.digest, left.uids) == (right.batch_id, right.digest, right.uids)
    )


@pytest.mark.proves("I6")
def test_a_step_asked_again_gives_the_same_bytes(world: SamplerWorld) -> None:
    world.writer().flush(*specs(6, extras=(every_extra(),)))
    one, two = world.open(), world.open()
    assert one.resume(None) == 0
    first = one.next_batch(0, 3, timeout_s=WAIT_S)
    assert (len(first), first.num_groups) == (6, 3)
    assert same_bytes(first, one.next_batch(0, 3, timeout_s=WAIT_S))
    assert same_bytes(first, two.next_batch(0, 3, timeout_s=WAIT_S))
    ahead = one.next_batch(1, 3, timeout_s=WAIT_S)
    assert not set(ahead.sampled.group_ids) & set(first.sampled.group_ids)


@pytest.mark.proves("F1", "I5", "I6")
def test_a_restart_goes_on_where_it_stood_with_the_same_bytes(world: SamplerWorld) -> None:
    writer = world.writer()
    writer.flush(*specs(4))
    sampler = world.open()
    sampler.resume(None)
    first = sampler.next_batch(0, 2, timeout_s=WAIT_S)
    sampler.ack(first)
    second = sampler.next_batch(1, 2, timeout_s=WAIT_S)
    sampler.publish_policy(1, policy_version="step-1")
    world.restart()
    writer.flush(*specs(4))
    sampler = world.open()
    assert same_bytes(first, sampler.next_batch(0, 2, timeout_s=WAIT_S))
    assert same_bytes(second, sampler.next_batch(1, 2, timeout_s=WAIT_S))
    third = sampler.next_batch(2, 4, timeout_s=WAIT_S)
    served = {*first.sampled.group_ids, *second.sampled.group_ids}
    assert not served & set(third.sampled.group_ids)
    assert sampler.stats().newest_policy_step == 1


@WITHOUT_RAY
def test_ranks_share_the_one_recorded_batch_remainder_included(world: SamplerWorld) -> None:
    world.writer().flush(*specs(5))
    sampler = world.open()
    whole = sampler.next_batch(0, 5, timeout_s=WAIT_S)
    shares = [sampler.next_batch(0, 5, timeout_s=WAIT_S, dp_rank=r, dp_size=2) for r in (0, 1)]
    assert [s.slots for s in shares] == [(0, 2, 4), (1, 3)]
    assert sorted(uid for s in shares for uid in s.uids) == sorted(whole.uids)
    for part in shares:
        assert part.batch_id == whole.batch_id
        for i, uid in enumerate(part.uids):
            at = whole.uids.index(uid)
            assert np.array_equal(
                part.tokens[part.offsets[i] : part.offsets[i + 1]],
                whole.tokens[whole.offsets[at] : whole.offsets[at + 1]],
            )


@pytest.mark.proves("F15")
def test_columns_are_how_a_batch_is_read_and_differ_from_call_to_call(world: SamplerWorld) -> None:
    writer = world.writer()
    writer.flush(*specs(3, extras=(every_extra(), routed_experts())))
    sampler = world.open()
    plain = sampler.next_batch(0, 3, timeout_s=WAIT_S)
    assert (plain.columns, dict(plain.token_arrays), plain.metadata, plain.group_uids) == (
        (),
        {},
        None,
        None,
    )
    asked: tuple[tuple[str, ...], ...] = (("token_rewards",), EVERY_COLUMN, ("routed_experts",))
    for columns in asked:
        batch = sampler.next_batch(0, 3, timeout_s=WAIT_S, columns=columns)
        arrays = batch.arrays()
        named = {name.removeprefix("token_arrays/") for name in arrays.keys() - plain.arrays()}
        assert named == set(columns) - {"metadata", "group_uids", "worker_ids"}
        without = {name: arrays[name].tobytes() for name in plain.arrays()}
        assert without == {name: array.tobytes() for name, array in plain.arrays().items()}
        assert (batch.digest, batch.batch_id) == (plain.digest, plain.batch_id)
    batch = sampler.next_batch(0, 3, timeout_s=WAIT_S, columns=list(EVERY_COLUMN))
    arrays = batch.arrays()
    record = batch.records(1)[0]
    outputs = slice(int(batch.offsets[2] + batch.prompt_lengths[2]), int(batch.offsets[3]))
    for name in ("old_logprobs", "ref_logprobs", "token_rewards", "token_weight_steps"):
        of_record = getattr(record, name.replace("token_weight_steps", "weight_steps"))
        assert np.array_equal(arrays[name][outputs], of_record)
    experts = record.token_arrays["routed_experts"]
    assert np.array_equal(arrays["token_arrays/routed_experts"][outputs], experts)
    assert batch.metadata == ({"temperature": 0.8}, {}) * 3
    groups = [batch.records(index)[0].group_uid for index in range(3)]
    assert batch.group_uids == tuple(uid for uid in groups for _ in range(2))
    writer.flush(GroupSpec(example_id="spare"))
    replaced = sampler.replace(batch, [1], "tried", timeout_s=WAIT_S)
    assert replaced.columns == EVERY_COLUMN
    assert same_bytes(replaced, sampler.next_batch(0, 3, timeout_s=WAIT_S, columns=EVERY_COLUMN))
    world.restart()
    again = world.open().next_batch(0, 3, timeout_s=WAIT_S, columns=EVERY_COLUMN)
    assert same_bytes(replaced, again)


def test_a_rank_holds_the_memory_of_its_share_alone(world: SamplerWorld) -> None:
    world.writer().flush(*specs(8, output=512, extras=(every_extra(512),) * 2))
    sampler = world.open()

    def memory(dp_rank: int, dp_size: int) -> int:
        batch = sampler.next_batch(
            0, 8, timeout_s=WAIT_S, columns=EVERY_COLUMN, dp_rank=dp_rank, dp_size=dp_size
        )
        buffers = {id(array.base): array.base for array in batch.arrays().values()}
        assert len(buffers) == 1, "all arrays lie in one buffer"
        return sum(buffer.nbytes for buffer in buffers.values() if buffer is not None)

    arrays = len(sampler.next_batch(0, 8, columns=EVERY_COLUMN).arrays())
    whole = memory(0, 1)
    for rank in range(4):
        assert memory(rank, 4) <= whole / 4 + 64 * arrays


def test_other_arguments_for_a_served_step_are_refused(world: SamplerWorld) -> None:
    world.writer().flush(*specs(4))
    sampler = world.open()
    sampler.next_batch(0, 2, timeout_s=WAIT_S)
    with pytest.raises(RequestDiffers, match="num_groups"):
        sampler.next_batch(0, 3, timeout_s=WAIT_S)
    with pytest.raises(UnknownStep, match="next one to be served is 1"):
        sampler.next_batch(5, 2, timeout_s=WAIT_S)


@pytest.mark.proves("F16")
def test_too_few_groups_in_time_say_why(world: SamplerWorld) -> None:
    world.configure(score_timeout_s=4e9)  # These groups were sealed long ago.
    world.writer().flush(
        GroupSpec(),
        GroupSpec(rewards=(None, 1.0)),
        GroupSpec(split="eval"),
        GroupSpec(split="eval"),
    )
    sampler = world.open()
    sampler.resume(None)
    assert sampler.next_batch(0, 1, timeout_s=WAIT_S)
    with pytest.raises(NotEnoughGroups, match="step 1 needs 1 groups") as raised:
        sampler.next_batch(1, 1, timeout_s=0.05)
    assert raised.value.ready == {}
    assert raised.value.waiting == {"reward": 1, "eval": 2}


@WITHOUT_RAY
@pytest.mark.proves("F3")
def test_resume_with_replay_serves_later_steps_again(world: SamplerWorld) -> None:
    world.writer().flush(*specs(6))
    old = world.open()
    old.resume(None)
    batches = [old.next_batch(step, 2, timeout_s=WAIT_S) for step in range(3)]
    old.checkpointed(0)
    new = world.open()
    assert new.resume(0, later="replay") == 1
    for step in (1, 2):
        assert same_bytes(batches[step], new.next_batch(step, 2, timeout_s=WAIT_S))


@pytest.mark.proves("F3", "I7")
def test_resume_with_release_serves_later_groups_anew(world: SamplerWorld) -> None:
    world.writer().flush(*specs(6))
    old = world.open()
    old.resume(None)
    batches = [old.next_batch(step, 2, timeout_s=WAIT_S) for step in range(3)]
    new = world.open()
    assert new.resume(0, later="release") == 1
    again = new.next_batch(1, 4, timeout_s=WAIT_S)
    later = {group for batch in batches[1:] for group in batch.sampled.group_ids}
    assert set(again.sampled.group_ids) == later
    with pytest.raises(NotEnoughGroups):
        new.next_batch(2, 1, timeout_s=0.05)


def test_a_trainer_that_wakes_up_after_its_successor_resumed_is_fenced(
    world: SamplerWorld,
) -> None:
    world.writer().flush(*specs(4))
    old = world.open()
    old.resume(None)
    batch = old.next_batch(0, 2, timeout_s=WAIT_S)
    new = world.open()
    new.resume(None)
    calls: list[Callable[[], Any]] = [
        lambda: old.next_batch(0, 2, timeout_s=WAIT_S),
        lambda: old.ack(batch),
        lambda: old.checkpointed(0),
        lambda: old.publish_policy(1, policy_version="step-1"),
        old.progress,
    ]
    for call in calls:
        with pytest.raises(Fenced, match="successor has resumed"):
            call()
    new.ack(new.next_batch(0, 2, timeout_s=WAIT_S))


def test_a_client_joins_the_trainer_epoch_in_effect_at_its_first_call_that_decides(
    world: SamplerWorld,
) -> None:
    world.writer().flush(*specs(2))
    early, trainer = world.open(), world.open()
    assert early.progress().next_step == early.stats().next_step == 0
    trainer.resume(None)
    assert early.progress().next_step == early.stats().next_step == 0
    assert early.trainer_epoch is None
    early.next_batch(0, 2, timeout_s=WAIT_S)
    assert early.trainer_epoch == trainer.trainer_epoch


@WITHOUT_RAY
@pytest.mark.proves("F20")
def test_looking_at_a_sampler_that_was_never_used_writes_nothing(world: SamplerWorld) -> None:
    world.writer().flush(*specs(3))
    sampler = world.open()
    stats = sampler.stats()
    assert (stats.ready, stats.next_step, stats.owner, stats.epoch) == ({"math": 3}, 0, "", -1)
    assert sampler.progress().ready == {"math": 3}
    assert log_end(world) == 0
    world.writer("code").flush(*specs(1))
    assert sampler.stats().ready == {"math": 3, "code": 1}
    assert len(sampler.next_batch(0, 4, timeout_s=WAIT_S)) == 8
    assert sampler.stats().epoch == 0


@WITHOUT_RAY
@pytest.mark.proves("F20")
def test_looking_disturbs_no_trainer_and_sees_what_it_decides(world: SamplerWorld) -> None:
    world.writer().flush(*specs(4))
    trainer = world.open()
    trainer.resume(None)
    batch = trainer.next_batch(0, 2, timeout_s=WAIT_S)
    written, owner = log_end(world), trainer.stats().owner
    onlooker = world.successor()
    assert (onlooker.stats().next_step, onlooker.progress().next_step) == (1, 1)
    assert log_end(world) == written
    trainer.ack(batch)
    trainer.next_batch(1, 2, timeout_s=WAIT_S)
    trainer.checkpointed(0)
    assert onlooker.stats().owner == owner
    assert (onlooker.stats().next_step, onlooker.progress().final_step) == (2, 0)
    trainer.resume(1)
    assert onlooker.progress().final_step == 1
    onlooker.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda sampler, batch: sampler.resume(None),
        lambda sampler, batch: sampler.next_batch(0, 2, timeout_s=WAIT_S),
        lambda sampler, batch: sampler.replace(batch, [0], "why", timeout_s=WAIT_S),
        lambda sampler, batch: sampler.ack(batch),
        lambda sampler, batch: sampler.checkpointed(0),
        lambda sampler, batch: sampler.publish_policy(1, policy_version="step-1"),
    ],
    ids=["resume", "next_batch", "replace", "ack", "checkpointed", "publish_policy"],
)
def test_a_call_that_decides_takes_the_name_over(call: Callable[[SamplerApi, Batch], Any]) -> None:
    world = memory_world()
    world.writer().flush(*specs(6))
    first, second = world.open(), world.successor()
    batch = first.next_batch(0, 2, timeout_s=WAIT_S)
    second.stats()
    first.next_batch(1, 2, timeout_s=WAIT_S)
    call(second, batch)
    for look in (first.stats, first.progress, lambda: first.next_batch(1, 2, timeout_s=WAIT_S)):
        with pytest.raises(Fenced, match="taken over"):
            look()
    second.close()
    world.close()


@WITHOUT_RAY
@pytest.mark.proves("A15")
def test_published_policies_set_the_lag(world: SamplerWorld) -> None:
    world.configure(max_policy_lag=1)
    writer = world.writer()
    writer.flush(*specs(2, weight_step=0))
    sampler = world.open()
    sampler.resume(1)
    sampler.publish_policy(0, policy_version="step-0")
    policy = sampler.publish_policy(2, policy_version="step-2")
    assert policy == Policy("", 1, 2, "step-2")
    assert sampler.publish_policy(2, policy_version="step-2") == policy
    writer.flush(*specs(2, weight_step=1))
    batch = sampler.next_batch(2, 2, timeout_s=WAIT_S)
    assert batch.weight_steps.tolist() == [1, 1, 1, 1]
    assert batch.policy_step == 2
    assert sampler.progress().dropped == {"math": {"ex-0": {"stale": 1}, "ex-1": {"stale": 1}}}


def test_open_batches_are_bounded_until_checkpointed(world: SamplerWorld) -> None:
    world.configure(max_open_batches=1)
    world.writer().flush(*specs(4))
    sampler = world.open()
    sampler.resume(None)
    sampler.ack(sampler.next_batch(0, 2, timeout_s=WAIT_S))
    with pytest.raises(TooManyOpenBatches, match="checkpointed"):
        sampler.next_batch(1, 2, timeout_s=WAIT_S)
    sampler.checkpointed(0)
    sampler.next_batch(1, 2, timeout_s=WAIT_S)
    assert sum(sampler.progress().trained["math"].values()) == 2


def is_over(world: SamplerWorld) -> bool:
    (figures,) = measure(world.broker(), world.config, Deadline(WAIT_S)).samplers
    return figures.over


def save_and_fail(sampler: SamplerApi) -> None:
    with sampler:
        sampler.next_batch(0, 1, timeout_s=WAIT_S)
        sampler.checkpointed(0)
        raise KeyError


@pytest.mark.proves("F17")
def test_leaving_after_the_last_checkpoint_ends_the_run_until_it_goes_on(
    world: SamplerWorld,
) -> None:
    world.writer().flush(*specs(4))
    sampler = world.open()
    with pytest.raises(KeyError):
        save_and_fail(world.open())
    assert not is_over(world)
    with world.open() as client:
        client.next_batch(1, 1, timeout_s=WAIT_S)
        client.checkpointed(1)
        client.next_batch(2, 1, timeout_s=WAIT_S)
    assert not is_over(world)
    with world.open() as client:
        client.checkpointed(2)
        client.publish_policy(3, policy_version="last")
    assert is_over(world)
    sampler.next_batch(3, 1, timeout_s=WAIT_S)
    assert not is_over(world)
    sampler.finish()
    sampler.finish()
    assert is_over(world)


@WITHOUT_RAY
@pytest.mark.proves("F13")
def test_replace_changes_slots_and_is_recorded(world: SamplerWorld) -> None:
    writer = world.writer()
    writer.flush(*specs(3))
    sampler = world.open()
    batch = sampler.next_batch(0, 3, timeout_s=WAIT_S)
    writer.flush(GroupSpec(example_id="spare"))
    new = sampler.replace(batch, [1], "all equal", timeout_s=WAIT_S)
    assert [
        a == b for a, b in zip(batch.sampled.group_ids, new.sampled.group_ids, strict=True)
    ] == [
        True,
        False,
        True,
    ]
    assert same_bytes(new, sampler.next_batch(0, 3, timeout_s=WAIT_S))
    assert sampler.progress().filtered == {"math": {example_of(batch, 1): 1}}
    assert new.batch_id == new.sampled.batch_id == f"{batch.batch_id}-r1"
    with pytest.raises(RequestDiffers, match="were replaced"):
        sampler.ack(batch)
    sampler.ack(new)


@WITHOUT_RAY
def test_replace_by_step_a_second_time_is_a_repeated_call_until_the_batch_is_final(
    world: SamplerWorld,
) -> None:
    world.writer().flush(*specs(4))
    sampler = world.open()
    sampler.next_batch(0, 2, timeout_s=WAIT_S)
    new = sampler.replace(0, [1], "all equal", timeout_s=WAIT_S)
    assert sampler.replace(0, [1], "all equal", timeout_s=WAIT_S).batch_id == new.batch_id
    other = sampler.replace(0, [1], "too easy", timeout_s=WAIT_S)
    assert other.sampled.group_ids[1] != new.sampled.group_ids[1]
    sampler.checkpointed(0)
    with pytest.raises(RequestDiffers, match="step 0 is final"):
        sampler.replace(0, [1], "too easy", timeout_s=WAIT_S)


@WITHOUT_RAY
def test_a_step_that_is_open_again_is_not_called_final(world: SamplerWorld) -> None:
    world.writer().flush(*specs(6))
    sampler = world.open()
    for step in range(4):
        sampler.next_batch(step, 1, timeout_s=WAIT_S)
    sampler.checkpointed(3)
    assert sampler.resume(1, later="release") == 2
    sampler.next_batch(2, 1, timeout_s=WAIT_S)
    with pytest.raises(UnknownStep, match="served is 3 and steps up to 1 are final"):
        sampler.checkpointed(9)
    sampler.checkpointed(2)
    with pytest.raises(UnknownStep, match="served is 3 and steps up to 2 are final"):
        sampler.checkpointed(9)


def example_of(batch: Batch, group: int) -> str:
    """The example of a group of a batch made by ``specs``."""
    return f"ex-{batch.uids[int(np.argmax(batch.group_index == group))].split('-g')[1][0]}"


@pytest.mark.proves("A2")
def test_a_batch_reads_all_fields_of_its_groups_on_request(world: SamplerWorld) -> None:
    flushed = world.writer().flush(*specs(2))
    sampler = world.open()
    batch = sampler.next_batch(0, 2, timeout_s=WAIT_S)
    records = batch.records(1)
    assert [record.rollout_uid for record in records] == list(batch.uids[2:])
    assert records[0].policy_version == "step-0"
    assert (
        records[0].output_tokens.tolist()
        == batch.tokens[batch.offsets[2] + batch.prompt_lengths[2] : batch.offsets[3]].tolist()
    )
    group = batch.group(np.int64(1))
    assert group.id == batch.sampled.group_ids[1]
    assert (group.environment, group.policy_version) == ("math", "step-0")
    assert group.metadata["uids"] == sorted(batch.uids[2:])
    assert group.sealed_ts == flushed.now_ts


def test_environments_mix_by_share(world: SamplerWorld) -> None:
    world.writer("math", 1).flush(*specs(4))
    world.writer("code").flush(*specs(4))
    sampler = world.open()
    batch = sampler.next_batch(0, 4, timeout_s=WAIT_S, mix={"math": 0.75, "code": 0.25})
    assert sorted(batch.environments) == ["code"] * 2 + ["math"] * 6


@WITHOUT_RAY
def test_a_second_owner_takes_over_and_the_first_is_fenced(world: SamplerWorld) -> None:
    world.writer().flush(*specs(4))
    first = world.open()
    batch = first.next_batch(0, 2, timeout_s=WAIT_S)
    successor = world.successor()
    assert same_bytes(batch, successor.next_batch(0, 2, timeout_s=WAIT_S))
    with pytest.raises(Fenced, match="taken over"):
        first.next_batch(0, 2, timeout_s=WAIT_S)  # Served: it would append nothing.
    with pytest.raises(Fenced, match="taken over"):
        first.next_batch(1, 2, timeout_s=WAIT_S)
    successor.next_batch(1, 2, timeout_s=WAIT_S)
    successor.close()


def test_a_sampler_outlives_an_environment_that_it_no_longer_serves() -> None:
    world = memory_world()
    world.writer("math").flush(*specs(2))
    world.writer("code").flush(*specs(2))
    sampler = world.open()
    step = sampler.resume(None)
    sampler.next_batch(step, 3, timeout_s=WAIT_S)
    world.restart()
    world.configure(environments=["math"])
    sampler = world.open()
    with pytest.raises(InvalidRequest, match=r"'code', which .* any more"):
        sampler.next_batch(step, 3, timeout_s=WAIT_S)
    assert sampler.resume(None, later="release") == step
    batch = sampler.next_batch(step, 2, timeout_s=WAIT_S)
    assert batch.environments == ("math",) * 4
    world.close()
