"""What contradicts itself is refused where a gateway can know it, and a retry never is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from harness.faults import Append, FaultyBroker
from harness.producers import new_layout, published
from harness.step_writers import STEP, STEPS, bearer, gateway_over
from rollstream.producers import AsyncStepProducer
from rollstream.streams.broker import OnDelivery
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker

WAIT_S = 30.0
MODES = pytest.mark.parametrize("durable", [True, False])


class World:
    """A gateway over a log in memory."""

    def __init__(self, client: TestClient, broker: MemoryBroker, layout: Any) -> None:
        self._client = client
        self._broker = broker
        self._layout = layout

    def submit(self, *steps: dict[str, Any], durable: bool = True) -> Any:
        given = [{**STEP, **step} for step in steps]
        return self._client.post(STEPS, params={"durable": durable}, json={"steps": given})

    def complete(
        self, uid: str = "t-1", prompt: str = "p-1", durable: bool = True, **body: Any
    ) -> Any:
        path = f"/v1/environments/math/trajectories/{uid}/complete"
        given = {"prompt_uid": prompt, **body}
        return self._client.post(path, params={"durable": durable}, json=given)

    def logged(self) -> int:
        return len(published(self._broker, self._layout, "math"))


@pytest.fixture
def world() -> Iterator[World]:
    broker = MemoryBroker()
    layout = new_layout(broker, "math")
    writer = AsyncStepProducer(broker=broker, namespace=layout.namespace)
    app = gateway_over(writer)
    with TestClient(app, headers=bearer()) as client:
        yield World(client, broker, layout)


def taken(answer: Any) -> None:
    assert answer.status_code in (200, 202), answer.text


def contradicts(answer: Any, field: str, value: str, what: str) -> None:
    """It is refused, and says what it contradicts."""
    assert answer.status_code == 409, answer.text
    found = answer.json()
    assert found["type"] == "urn:rollstream:problem:contradicts"
    assert (found["field"], found["value"]) == (field, value)
    assert what in found["detail"]
    assert found["remedy"]


OTHER_CONTENTS: list[dict[str, Any]] = [
    {"response_ids": [4, 6]},
    {"prompt_ids": [1, 2]},
    {"logprobs": [-0.5, -0.5]},
    {"logprobs": None},
    {"reward": 0.0},
    {"is_last": True},
    {"metadata": {"tool": "a"}},
    {"policy_version": "step-2"},
    {"weight_step": 2},
    {"policy_epoch": 1},
    {"lineage": "small"},
]


@MODES
@pytest.mark.parametrize("other", OTHER_CONTENTS)
def test_a_step_that_is_repeated_with_other_content_is_refused(
    world: World, other: dict[str, Any], durable: bool
) -> None:
    taken(world.submit({}))
    answer = world.submit({"step_index": 1}, other, durable=durable)
    contradicts(answer, "steps[1].step_index", "0", "another step 0 of trajectory t-1")
    assert world.logged() == 1
    taken(world.submit({}, {"step_index": 1}))  # Nothing of the other call is known.


@MODES
def test_another_example_of_a_prompt_is_refused_and_both_are_named(
    world: World, durable: bool
) -> None:
    taken(world.submit({"example_id": "e-1"}))
    answer = world.submit({"trajectory_uid": "t-2", "example_id": "e-2"}, durable=durable)
    contradicts(answer, "steps[0].example_id", "'e-2'", "was 'e-1' in an earlier step of prompt")
    answer = world.submit(
        {"prompt_uid": "q", "trajectory_uid": "u-1", "example_id": "e-3"},
        {"prompt_uid": "q", "trajectory_uid": "u-2", "example_id": "e-4"},
    )
    contradicts(answer, "steps[1].example_id", "'e-4'", "was 'e-3' in an earlier step of prompt")
    assert world.logged() == 1


@MODES
def test_a_retry_is_taken_however_often(world: World, durable: bool) -> None:
    steps = [{}, {"step_index": 1, "is_last": True, "n_rollouts": 1, "reward": 1}]
    for _ in range(3):
        taken(world.submit(*steps, durable=durable))
        taken(world.submit(*reversed(steps), durable=durable))
        taken(world.submit({"n_rollouts": 1}, durable=durable))
        taken(world.complete(steps=2, durable=durable))
        taken(world.complete(durable=durable))


def test_two_steps_of_a_call_contradict_each_other(world: World) -> None:
    answer = world.submit({}, {"reward": 1.0})
    contradicts(answer, "steps[1].step_index", "0", "with other content")
    answer = world.submit({"n_rollouts": 2}, {"step_index": 1, "n_rollouts": 3})
    contradicts(answer, "steps[1].n_rollouts", "3", "was 2")
    assert world.logged() == 0


@MODES
@pytest.mark.parametrize("ended", [False, True])
def test_another_number_of_rollouts_is_refused(world: World, durable: bool, ended: bool) -> None:
    taken(world.submit({"n_rollouts": 1, "is_last": ended}))
    answer = world.submit({"trajectory_uid": "t-2", "n_rollouts": 8}, durable=durable)
    contradicts(answer, "steps[0].n_rollouts", "8", "was 1 in an earlier step of prompt p-1")


@MODES
@pytest.mark.parametrize("ended", [False, True])
def test_a_uid_in_two_prompts_is_two_trajectories(world: World, durable: bool, ended: bool) -> None:
    taken(world.submit({"n_rollouts": 1, "is_last": ended}))
    other = {"prompt_uid": "p-2", "reward": 1.0, "is_last": False}
    taken(world.submit(other, {**other, "step_index": 1}, durable=durable))
    taken(world.complete(prompt="p-2", steps=2, durable=durable))
    answer = world.complete(prompt="p-2", steps=3, durable=durable)
    contradicts(answer, "steps", "3", "has ended with 2")
    answer = world.complete(prompt="p-1", steps=3, durable=durable)
    if ended:
        contradicts(answer, "steps", "3", "trajectory t-1 has ended with 1")
    else:
        taken(answer)


@MODES
def test_another_length_is_refused(world: World, durable: bool) -> None:
    taken(world.submit({}, {"step_index": 2}))
    contradicts(world.complete(steps=2, durable=durable), "steps", "2", "step 2 of trajectory t-1")
    taken(world.complete(steps=4))
    contradicts(world.complete(steps=5, durable=durable), "steps", "5", "has ended with 4")
    answer = world.submit({"step_index": 4}, durable=durable)
    contradicts(answer, "steps[0].step_index", "4", "has ended with 4 steps")
    answer = world.submit({"step_index": 1, "is_last": True}, durable=durable)
    contradicts(answer, "steps[0].is_last", "true", "step 2 of trajectory t-1 was submitted")
    taken(world.submit({"step_index": 3, "is_last": True}))


def test_the_last_step_ends_it_once(world: World) -> None:
    taken(world.submit({"step_index": 1, "is_last": True}))
    contradicts(world.complete(steps=3), "steps", "3", "has ended with 2")
    answer = world.submit({"step_index": 2, "is_last": True})
    contradicts(answer, "steps[0].step_index", "2", "has ended with 2 steps")
    taken(world.submit({}))


class _Partial(FaultyBroker):
    """Never takes what goes to partition 0, while it is told so."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.refuses = True
        self.refused = threading.Event()

    def before_append(self, append: Append, on_delivery: OnDelivery | None) -> OnDelivery | None:
        if self.refuses and append.partition == 0:
            self.refused.set()
            raise BrokerUnavailable("partition 0 has no leader")
        return on_delivery


def test_of_a_call_that_failed_those_steps_count_that_did_not_arrive() -> None:
    inner = MemoryBroker()
    broker = _Partial(inner)
    layout = new_layout(broker, "math")
    writer = AsyncStepProducer(broker=broker, namespace=layout.namespace)
    app = gateway_over(writer)
    steps = [
        {"trajectory_uid": f"t-{number}", "prompt_uid": f"p-{number}", "step_index": index}
        for number in range(16)
        for index in range(3)
    ]
    with TestClient(app, headers=bearer()) as client:
        world = World(client, inner, layout)
        taken(world.submit(*steps, durable=False))
        assert broker.refused.wait(WAIT_S)
        broker.refuses = False
        lost = world.submit({"trajectory_uid": "t", "prompt_uid": "p"}).json()["undelivered"]
        arrived = world.logged() - 1
        assert 0 < lost < len(steps)
        assert lost + arrived == len(steps)
        # Others may come in place of what is lost, and not in place of what arrived.
        again = [world.submit({**step, "reward": 1.0}).status_code for step in steps]
    assert (again.count(200), again.count(409)) == (lost, arrived)
