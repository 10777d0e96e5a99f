"""The members of a group in one call."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.brokers import TIMEOUT_S
from harness.faults import FaultyBroker
from harness.producer_faults import NarrowBroker, leave_no_room
from harness.producer_stage import Stage
from harness.producers import (
    AnyProducer,
    failures_of,
    new_layout,
    open_producer,
    published,
    sampled,
    segments_of,
)
from rollstream.producers import BufferFull, InvalidRollout, RolloutProducer
from rollstream.runtime.clock import ManualClock
from rollstream.streams.memory import MemoryBroker

SIZE = 4
POLICY: dict[str, Any] = {"policy_version": "step-1", "weight_step": 1}
STAMPED = ("created_ts", "rollout_uid", "group_uid")


def arrays(length: int, number: int) -> dict[str, Any]:
    return {
        "output_tokens": np.arange(length, dtype=np.int32) + number,
        "logprobs": np.full(length, -0.5 - number, np.float32),
        "reward": float(number),
    }


def columns(members: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: [member[name] for member in members] for name in members[0]}


def said(stage: Stage, group_uid: str) -> list[dict[str, Any]]:
    """The members of the group, but for what differs each time."""
    found = [one for one in segments_of(stage.log()) if one["group_uid"] == group_uid]
    return [{k: v for k, v in one.items() if k not in STAMPED} for one in found]


@pytest.mark.proves("A1")
def test_members_are_as_if_each_was_published(stage: Stage) -> None:
    members = [arrays(length, length) for length in (3, 1, 700, 2)]
    prompts = [np.arange(number + 1, dtype=np.int32) for number in range(SIZE)]

    async def scenario(producer: AnyProducer) -> list[str]:
        async with producer.dispatch(example_id="ex", group_uid="one", group_size=SIZE) as group:
            for prompt, member in zip(prompts, members, strict=True):
                await group.publish(**POLICY, **member, prompt_tokens=prompt)
        async with producer.dispatch(example_id="ex", group_uid="many", group_size=SIZE) as group:
            given = columns(members)
            uids = await group.publish_many(**POLICY, **given, prompt_tokens=prompts)
            for array in (*given["output_tokens"], *given["logprobs"], *prompts):
                array[:] = 0  # They were copied.
        return uids

    uids = stage.play(scenario)
    assert said(stage, "many") == said(stage, "one")
    found = [s["rollout_uid"] for s in segments_of(stage.log()) if s["group_uid"] == "many"]
    assert (found, len(set(uids))) == (uids, SIZE)
    assert failures_of(stage.log()) == []


def test_what_few_rollouts_have_is_taken_too(stage: Stage) -> None:
    rows: dict[str, Any] = {
        "prompt_tokens": [1, 2],
        "output_tokens": [[3, 4], [5]],
        "logprobs": [[-0.5, -0.25], None],
        "loss_mask": [[True, False], None],
        "reward": [None, 1],
        "rewards": [{}, {"format": 0.5}],
        "metadata": [{"seed": 1}, {"seed": 2}],
        "token_arrays": [{"experts": np.ones((2, 3), np.uint8)}, {}],
        "stop_reason": ["stop", "length"],
        "rollout_uid": ["a", "b"],
    }

    async def scenario(producer: AnyProducer) -> list[str]:
        async with producer.dispatch(example_id="ex", group_uid="many", group_size=2) as group:
            uids = await group.publish_many(**POLICY, **rows)
            assert await group.publish_many(**POLICY, **rows) == uids  # A retry.
        async with producer.dispatch(example_id="ex", group_uid="one", group_size=2) as group:
            for index in range(2):
                each = {name: values[index] for name, values in rows.items()}
                await group.publish(**POLICY, **{**each, "prompt_tokens": [1, 2]})
        return uids

    assert stage.play(scenario) == ["a", "b"]
    assert said(stage, "many") == 2 * said(stage, "one")


def test_arrays_of_any_layout_are_taken(stage: Stage) -> None:
    every_other, wide = np.arange(8, dtype=np.int32)[::2], np.arange(3, dtype=np.int64)

    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_uid="many", group_size=3) as group:
            outputs = [every_other, np.ones(1, np.int32)]
            uids = ["a", "b"]
            await group.publish_many(**POLICY, output_tokens=outputs, reward=1, rollout_uid=uids)
            await group.publish_many(**POLICY, output_tokens=[wide], reward=[1.0])

    stage.play(scenario)
    found = [one for one in segments_of(stage.log()) if one["group_uid"] == "many"]
    tokens = [np.frombuffer(one["output_tokens"], np.int32).tolist() for one in found]
    assert tokens == [[0, 2, 4, 6], [1], [0, 1, 2]]
    assert [one["rollout_uid"] for one in found][:2] == ["a", "b"]
    assert {one["logprobs"] for one in found} == {None}


def test_the_policy_version_has_its_other_name_here_too(stage: Stage) -> None:
    named = {"actor_policy_version": "step-1", "weight_step": 1}
    given = {"output_tokens": [[1], [2]], "actor_logprobs": [[-0.5], [-1.0]]}

    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_uid="many", group_size=2) as group:
            await group.publish_many(**named, **given)
        async with producer.dispatch(example_id="ex", group_uid="both", group_size=2) as group:
            with pytest.raises(InvalidRollout, match="two names of one value"):
                await group.publish_many(**named, **given, policy_version="step-2")

    stage.play(scenario)
    found = [(one["policy_version"], one["logprobs"]) for one in segments_of(stage.log())]
    assert found == [("step-1", np.float32(one).tobytes()) for one in (-0.5, -1.0)]


WRONG: dict[str, tuple[dict[str, Any], int | None, str]] = {
    "token": ({"output_tokens": [[1], [2, -1]]}, 1, "output_tokens[1]"),
    "no number": (
        {"logprobs": [np.array([-1.0], np.float32), np.array([np.nan], np.float32)]},
        1,
        "logprobs[0]",
    ),
    "positive": (
        {"logprobs": [np.array([-1.0], np.float32), np.array([1.0], np.float32)]},
        1,
        "logprobs[0]",
    ),
    "length": (
        {"logprobs": [np.array([-1.0], np.float32), np.array([-1.0, -1.0], np.float32)]},
        1,
        "logprobs",
    ),
    "reward": ({"reward": [0.0, float("inf")]}, 1, "reward"),
    "uid": ({"rollout_uid": ["a", 3]}, 1, "rollout_uid"),
    "one uid twice": ({"rollout_uid": ["a", "a"]}, 1, "rollout_uid"),
    "one uid twice, and masks": (
        {"rollout_uid": ["a", "a"], "loss_mask": [[True], None]},
        1,
        "rollout_uid",
    ),
    "one uid for all": ({"rollout_uid": "ab"}, 1, "rollout_uid"),
    "one flag": ({"loss_mask": np.array(True)}, 0, "loss_mask"),
    "one reward": ({"reward": np.array(np.nan)}, 0, "reward"),
    "one sum": ({"logprobs": np.array(2.0)}, 0, "logprobs"),
    "number": ({"output_tokens": np.array(1)}, None, "output_tokens"),
    "prompt": (
        {"prompt_tokens": [np.array([1], np.int32), np.array([-1], np.int32)]},
        1,
        "prompt_tokens[0]",
    ),
    "count": ({"reward": [0.0]}, None, "reward"),
    "no list": ({"output_tokens": [1, 2]}, None, "output_tokens"),
    "none": ({"output_tokens": []}, None, "output_tokens"),
    "not given": ({"output_tokens": None}, None, "output_tokens"),
    "for all": ({"prompt_tokens": [-1]}, None, "prompt_tokens[0]"),
}


@pytest.mark.parametrize(("wrong", "index", "field"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_named_with_its_member_and_nothing_is_published(
    stage: Stage, wrong: dict[str, Any], index: int | None, field: str
) -> None:
    one = np.ones(1, np.int32)
    given = {"prompt_tokens": one, "output_tokens": [one, one], "reward": [0.0, 1.0], **wrong}

    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=2) as group:
            with pytest.raises(InvalidRollout) as told:
                await group.publish_many(**POLICY, **given)
            assert (told.value.index, told.value.field) == (index, field)
            assert (f"members[{index}]: " in str(told.value)) == (index is not None)

    stage.play(scenario)
    assert segments_of(stage.log()) == []
    assert failures_of(stage.log()) == [(2, "left early")]


def test_a_step_for_each_member_is_refused_and_not_taken_for_one_for_each_token(
    stage: Stage,
) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=2) as group:
            given = {"policy_version": "v", "output_tokens": [[1, 2], [3, 4]]}
            with pytest.raises(InvalidRollout, match=r"weight_step has 2 values.*publish\(\) each"):
                await group.publish_many(**given, weight_step=[0, 1])
            with pytest.raises(InvalidRollout, match="weight_step has 3 values"):
                await group.publish_many(**given, weight_step=[0, 1, 2])
            await group.publish_many(**given, weight_step=np.array(1))

    stage.play(scenario)
    assert [one["weight_step"] for one in segments_of(stage.log())] == [1, 1]


def test_a_number_without_an_axis_is_one_for_all(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=2) as group:
            given = {"output_tokens": [[1], [2]], "reward": np.array(0.5)}
            await group.publish_many(**POLICY, **given, logprobs=np.array(-1.0))

    stage.play(scenario)
    found = [(one["reward"], one["logprob_sum"]) for one in segments_of(stage.log())]
    assert found == 2 * [(0.5, -1.0)]


def test_a_member_without_a_uid_gets_a_new_one(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> list[str]:
        async with producer.dispatch(example_id="ex", group_size=3) as group:
            given = {"output_tokens": [[1], [2], [3]], "rollout_uid": ["", "a", ""]}
            return await group.publish_many(**POLICY, **given)

    assert len({*stage.play(scenario)}) == 3


OTHERS = {
    "replica_id": "; give it to the producer",
    "segment_idx": "; give whole members, or publish\\(\\) each",
    "is_last_segment": "; give whole members",
    "continuation_of": "; give whole members",
    "prefix_hash": "; give whole members",
    "response_ids": "; give output_tokens",
    "foo": "$",
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_argument_that_it_does_not_have_is_refused(stage: Stage, name: str) -> None:
    given = {**columns([arrays(2, number) for number in range(2)]), name: 1}

    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=2) as group:
            told = rf"^publish_many\(\) got an unexpected .* '{name}'{OTHERS[name]}"
            with pytest.raises(TypeError, match=told):
                await group.publish_many(**POLICY, **given)

    stage.play(scenario)
    assert segments_of(stage.log()) == []


@pytest.mark.parametrize("call", ["publish", "append", "turn"])
@pytest.mark.parametrize("name", ["replica_id", "foo"])
def test_other_calls_of_a_group_refuse_other_arguments(stage: Stage, call: str, name: str) -> None:
    given = sampled(**{name: "other"})

    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=2) as group:
            trajectory = group.trajectory()
            told = pytest.raises(TypeError, match=rf"^{call}\(\) got an unexpected .* '{name}'")
            async with trajectory as turns:
                of = turns if call == "turn" else group
                with told:
                    await getattr(of, call)(**given)

    stage.play(scenario)
    assert segments_of(stage.log()) == []


@pytest.mark.parametrize("name", ["environment", "group_size", "group_uid", "example_id", "split"])
def test_what_the_group_was_dispatched_with_is_refused(stage: Stage, name: str) -> None:
    given = {**columns([arrays(2, number) for number in range(2)]), name: "code"}

    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=2) as group:
            with pytest.raises(TypeError, match=f"'{name}' is the group's"):
                await group.publish_many(**POLICY, **given)

    stage.play(scenario)
    assert segments_of(stage.log()) == []
    assert failures_of(stage.log()) == [(2, "left early")]


def test_members_too_many_are_refused_together(stage: Stage) -> None:
    members = columns([arrays(2, number) for number in range(2)])

    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=3) as group:
            await group.publish_many(**POLICY, **members)
            with pytest.raises(InvalidRollout, match="lacks 1 of its 3 members, and gets 2"):
                await group.publish_many(**POLICY, **members)

    stage.play(scenario)
    assert len(segments_of(stage.log())) == 2
    assert failures_of(stage.log()) == [(1, "left early")]


def test_members_that_found_no_room_are_still_missing(kind: str) -> None:
    broker = NarrowBroker(MemoryBroker(), ManualClock())
    layout = new_layout(broker)
    clock = broker.manual_clock

    async def scenario() -> None:
        producer = open_producer(
            kind, broker, layout, environment="math", clock=clock, timeout_s=5.0
        )
        async with producer.dispatch(example_id="ex", group_size=2) as group:
            await leave_no_room(kind, producer, broker)
            with pytest.raises(BufferFull):
                await group.publish_many(**POLICY, **columns([arrays(2, 0), arrays(2, 1)]))
            broker.refusals, broker.poll_moves_s = 0, 0.0
        await producer.close()

    asyncio.run(scenario())
    assert failures_of(published(broker, layout)) == [(2, "left early")]


lengths = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@given(lengths, st.booleans(), st.booleans())
def test_any_lengths_are_as_if_each_was_published(
    sizes: list[int], with_logprobs: bool, as_lists: bool
) -> None:
    broker = MemoryBroker()
    layout = new_layout(broker)
    members = [arrays(size, number) for number, size in enumerate(sizes)]
    for member in members:
        if not with_logprobs:
            del member["logprobs"]
        if as_lists:
            member["output_tokens"] = member["output_tokens"].tolist()
    prompt = np.ones(3, np.int32)
    with RolloutProducer(broker=broker, environment="math", namespace=layout.namespace) as producer:
        for uid in ("one", "many"):
            with producer.dispatch(example_id=uid, group_uid=uid, group_size=len(sizes)) as group:
                if uid == "many":
                    group.publish_many(**POLICY, prompt_tokens=prompt, **columns(members))
                for member in members if uid == "one" else ():
                    group.publish(**POLICY, prompt_tokens=prompt, **member)
    found = segments_of(published(broker, layout))
    names = ("prompt_tokens", "output_tokens", "logprobs", "reward", "token_count")
    one, many = (
        [[s[name] for name in names] for s in found if s["group_uid"] == uid]
        for uid in ("one", "many")
    )
    assert one == many


def test_of_threads_that_publish_the_last_member_one_is_counted() -> None:
    broker = FaultyBroker(MemoryBroker())
    layout = new_layout(broker)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with RolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace
        ) as producer:
            for _ in range(50):
                refused: list[InvalidRollout] = []
                with producer.dispatch(example_id="ex", group_size=1) as group:

                    def publish(group: Any = group, refused: Any = refused) -> None:
                        try:
                            group.publish(**sampled())
                        except InvalidRollout as error:
                            refused.append(error)

                    threads = [threading.Thread(target=publish) for _ in range(8)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join(TIMEOUT_S)
                assert len(refused) == len(threads) - 1
    finally:
        sys.setswitchinterval(interval_s)
