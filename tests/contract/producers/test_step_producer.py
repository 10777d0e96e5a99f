"""What both producers of steps promise, on the broker in memory and on Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from harness.admission import announce, announced
from harness.brokers import World
from harness.producers import PARTITIONS, Logged, new_layout, published, segments_of
from rollstream.producers import (
    AsyncStepProducer,
    BufferFull,
    Contradiction,
    DeliveryFailed,
    InvalidRollout,
    InvalidSettings,
    ProducerClosed,
    RolloutTooLarge,
    Step,
    StepProducer,
    UnknownTopic,
)
from rollstream.producers.engine.gather import HELD_BYTES_MAX
from rollstream.schemas.events import PolicyAnnounced
from rollstream.schemas.ids import step_rollout_uid
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.streams.partitioning import partition_of

ENVIRONMENT = "web"
ANOTHER = "code"


def step(trajectory: str = "t", index: int = 0, prompt: str = "p", **fields: Any) -> Step:
    given = {
        "prompt_ids": [1, 2],
        "response_ids": [3, 4, 5],
        "reward": 0.5,
        "policy_version": "step-7",
        "weight_step": 7,
        **fields,
    }
    return Step(trajectory_uid=trajectory, prompt_uid=prompt, step_index=index, **given)


class _Awaited:
    """The sync producer with ``await`` in front."""

    def __init__(self, inner: StepProducer) -> None:
        self.inner = inner

    async def submit_steps(self, steps: list[Step]) -> None:
        self.inner.submit_steps(steps, environment=ENVIRONMENT)

    async def complete_trajectory(self, uid: str, **named: Any) -> None:
        self.inner.complete_trajectory(uid, environment=ENVIRONMENT, **named)

    async def fail_trajectory(self, uid: str, **named: Any) -> None:
        self.inner.fail_trajectory(uid, environment=ENVIRONMENT, **named)

    async def submit_elsewhere(self, one: Step, environment: str = "nowhere") -> None:
        self.inner.submit_step(one, environment=environment)

    async def flush(self) -> None:
        self.inner.flush()

    async def close(self) -> None:
        self.inner.close()


class _Async:
    def __init__(self, inner: AsyncStepProducer) -> None:
        self.inner = inner

    async def submit_steps(self, steps: list[Step]) -> None:
        await self.inner.submit_steps(steps, environment=ENVIRONMENT)

    async def complete_trajectory(self, uid: str, **named: Any) -> None:
        await self.inner.complete_trajectory(uid, environment=ENVIRONMENT, **named)

    async def fail_trajectory(self, uid: str, **named: Any) -> None:
        await self.inner.fail_trajectory(uid, environment=ENVIRONMENT, **named)

    async def submit_elsewhere(self, one: Step, environment: str = "nowhere") -> None:
        await self.inner.submit_step(one, environment=environment)

    async def flush(self) -> None:
        await self.inner.flush()

    async def close(self) -> None:
        await self.inner.close()


Producer = _Awaited | _Async


class Stage:
    def __init__(self, kind: str, world: World) -> None:
        self.kind = kind
        self.broker = world.broker()
        self.layout = new_layout(self.broker, ENVIRONMENT, ANOTHER)

    def play(self, scenario: Callable[[Producer], Awaitable[Any]], **arguments: Any) -> Any:
        async def run() -> Any:
            given = {"namespace": self.layout.namespace, "broker": self.broker, **arguments}
            producer: Producer
            if self.kind == "sync":
                producer = _Awaited(StepProducer(**given))
            else:
                producer = _Async(AsyncStepProducer(**given))
            try:
                return await scenario(producer)
            finally:
                await producer.close()

        return asyncio.run(run())

    def log(self) -> list[Logged]:
        return published(self.broker, self.layout, ENVIRONMENT)


@pytest.fixture
def stage(kind: str, world: World) -> Stage:
    return Stage(kind, world)


@pytest.mark.proves("B1", "B2")
def test_a_step_is_a_segment_of_its_prompts_group(stage: Stage) -> None:
    given = step(
        "t-1",
        3,
        "p-1",
        prompt_ids=np.array([1, 2]),
        logprobs=[-0.5, -0.25, -0.125],
        n_rollouts=4,
        is_last=True,
        metadata={"tool": "search"},
        policy_epoch=2,
        lineage="main",
        example_id="aime-17",
    )
    stage.play(lambda producer: producer.submit_steps([given]))
    (logged,) = stage.log()
    fields = logged.fields
    assert (fields["group_uid"], fields["group_size"], fields["example_id"]) == (
        *("p-1", 4),
        "aime-17",
    )
    assert (fields["rollout_uid"], fields["segment_idx"]) == (step_rollout_uid("p-1", "t-1"), 3)
    assert fields["trajectory_uid"] == "t-1"
    assert (fields["is_last_segment"], fields["reward"]) == (True, 0.5)
    assert (fields["policy_version"], fields["weight_step"]) == ("step-7", 7)
    assert (fields["policy_epoch"], fields["lineage"]) == (2, "main")
    assert fields["metadata"] == '{"tool":"search"}'
    arrays = {"prompt_tokens": "<i4", "output_tokens": "<i4", "logprobs": "<f4"}
    found = [np.frombuffer(fields[name], dtype).tolist() for name, dtype in arrays.items()]
    assert found == [[1, 2], [3, 4, 5], [-0.5, -0.25, -0.125]]
    assert logged.partition == partition_of(b"p-1", PARTITIONS)


def test_steps_that_do_not_say_it_have_their_prompts_size_and_example(stage: Stage) -> None:
    steps = [step("a", 0, n_rollouts=2), step("a", 1), step("b", 0), step("c", 0, "q")]
    stage.play(lambda producer: producer.submit_steps(steps))
    found = segments_of(stage.log())
    assert sorted((one["example_id"], one["group_size"]) for one in found) == [
        *[("p", 2)] * 3,
        ("q", 0),
    ]


@pytest.mark.proves("B2")
def test_an_end_told_apart_follows_the_steps_with_their_key(stage: Stage) -> None:
    async def scenario(producer: Producer) -> None:
        await producer.submit_steps([step("t", 0), step("t", 1)])
        await producer.complete_trajectory("t")
        await producer.complete_trajectory("elsewhere", prompt_uid="p", steps=5)

    stage.play(scenario)
    found = stage.log()
    kinds = [one.entry.kind for one in found]
    assert kinds == [EntryKind.STEP, EntryKind.STEP, EntryKind.ENDED, EntryKind.ENDED]
    ends = [(o.fields["trajectory_uid"], o.fields["segment_idx"]) for o in found[2:]]
    assert ends == [("t", 0), ("elsewhere", 5)]
    uids = [one.fields["rollout_uid"] for one in found]
    uid = step_rollout_uid("p", "t")
    assert uids == [uid, uid, uid, step_rollout_uid("p", "elsewhere")]
    assert {one.partition for one in found} == {partition_of(b"p", PARTITIONS)}


def test_a_failure_is_told_with_its_reason_to_the_group_of_its_prompt(stage: Stage) -> None:
    async def scenario(producer: Producer) -> None:
        await producer.submit_steps([step("t", 0, example_id="aime-7")])
        await producer.fail_trajectory("t", reason=ValueError("no page"))
        await producer.fail_trajectory("early", prompt_uid="q", reason="crashed", n_rollouts=4)

    stage.play(scenario)
    found = {one.fields["group_uid"]: one for one in stage.log() if one.entry.failure}
    assert len(stage.log()) == 3
    assert {one.entry.kind for one in found.values()} == {EntryKind.FAILED}
    failures = {uid: one.entry.failure for uid, one in found.items()}
    told = {uid: (one.count, one.reason) for uid, one in failures.items() if one is not None}
    assert told == {"p": (1, "raised ValueError: no page"), "q": (1, "crashed")}
    uids = [found["p"].fields["rollout_uid"], found["q"].fields["rollout_uid"]]
    assert uids == [step_rollout_uid("p", "t"), step_rollout_uid("q", "early")]
    group = [(one.fields["example_id"], one.fields["group_size"]) for one in found.values()]
    assert sorted(group) == [("aime-7", 0), ("q", 4)]


def test_a_trajectory_that_has_ended_does_not_fail(stage: Stage) -> None:
    async def scenario(producer: Producer) -> None:
        await producer.submit_steps([step("t", 0, is_last=True)])
        with pytest.raises(Contradiction, match="has ended with 1 steps; a trajectory fails bef"):
            await producer.fail_trajectory("t", prompt_uid="p", reason="late")

    stage.play(scenario)
    assert len(stage.log()) == 1


def test_a_prompt_of_which_all_have_failed_is_open_no_more(stage: Stage) -> None:
    async def scenario(producer: Producer) -> None:
        for number in range(5):
            await producer.submit_steps([step("t", 0, f"p{number}", n_rollouts=1)])
            await producer.fail_trajectory("t", prompt_uid=f"p{number}", reason="crashed")

    stage.play(scenario, max_open_prompts=1)
    assert len(stage.log()) == 10


def test_masks_and_named_arrays_of_a_step_are_in_the_log(stage: Stage) -> None:
    values = np.array([[1, 2], [3, 4], [5, 6]], np.int16)
    given = step(loss_mask=[1, 0, 1], token_arrays={"experts": values})
    stage.play(lambda producer: producer.submit_steps([given]))
    (logged,) = stage.log()
    assert np.frombuffer(logged.fields["loss_mask"], np.bool_).tolist() == [True, False, True]
    found = logged.fields["token_arrays"]["experts"]
    assert (found.dtype, found.shape, found.data) == ("<i2", (2,), values.tobytes())


def test_a_step_with_other_named_arrays_contradicts_the_one_before(stage: Stage) -> None:
    async def scenario(producer: Producer) -> None:
        for value in (1.0, 1.0):
            await producer.submit_steps([step(token_arrays={"values": np.full(3, value)})])
        with pytest.raises(Contradiction, match="with other content"):
            await producer.submit_steps([step(token_arrays={"values": np.full(3, 2.0)})])

    stage.play(scenario)


@pytest.mark.proves("B2")
def test_what_was_submitted_is_in_the_log(stage: Stage) -> None:
    async def scenario(producer: Producer) -> list[Logged]:
        for number in range(5):
            batch = [step(f"t{number}", index) for index in range(3)]
            await producer.submit_steps(batch)
        if stage.kind == "sync":
            await producer.flush()
        return stage.log()

    found = stage.play(scenario)
    uids = [(one.fields["trajectory_uid"], one.fields["segment_idx"]) for one in found]
    assert uids == [(f"t{number}", index) for number in range(5) for index in range(3)]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (step(prompt_ids=[-1]), r"steps\[1\]: prompt_ids"),
        (step(response_ids=["x"]), r"steps\[1\]: response_ids"),
        (step(prompt_ids=[], response_ids=[]), r"steps\[1\]: prompt_ids is empty, .*; give the"),
        (step(trajectory=""), r"steps\[1\]: trajectory_uid is ''"),
        (step(prompt=""), r"steps\[1\]: prompt_uid is ''"),
        (step(index=-1), r"steps\[1\]: step_index is -1"),
        (step(index=0.5), r"steps\[1\]: step_index is 0.5"),  # type: ignore[arg-type]
        (step(n_rollouts=0), r"steps\[1\]: n_rollouts is 0"),
        (step(logprobs=[-0.5]), r"steps\[1\]: logprobs"),
        (
            step(metadata={"prompt_tokens": {"group_size": object()}}),
            r"steps\[1\]: metadata\['prompt_tokens'\]\['group_size'\] is ",
        ),
        (step(is_last=1), r"steps\[1\]: is_last is 1"),
        (step(policy_version=""), r"steps\[1\]: policy_version is ''"),
        (step(n_rollouts=3), r"steps\[1\]: n_rollouts is 3, and was 2"),
        ({"prompt_ids": []}, r"steps\[1\] is \{'prompt_ids': \[\]\}; give a Step"),
    ],
)
def test_where_one_step_is_invalid_none_is_queued(stage: Stage, wrong: Any, told: str) -> None:
    async def scenario(producer: Producer) -> None:
        with pytest.raises(InvalidRollout, match=told) as refused:
            await producer.submit_steps([step("first", n_rollouts=2), wrong])
        assert refused.value.index == 1 or "give a Step" in told

    stage.play(scenario)
    assert stage.log() == []


@pytest.mark.parametrize("weight_step", [[8, 7, 9], np.array([8, 7, 9])], ids=["list", "array"])
def test_a_step_may_have_the_weights_of_each_token(stage: Stage, weight_step: Any) -> None:
    async def scenario(producer: Producer) -> None:
        await producer.submit_steps([step(weight_step=weight_step)])
        await producer.flush()

    stage.play(scenario)
    [found] = stage.log()
    assert found.fields["weight_step"] == 7
    assert found.fields["weight_steps"] == np.array([8, 7, 9], "<i8").tobytes()


@pytest.mark.parametrize("wrong", [None, 3, step("alone")], ids=["None", "number", "a step"])
def test_what_is_no_sequence_of_steps_is_refused(stage: Stage, wrong: Any) -> None:
    async def scenario(producer: Producer) -> None:
        with pytest.raises(InvalidRollout, match=r"steps is .*; give a sequence of Steps"):
            await producer.submit_steps(wrong)

    stage.play(scenario)
    assert stage.log() == []


def test_an_end_of_an_unknown_trajectory_needs_its_prompt(stage: Stage) -> None:
    async def scenario(producer: Producer) -> None:
        with pytest.raises(InvalidRollout, match=r"no step of trajectory t .*name its prompt"):
            await producer.complete_trajectory("t")
        with pytest.raises(InvalidRollout, match="steps is 0"):
            await producer.complete_trajectory("t", prompt_uid="p", steps=0)

    stage.play(scenario)
    assert stage.log() == []


@pytest.mark.proves("B1", "B2")
def test_a_uid_in_two_prompts_is_two_rollouts_that_end_apart(stage: Stage) -> None:
    async def scenario(producer: Producer) -> None:
        await producer.submit_steps([step("t", 0, "p"), step("t", 0, "q", reward=1.0)])
        await producer.submit_steps([step("t", 1, "q")])
        with pytest.raises(InvalidRollout, match=r"prompts 'p', 'q' have the uid t; name its"):
            await producer.complete_trajectory("t")
        await producer.complete_trajectory("t", prompt_uid="p", steps=1)
        await producer.complete_trajectory("t", prompt_uid="q", steps=2)

    stage.play(scenario)
    found = [(one.fields["group_uid"], one.fields["rollout_uid"]) for one in stage.log()]
    p, q = ((prompt, step_rollout_uid(prompt, "t")) for prompt in "pq")
    assert sorted(found) == sorted([p] * 2 + [q] * 3)


@pytest.mark.proves("B4")
def test_one_prompt_too_many_is_refused_at_once_and_nothing_is_dropped(stage: Stage) -> None:
    async def scenario(producer: Producer) -> None:
        await producer.submit_steps([step("a", 0, "p", n_rollouts=2), step("b", 0, "q")])
        with pytest.raises(BufferFull, match=r"2 prompts .* max_open_prompts, 2"):
            await producer.submit_steps([step("c", 0, "r")])
        # Those that are open go on, and so does what another writer began.
        await producer.submit_steps([step("a", 1, "p"), step("d", 4, "begun-elsewhere")])
        await producer.submit_steps([step("a", 2, "p", is_last=True)])
        with pytest.raises(BufferFull):
            await producer.submit_steps([step("c", 0, "r")])
        await producer.submit_steps([step("e", 0, "p")])
        await producer.complete_trajectory("e")
        await producer.submit_steps([step("c", 0, "r")])

    stage.play(scenario, max_open_prompts=2)
    assert len(stage.log()) == 7 + 1


def test_a_call_that_never_fits_is_refused_for_good_and_its_halves_are_taken(stage: Stage) -> None:
    wide = np.zeros(HELD_BYTES_MAX // 16, np.int32)
    steps = [step(str(n), response_ids=wide) for n in range(4)]

    async def scenario(producer: Producer) -> None:
        with pytest.raises(RolloutTooLarge, match=r"the 4 entries of this call.*split the call"):
            await producer.submit_steps(steps)
        await producer.submit_steps(steps[:2])
        await producer.flush()
        await producer.submit_steps(steps[2:])

    stage.play(scenario)
    assert len(stage.log()) == 4


def test_environments_do_not_share_the_bound_on_prompts(stage: Stage) -> None:
    async def scenario(producer: Producer) -> None:
        await producer.submit_steps([step("a", 0, "p")])
        with pytest.raises(BufferFull):
            await producer.submit_steps([step("b", 0, "q")])
        await producer.submit_elsewhere(step("c", 0, "r"), ANOTHER)
        with pytest.raises(BufferFull):
            await producer.submit_elsewhere(step("d", 0, "s"), ANOTHER)

    stage.play(scenario, max_open_prompts=1)


def test_a_closed_producer_and_an_unknown_environment_are_refused(stage: Stage) -> None:
    async def submit_elsewhere(producer: Producer) -> None:
        await producer.submit_elsewhere(step())
        await producer.flush()  # The sync one holds it until it is known whether there is one.

    async def scenario(producer: Producer) -> None:
        with pytest.raises(DeliveryFailed if stage.kind == "sync" else UnknownTopic):
            await submit_elsewhere(producer)
        await producer.close()
        with pytest.raises(ProducerClosed):
            await producer.submit_steps([step()])
        with pytest.raises(ProducerClosed):
            await producer.complete_trajectory("t", prompt_uid="p")

    stage.play(scenario)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, None])
def test_a_bound_that_is_none_is_refused(stage: Stage, wrong: Any) -> None:
    with pytest.raises(InvalidSettings, match="max_open_prompts"):
        stage.play(lambda producer: producer.flush(), max_open_prompts=wrong)


def tell(stage: Stage, *events: PolicyAnnounced) -> None:
    """Trainers' samplers write these."""
    announce(stage.broker, stage.layout.admission(ENVIRONMENT), *events)


RESUMED = announced(5, policy_epoch=1, policy_version="step-5.e1", offset=9, branches={1: 4})


def policies_of(stage: Stage) -> list[tuple[str, int, int, str]]:
    """Of the steps in the log: version, weights, epoch and lineage."""
    names = ("policy_version", "weight_step", "policy_epoch", "lineage")
    logged = segments_of(published(stage.broker, stage.layout, ENVIRONMENT))
    return [tuple(one[name] for name in names) for one in logged]


@pytest.mark.parametrize(
    ("given", "sampled_by"),
    [
        ({"policy_version": "step-5.e1", "weight_step": None}, ("step-5.e1", 5, 1, "")),
        ({"policy_version": "step-5.e1", "weight_step": 5}, ("step-5.e1", 5, 1, "")),
        ({"policy_version": "step-4", "weight_step": -1}, ("step-4", 4, 0, "")),
        ({"policy_version": 4, "weight_step": None}, ("step-4", 4, 0, "")),
        ({"policy_version": "v", "weight_step": 3}, ("v", 3, 0, "")),
        ({"policy_version": "v", "weight_step": 5, "policy_epoch": 1}, ("v", 5, 1, "")),
        ({"policy_version": "ahead", "weight_step": 6}, ("ahead", 6, 1, "")),
        ({"policy_version": 7, "weight_step": None}, ("step-7", 7, 1, "")),
    ],
)
def test_a_step_is_of_the_policy_that_its_trainer_announced(
    stage: Stage, given: dict[str, Any], sampled_by: tuple[object, ...]
) -> None:
    tell(stage, announced(4), announced(6, policy_version="left"), RESUMED)

    async def scenario(producer: Producer) -> None:
        await producer.submit_steps([step(**given)])

    stage.play(scenario)
    assert policies_of(stage) == [sampled_by]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"policy_version": "v", "weight_step": None}, "policy_version is 'v', which no trainer"),
        ({"policy_version": "v", "weight_step": 5}, "weight_step is 5, and weights of 2 epochs"),
        (
            {"policy_version": "left", "weight_step": 6},
            "policy_version is 'left' .*, which its trainer went back",
        ),
        (
            {"policy_version": "v", "weight_step": 6, "policy_epoch": 0},
            "policy_version is 'v' .* which its trainer went back",
        ),
        ({"policy_version": "step-4", "weight_step": 3}, "weight_step is 3, and policy 'step-4'"),
        ({"policy_version": 4, "weight_step": 3}, "weight_step is 3, and policy_version is 4"),
        ({"lineage": "other"}, r"lineage is 'other', and the models in training here are \[''\]"),
    ],
)
def test_a_step_that_no_policy_on_the_branch_can_have_sampled_is_refused(
    stage: Stage, given: dict[str, Any], told: str
) -> None:
    tell(stage, announced(4), announced(6, policy_version="left"), RESUMED)

    async def scenario(producer: Producer) -> None:
        await producer.submit_steps([step("first", policy_version=4, weight_step=4)])
        await producer.flush()  # From now on policies are known.
        with pytest.raises(InvalidRollout, match=r"steps\[1\]: " + told):
            await producer.submit_steps(
                [step("a", policy_version=4, weight_step=4), step("b", **given)]
            )

    stage.play(scenario)
    assert policies_of(stage) == [("step-4", 4, 0, "")]
