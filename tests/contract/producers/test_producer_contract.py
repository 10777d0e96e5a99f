"""What both producers promise, on the broker in memory and on Kafka."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from harness.producer_stage import Stage
from harness.producers import PARTITIONS, AnyProducer, failures_of, sampled, segments_of
from rollstream.producers import InvalidRollout, ProducerClosed, RolloutTooLarge, UnknownTopic
from rollstream.producers.engine.outbox import ROLLOUT_BYTES_MAX
from rollstream.schemas.ids import prefix_hash
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.schemas.ingest.gather import gather
from rollstream.schemas.records import records_from
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import RECORD_BYTES_MAX


@pytest.mark.proves("A1", "E1", "F15")
def test_everything_that_publish_was_given_is_in_the_log(stage: Stage) -> None:
    experts = np.arange(24, dtype=np.uint8).reshape(3, 4, 2)

    async def scenario(producer: AnyProducer) -> str:
        return await producer.publish(
            example_id="aime-17",
            environment="code",
            group_uid="group-7",
            group_size=8,
            policy_version="step-120",
            policy_epoch=2,
            weight_step=[120, 120, 121],
            prompt_tokens=[1, 2],
            output_tokens=np.array([3, 4, 5]),
            logprobs=np.array([-0.5, -0.25, -0.125], np.float64),
            loss_mask=[True, False, True],
            reward=1,
            rewards={"format": 0.5},
            stop_reason="length",
            split="eval",
            metadata={"temperature": 0.8},
            old_logprobs=-3.0,
            old_policy_version="step-121",
            ref_logprobs=[-1.0, -2.0, -3.0],
            token_rewards=[0.0, 0.0, 1.0],
            token_arrays={"routed_experts": experts},
            attachments={"image": b"\x89PNG"},
            messages=[{"role": "user", "content": "2+2?"}],
        )

    uid = stage.play(scenario, lineage="main", worker_id="worker-1")
    (logged,) = stage.log("code")
    assert (logged.record.worker_id, logged.record.partitions) == ("worker-1", PARTITIONS)
    (record,) = records_from(gather([logged.record], [0]))
    assert (record.rollout_uid, record.environment) == (uid, "code")
    assert (record.replica_id, record.lineage) == ("replica-3", "main")
    assert (record.policy_version, record.policy_epoch, record.weight_step) == ("step-120", 2, 120)
    assert record.created_ts > 1_700_000_000_000_000
    assert (record.group_uid, record.group_size, record.split) == ("group-7", 8, "eval")
    assert record.prompt_tokens.tolist() == [1, 2]
    assert record.output_tokens.tolist() == [3, 4, 5]
    assert record.logprobs is not None
    assert record.logprobs.tolist() == [-0.5, -0.25, -0.125]
    assert record.loss_mask is not None
    assert record.loss_mask.tolist() == [True, False, True]
    assert (record.reward, record.rewards) == (1.0, {"format": 0.5})
    assert record.metadata == {"temperature": 0.8}
    assert record.old_logprobs == -3.0
    assert record.old_policy_version == "step-121"
    assert record.ref_logprobs is not None
    assert record.ref_logprobs.tolist() == [-1.0, -2.0, -3.0]
    assert record.token_rewards is not None
    assert record.token_rewards.tolist() == [0.0, 0.0, 1.0]
    assert record.weight_steps is not None
    assert record.weight_steps.tolist() == [120, 120, 121]
    assert np.array_equal(record.token_arrays["routed_experts"], experts)
    assert record.token_arrays["routed_experts"].dtype == np.uint8
    assert record.attachments == {"image": b"\x89PNG"}
    assert record.messages == ({"role": "user", "content": "2+2?"},)


@pytest.mark.proves("F16")
def test_a_reward_may_come_later(stage: Stage) -> None:
    stage.play(lambda producer: producer.publish(example_id="ex", **sampled(reward=None)))
    (segment,) = segments_of(stage.log())
    assert segment["reward"] is None


def test_the_group_or_else_the_example_decides_on_the_partition(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        await producer.publish(example_id="ex-1", **sampled())
        await producer.publish(example_id="ex-1", group_uid="group-1", **sampled())

    stage.play(scenario)
    found = {one.entry.key: one.partition for one in stage.log()}
    assert found == {key: partition_of(key.encode(), PARTITIONS) for key in ("ex-1", "group-1")}


@pytest.mark.proves("A4")
def test_a_uid_of_the_callers_is_kept_and_others_are_unique(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> list[str]:
        given = [
            await producer.publish(example_id="ex", rollout_uid="mine", **sampled())
            for _ in range(2)
        ]
        return given + [await producer.publish(example_id="ex", **sampled()) for _ in range(50)]

    uids = stage.play(scenario) + stage.play(scenario)
    assert uids.count("mine") == 4
    assert len(set(uids)) == 101
    assert sorted(uids) == sorted(s["rollout_uid"] for s in segments_of(stage.log()))


@pytest.mark.proves("A17")
def test_a_member_is_appended_behind_what_the_group_has(stage: Stage) -> None:
    group = {"example_id": "ex", "group_uid": "g"}

    async def scenario(producer: AnyProducer) -> str:
        await producer.publish(group_size=2, **group, **sampled())
        with pytest.raises(InvalidRollout, match="group_uid is ''; name the group"):
            await producer.append_to_group(example_id="ex", group_uid="", **sampled())
        with pytest.raises(TypeError, match="'group_size' is not given: one whole rollout is"):
            await producer.append_to_group(group_size=3, **group, **sampled())
        return await producer.append_to_group(rollout_uid="more", **group, **sampled())

    assert stage.play(scenario) == "more"
    first, more = stage.log()
    assert [first.entry.kind, more.entry.kind] == [EntryKind.SEGMENT, EntryKind.APPENDED]
    assert (more.partition, more.entry.key) == (first.partition, "g")
    (record,) = records_from(gather([more.record], [1 if more.record is first.record else 0]))
    assert (record.rollout_uid, record.group_size, record.is_last_segment) == ("more", 0, True)


@pytest.mark.proves("A17")
def test_a_dispatched_group_takes_one_more_until_its_last_member_is_there(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=2) as group:
            await group.publish(rollout_uid="a", **sampled())
            assert await group.append(rollout_uid="more", **sampled()) == "more"
            with pytest.raises(TypeError, match="'group_uid' is the group's"):
                await group.append(group_uid="g", **sampled())
            with pytest.raises(TypeError, match="'segment_idx' is not given: one whole rollout"):
                await group.append(segment_idx=1, **sampled())
            await group.publish(rollout_uid="b", **sampled())
            with pytest.raises(InvalidRollout, match="has all its 2 members, so it is sealed"):
                await group.append(rollout_uid="late", **sampled())

    stage.play(scenario)
    dispatched, *members = stage.log()
    assert [one.fields["rollout_uid"] for one in members] == ["a", "more", "b"]
    assert [one.entry.kind for one in members] == [
        EntryKind.SEGMENT,
        EntryKind.APPENDED,
        EntryKind.SEGMENT,
    ]
    addresses = [
        (one.partition, one.fields["group_uid"], one.fields["example_id"]) for one in members
    ]
    assert addresses == 3 * [(dispatched.partition, dispatched.fields["group_uid"], "ex")]


@pytest.mark.proves("A17", "F16")
def test_whoever_is_appended_fills_no_place_of_a_group_that_is_left_early(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=3) as group:
            await group.publish(**sampled())
            await group.append(**sampled())

    stage.play(scenario)
    assert failures_of(stage.log()) == [(2, "left early")]


@pytest.mark.proves("A8")
def test_a_dispatched_group_begins_with_its_control_event(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> str:
        async with producer.dispatch(example_id="aime-17", group_size=3) as group:
            for _ in range(3):
                await group.publish(**sampled())
            return group.group_uid

    uid = stage.play(scenario)
    found = stage.log()
    assert [one.entry.kind for one in found] == [EntryKind.DISPATCHED] + 3 * [EntryKind.SEGMENT]
    groups = [(f["group_uid"], f["group_size"], f["example_id"]) for f in (o.fields for o in found)]
    assert groups == [(uid, 3, "aime-17")] * 4
    assert {one.partition for one in found} == {partition_of(uid.encode(), PARTITIONS)}


@pytest.mark.proves("F16")
def test_a_failed_member_is_told_with_its_reason(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=3) as group:
            await group.publish(**sampled())
            await group.fail("sandbox died")
            await group.fail(RuntimeError("no answer"))

    stage.play(scenario)
    assert failures_of(stage.log()) == [
        (1, "sandbox died"),
        (1, "raised RuntimeError: no answer"),
    ]
    assert [one.fields["group_size"] for one in stage.log()] == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("reason", "count", "message"),
    [
        ("", 1, "reason is ''; give a string"),
        (3, 1, "reason is 3; give a string"),
        ("sandbox died", 0, "count is 0; give a number from 1"),
        ("sandbox died", 1.5, "count is 1.5; give a whole number"),
        ("sandbox died", "1", "count is '1'; give a whole number"),
        ("sandbox died", True, "count is True; give a whole number"),
        ("sandbox died", 4, "count is 4, but 3 of the 4 members"),
    ],
)
def test_a_failure_that_is_refused_leaves_the_members_missing(
    stage: Stage, reason: Any, count: Any, message: str
) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=4) as group:
            await group.publish(**sampled())
            with pytest.raises(InvalidRollout, match=message):
                await group.fail(reason, count=count)
            await group.fail("sandbox died", count=np.int64(2))  # type: ignore[arg-type]

    stage.play(scenario)
    assert failures_of(stage.log()) == [(2, "sandbox died"), (1, "left early")]


@pytest.mark.proves("F16")
def test_leaving_a_group_early_fails_what_is_missing(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=4) as group:
            await group.publish(**sampled())

    stage.play(scenario)
    assert failures_of(stage.log()) == [(3, "left early")]


@pytest.mark.proves("F16")
def test_an_exception_in_a_group_fails_what_is_missing_and_goes_on(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=4) as group:
            await group.publish(**sampled())
            raise RuntimeError("environment crashed")

    with pytest.raises(RuntimeError, match="environment crashed"):
        stage.play(scenario)
    assert failures_of(stage.log()) == [(3, "raised RuntimeError: environment crashed")]


def test_a_member_too_many_is_refused_and_a_retry_is_not(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=2) as group:
            uid = await group.publish(**sampled())
            assert await group.publish(rollout_uid=uid, **sampled()) == uid
            await group.publish(**sampled())
            with pytest.raises(InvalidRollout, match="all its 2 members"):
                await group.publish(**sampled())
            with pytest.raises(InvalidRollout, match="0 of the 2"):
                await group.fail("late")

    stage.play(scenario)
    assert failures_of(stage.log()) == []


def test_a_refused_member_leaves_its_place_to_another(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=1) as group:
            with pytest.raises(InvalidRollout):
                await group.publish(**sampled(logprobs=[0.0]))
            await group.publish(**sampled())

    stage.play(scenario)
    kinds = [one.entry.kind for one in stage.log()]
    assert kinds == [EntryKind.DISPATCHED, EntryKind.SEGMENT]


@pytest.mark.proves("A17")
def test_a_trajectory_is_segments_that_name_what_was_before(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> str:
        async with producer.trajectory(example_id="ex") as turns:
            for number in range(3):
                await turns.turn(**sampled(prompt_tokens=[number]))
            return turns.rollout_uid

    uid = stage.play(scenario)
    rows = segments_of(stage.log())
    assert [row["rollout_uid"] for row in rows] == [uid] * 3
    assert [row["segment_idx"] for row in rows] == [0, 1, 2]
    assert [row["is_last_segment"] for row in rows] == [False, False, True]
    assert [row.get("continuation_of", "") for row in rows] == ["", uid, uid]
    before = ""
    for row in rows:
        assert row.get("prefix_hash", "") == before
        before = prefix_hash(before, row["prompt_tokens"], row["output_tokens"])


@pytest.mark.proves("F16")
def test_a_trajectory_that_raises_keeps_its_turns_and_is_failed(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.trajectory(example_id="ex", rollout_uid="mine") as turns:
            await turns.turn(**sampled())
            raise RuntimeError("tool crashed")

    with pytest.raises(RuntimeError, match="tool crashed"):
        stage.play(scenario)
    segment, failed = stage.log()
    assert (segment.fields["rollout_uid"], segment.fields["is_last_segment"]) == ("mine", False)
    assert failed.fields["rollout_uid"] == "mine"
    assert failures_of([failed]) == [(1, "raised RuntimeError: tool crashed")]


UNWRITABLE: dict[str, dict[str, Any]] = {
    "too large": {"token_arrays": {"experts": np.zeros((3, RECORD_BYTES_MAX // 3), np.uint8)}},
    "a lone surrogate": {"metadata": {"said": "\ud800"}},
}


@pytest.mark.proves("A17")
@pytest.mark.parametrize("wrong", UNWRITABLE.values(), ids=UNWRITABLE)
def test_a_turn_that_cannot_be_written_is_refused_as_if_it_was_never_given(
    stage: Stage, wrong: dict[str, Any]
) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.trajectory(example_id="ex") as turns:
            with pytest.raises(InvalidRollout):
                await turns.turn(**sampled(**wrong))
            for number in range(2):
                await turns.turn(**sampled(prompt_tokens=[number]))
                with pytest.raises(InvalidRollout):
                    await turns.turn(**sampled(prompt_tokens=[9], **wrong))

    stage.play(scenario)
    first, last = segments_of(stage.log())
    ends = [(row["segment_idx"], row["is_last_segment"]) for row in (first, last)]
    assert ends == [(0, False), (1, True)]
    tokens = [np.array(values, "<i4").tobytes() for values in ([0], [3, 4, 5])]
    assert "prefix_hash" not in first
    assert last["prefix_hash"] == prefix_hash("", *tokens)


@pytest.mark.parametrize("turns_before", [0, 1, 2])
def test_a_turn_after_the_end_of_its_trajectory_is_refused(stage: Stage, turns_before: int) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.trajectory(example_id="ex", rollout_uid="mine") as turns:
            for _ in range(turns_before):
                await turns.turn(**sampled())
        for _ in range(2):
            with pytest.raises(InvalidRollout, match="mine has ended"):
                await turns.turn(**sampled())

    stage.play(scenario)
    ends = [row["is_last_segment"] for row in segments_of(stage.log())]
    assert ends == [False, True][2 - turns_before :]


@pytest.mark.proves("F16")
@pytest.mark.parametrize("wrong", UNWRITABLE.values(), ids=UNWRITABLE)
def test_a_trajectory_that_an_unwritable_turn_ends_is_failed(
    stage: Stage, wrong: dict[str, Any]
) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with (
            producer.dispatch(example_id="ex", group_size=1) as group,
            group.trajectory(rollout_uid="mine") as turns,
        ):
            await turns.turn(**sampled())
            await turns.turn(**sampled(**wrong))

    with pytest.raises(InvalidRollout):
        stage.play(scenario)
    _, segment, failed = stage.log()
    assert (segment.fields["segment_idx"], segment.fields["is_last_segment"]) == (0, False)
    assert failed.fields["rollout_uid"] == "mine"
    assert [count for count, _ in failures_of([failed])] == [1]


def test_trajectories_are_members_of_a_group(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=3) as group:
            async with group.trajectory() as turns:
                await turns.turn(**sampled())
                await turns.turn(**sampled())
            with pytest.raises(RuntimeError, match="tool crashed"):
                async with group.trajectory(rollout_uid="broken") as turns:
                    raise RuntimeError("tool crashed")

    stage.play(scenario)
    assert [row["segment_idx"] for row in segments_of(stage.log())] == [0, 1]
    first, second = [one for one in stage.log() if one.entry.kind == EntryKind.FAILED]
    assert first.fields["rollout_uid"] == "broken"
    # One that is about no trajectory has a uid of its own: sent twice, it counts once.
    assert second.fields["rollout_uid"] not in ("", "broken")
    assert [count for count, _ in failures_of(stage.log())] == [1, 1]


def test_a_missing_topic_is_told_with_the_remedy(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        await producer.publish(example_id="ex", environment="unmade", **sampled())

    topic = stage.layout.rollouts("unmade")
    with pytest.raises(UnknownTopic, match=rf"{topic} .*rollstream topics create"):
        stage.play(scenario)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"logprobs": [0.0, 0.0]}, "logprobs has 2 values for 3 output tokens"),
        ({"reward": float("nan")}, "reward is nan"),
        ({"output_tokens": [1, -100, 3]}, r"output_tokens\[1\] is -100"),
    ],
)
def test_a_wrong_rollout_is_refused_and_the_next_one_is_published(
    stage: Stage, wrong: dict[str, Any], told: str
) -> None:
    async def scenario(producer: AnyProducer) -> None:
        with pytest.raises(InvalidRollout, match=told):
            await producer.publish(example_id="ex", **sampled(**wrong))
        await producer.publish(example_id="ex", **sampled())

    stage.play(scenario)
    assert len(segments_of(stage.log())) == 1


def test_a_rollout_of_the_largest_size_arrives_and_a_larger_one_is_refused(stage: Stage) -> None:
    def huge(size: int) -> dict[str, Any]:
        tokens = np.zeros(size // 4, np.int32)
        return sampled(output_tokens=tokens, logprobs=None)

    async def scenario(producer: AnyProducer) -> None:
        await producer.publish(example_id="ex", **huge(ROLLOUT_BYTES_MAX - 400))
        with pytest.raises(RolloutTooLarge) as told:
            await producer.publish(example_id="ex", **huge(ROLLOUT_BYTES_MAX))
        assert told.value.limit == ROLLOUT_BYTES_MAX
        assert told.value.size > told.value.limit

    stage.play(scenario)
    assert len(segments_of(stage.log())) == 1


def test_a_flush_that_returns_means_in_the_log(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> int:
        for number in range(200):
            await producer.publish(example_id=f"ex-{number}", **sampled())
        await producer.flush()
        return len(stage.log())

    assert stage.play(scenario) == 200


def test_a_closed_producer_says_so(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        await producer.close()
        await producer.close()
        with pytest.raises(ProducerClosed):
            await producer.publish(example_id="ex", **sampled())
        with pytest.raises(ProducerClosed):
            await producer.flush()

    stage.play(scenario)


def test_coroutines_by_the_thousand_share_one_producer(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> list[str]:
        publishing = (
            producer.publish(example_id=f"ex-{number}", **sampled()) for number in range(2000)
        )
        return await asyncio.gather(*publishing)

    uids = stage.play(scenario)
    assert len(set(uids)) == 2000
    assert {s["rollout_uid"] for s in segments_of(stage.log())} == set(uids)
