"""Steps that are submitted while no broker answers: the calls return at once, and what becomes of
the steps is known later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np
import pytest

from harness.admission import announce, announced
from harness.producer_faults import SilentBroker
from harness.producers import new_layout, published, segments_of
from rollstream.producers import (
    AsyncStepProducer,
    BrokerUnavailable,
    BufferFull,
    DeliveryFailed,
    FlushTimedOut,
    Step,
    StepProducer,
)
from rollstream.producers.engine.gather import HELD_BYTES_MAX
from rollstream.runtime.clock import SystemClock
from rollstream.streams.topics.layout import Layout

ENVIRONMENT = "web"
GRACE_S = 1.0  # A loaded machine is slow; a call that waits for the broker takes longer.
SHORT_S = 0.2
CLOSE_S = 2.0
LONG_S = 300.0
RESUMED = announced(5, policy_epoch=1, policy_version="step-5.e1", offset=9, branches={1: 4})


def step(uid: str, index: int = 0, **given: Any) -> Step:
    said = {"policy_version": "step-5.e1", "prompt_ids": [1], "response_ids": [2], **given}
    return Step(reward=1.0, trajectory_uid=uid, prompt_uid="p", step_index=index, **said)


class _Sync:
    def __init__(self, **given: Any) -> None:
        self._inner = StepProducer(**given)

    async def submit(self, *steps: Step) -> None:
        self._inner.submit_steps(steps, environment=ENVIRONMENT)

    async def complete(self, uid: str) -> None:
        self._inner.complete_trajectory(uid, environment=ENVIRONMENT)

    async def flush(self, timeout_s: float = LONG_S) -> None:
        self._inner.flush(timeout_s)

    async def close(self) -> None:
        self._inner.close()


class Stage:
    """A producer on a broker that has stopped."""

    def __init__(self) -> None:
        self.broker = SilentBroker()
        self.layout: Layout = new_layout(self.broker.inner, ENVIRONMENT)
        self.broker.stopped.set()

    def play(
        self, scenario: Callable[[Any], Awaitable[None]], layout: Layout | None = None, **given: Any
    ) -> None:
        async def run() -> None:
            namespace = (layout or self.layout).namespace
            await scenario(_Sync(broker=self.broker, namespace=namespace, **given))

        asyncio.run(run())

    def logged(self) -> list[Mapping[str, Any]]:
        return segments_of(published(self.broker.inner, self.layout, ENVIRONMENT))


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def took_s(call: Awaitable[object]) -> float:
    clock = SystemClock()
    begun_s = clock.monotonic_s()
    await call
    return clock.monotonic_s() - begun_s


async def stay_late(producer: Any) -> None:
    """Flushes in vain, for a short time."""
    with pytest.raises(FlushTimedOut):
        await producer.flush(SHORT_S)


def test_steps_are_queued_while_no_broker_answers_and_go_when_one_does(stage: Stage) -> None:
    announce(stage.broker.inner, stage.layout.admission(ENVIRONMENT), RESUMED)

    async def scenario(producer: Any) -> None:
        assert await took_s(producer.submit(step("a"))) < GRACE_S
        assert await took_s(producer.submit(step("a", 1), step("b"))) < GRACE_S
        assert await took_s(producer.complete("a")) < GRACE_S
        with pytest.raises(FlushTimedOut) as late:
            await producer.flush(SHORT_S)
        assert late.value.outstanding == 4
        stage.broker.stopped.clear()
        await producer.flush()
        await producer.submit(step("b", 1))
        await producer.close()

    stage.play(scenario)
    names = ("trajectory_uid", "segment_idx", "policy_version", "weight_step", "policy_epoch")
    of_policy = ("step-5.e1", 5, 1)
    assert [tuple(one[name] for name in names) for one in stage.logged()] == [
        ("a", 0, *of_policy),
        ("a", 1, *of_policy),
        ("b", 0, *of_policy),
        ("b", 1, *of_policy),
    ]


def test_a_step_of_each_tokens_weights_keeps_them(stage: Stage) -> None:
    announce(stage.broker.inner, stage.layout.admission(ENVIRONMENT), RESUMED)

    async def scenario(producer: Any) -> None:
        await producer.submit(step("a", response_ids=[2, 3], weight_step=[4, 5]))
        stage.broker.stopped.clear()
        await producer.close()

    stage.play(scenario)
    (one,) = stage.logged()
    assert (one["policy_version"], one["policy_epoch"]) == ("step-5.e1", 1)
    assert np.frombuffer(one["weight_steps"], np.int64).tolist() == [4, 5]


def test_a_step_whose_policy_nobody_announced_fails_by_its_name(stage: Stage) -> None:
    announce(stage.broker.inner, stage.layout.admission(ENVIRONMENT), RESUMED)

    async def scenario(producer: Any) -> None:
        await producer.submit(step("a", policy_version="v"), step("b"))
        stage.broker.stopped.clear()
        with pytest.raises(DeliveryFailed, match="'v', which no trainer") as told:
            await producer.flush()
        assert told.value.uids == ("a",)
        await producer.submit(step("a"))  # Nothing contradicts the step in its place.
        await producer.close()

    stage.play(scenario)
    assert [one["trajectory_uid"] for one in stage.logged()] == ["b", "a"]


def test_a_flush_names_all_steps_that_failed(stage: Stage) -> None:
    uids = [f"t{number}" for number in range(500)]

    async def scenario(producer: Any) -> None:
        await producer.submit(*map(step, uids))
        with pytest.raises(DeliveryFailed) as told:
            await producer.flush()
        assert told.value.uids == (*uids,)
        await producer.close()

    stage.play(scenario, timeout_s=SHORT_S)


def test_policies_that_could_not_be_read_are_not_taken_for_none(stage: Stage) -> None:
    stage.broker.names_topics = True
    announce(stage.broker.inner, stage.layout.admission(ENVIRONMENT), RESUMED)

    async def scenario(producer: Any) -> None:
        await producer.submit(step("a", policy_version=5))
        stage.broker.stopped.clear()
        await producer.submit(step("b", policy_version=5))
        await producer.close()

    stage.play(scenario)
    assert [one["policy_epoch"] for one in stage.logged()] == [1, 1]


def test_steps_fail_when_no_broker_answered_in_time(stage: Stage) -> None:
    async def scenario(producer: Any) -> None:
        await producer.submit(step("a"))
        with pytest.raises(DeliveryFailed, match=r"did not say within 0\.2 s which") as told:
            await producer.flush()
        assert told.value.uids == ("a",)
        await producer.close()

    stage.play(scenario, timeout_s=SHORT_S)


def test_a_close_ends_in_time_and_names_the_steps_that_no_broker_took(stage: Stage) -> None:
    async def scenario(producer: Any) -> None:
        await producer.submit(step("a"), step("b"))

        async def close() -> None:
            with pytest.raises(DeliveryFailed) as told:
                await producer.close()
            assert told.value.uids == ("a", "b")

        assert await took_s(close()) < CLOSE_S + GRACE_S

    stage.play(scenario, timeout_s=CLOSE_S)


def test_steps_of_an_environment_without_a_topic_fail(stage: Stage) -> None:
    missing = Layout("nobody-made-it")

    async def scenario(producer: Any) -> None:
        await producer.submit(step("a"))
        stage.broker.stopped.clear()
        with pytest.raises(DeliveryFailed, match="does not exist"):
            await producer.flush()
        await producer.close()

    stage.play(scenario, missing)


def test_held_steps_count_in_the_bound_of_the_queue(stage: Stage) -> None:
    wide = np.zeros(HELD_BYTES_MAX // 4 // 8, np.int32)

    async def scenario(producer: Any) -> None:
        for number in range(7):
            await producer.submit(step(f"t{number}", response_ids=wide))
        with pytest.raises(BufferFull):
            await producer.submit(step("t7", response_ids=wide))
        stage.broker.stopped.clear()
        await producer.submit(step("small"))
        await producer.flush()
        await producer.submit(step("t7", response_ids=wide))
        await producer.close()

    announce(stage.broker.inner, stage.layout.admission(ENVIRONMENT), RESUMED)
    stage.play(scenario)
    assert len(stage.logged()) == 9


def test_an_awaited_submission_waits_for_the_broker_up_to_its_time() -> None:
    stage = Stage()

    async def scenario() -> None:
        producer = AsyncStepProducer(
            broker=stage.broker, namespace=stage.layout.namespace, timeout_s=SHORT_S
        )

        async def submit() -> None:
            with pytest.raises(BrokerUnavailable):
                await producer.submit_step(step("a"), environment=ENVIRONMENT)

        assert await took_s(submit()) < SHORT_S + GRACE_S
        await producer.close()

    asyncio.run(scenario())
