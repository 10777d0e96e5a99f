"""What a group and its trajectories count as failed, when the broker has no room or no answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from harness.brokers import until
from harness.faults import Fate, FaultyBroker
from harness.producer_faults import (
    Doubtful,
    MutedBroker,
    NarrowBroker,
    leave_no_room,
    turns,
    until_sent,
)
from harness.producers import (
    AnyGroup,
    AnyProducer,
    failures_of,
    new_layout,
    open_producer,
    published,
    sampled,
    segments_of,
)
from rollstream.producers import (
    AsyncGroup,
    AsyncRolloutProducer,
    BufferFull,
    DeliveryFailed,
    InvalidRollout,
    RolloutProducer,
)
from rollstream.runtime.clock import ManualClock, SystemClock
from rollstream.schemas.ingest.entry import Failure
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.topics.layout import Layout

SHORT_S = 5.0  # Of a clock that goes on by hand; what samplers grant is read within as much.


@asynccontextmanager
async def dispatched(
    kind: str, broker: NarrowBroker, layout: Layout, *, group_size: int
) -> AsyncIterator[tuple[AnyProducer, AnyGroup]]:
    """A producer and its group; after the block the group has ended, and the producer is closed."""
    producer = open_producer(
        kind,
        broker,
        layout,
        environment="math",
        clock=broker.manual_clock,
        timeout_s=SHORT_S,
    )
    async with producer.dispatch(example_id="ex", group_size=group_size) as group:
        yield producer, group
    await producer.close()


class InterruptingClock(SystemClock):
    """Lets another thread run, once, where a call asks what time it is."""

    meanwhile: Callable[[], object] | None = None

    def now_us(self) -> int:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            thread = threading.Thread(target=meanwhile)
            thread.start()
            thread.join()
        return super().now_us()


def test_a_member_that_threads_fail_at_one_time_is_failed_once() -> None:
    broker, clock = MemoryBroker(), InterruptingClock()
    layout = new_layout(broker)
    with (
        RolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace, clock=clock
        ) as producer,
        producer.dispatch(example_id="ex", group_size=1) as group,
    ):
        clock.meanwhile = partial(group.fail, "first")
        with pytest.raises(InvalidRollout, match="is 1, but 0 of the 1 members"):
            group.fail("second")
    assert [one.entry.failure for one in published(broker, layout) if one.entry.failure] == [
        Failure(1, "first")
    ]


@pytest.mark.proves("F16")
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("turns", "crash"), [(1, False), (1, True), (0, True)])
def test_a_trajectory_that_could_not_say_its_end_is_missing_in_its_group(
    kind: str, turns: int, crash: bool
) -> None:
    broker = NarrowBroker(MemoryBroker(), ManualClock())
    layout = new_layout(broker)

    async def play(producer: AnyProducer, group: AnyGroup) -> None:
        async with group.trajectory() as trajectory:
            for _ in range(turns):
                await trajectory.turn(**sampled())
            await leave_no_room(kind, producer, broker)
            if crash:
                raise RuntimeError("environment crashed")

    async def scenario() -> None:
        async with dispatched(kind, broker, layout, group_size=1) as (producer, group):
            with pytest.raises(BufferFull):
                await play(producer, group)
            broker.refusals, broker.poll_moves_s = 0, 0.0

    asyncio.run(scenario())
    assert failures_of(published(broker, layout)) == [(1, "left early")]


@pytest.mark.proves("F16")
def test_a_failed_member_that_was_not_queued_may_be_said_again() -> None:
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT, "a"))
    layout = new_layout(broker)
    with (
        RolloutProducer(broker=broker, environment="math", namespace=layout.namespace) as producer,
        producer.dispatch(example_id="ex", group_size=2) as group,
    ):
        with producer.dispatch(example_id="other", group_size=1) as other:
            other.publish(rollout_uid="a", **sampled())
        until(lambda: broker.doubts == 1)
        with pytest.raises(DeliveryFailed):
            group.fail("sandbox died", count=2)
        group.fail("sandbox died", count=2)
    assert failures_of(published(broker, layout)) == [(2, "sandbox died")]


@pytest.mark.proves("F16")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_failed_member_that_found_no_room_is_still_missing(kind: str) -> None:
    broker = NarrowBroker(MemoryBroker(), ManualClock())
    layout = new_layout(broker)

    async def scenario() -> None:
        async with dispatched(kind, broker, layout, group_size=2) as (producer, group):
            await group.publish(**sampled())
            await leave_no_room(kind, producer, broker)
            with pytest.raises(BufferFull):
                await group.fail("sandbox died")
            broker.refusals, broker.poll_moves_s = 0, 0.0

    asyncio.run(scenario())
    assert failures_of(published(broker, layout)) == [(1, "left early")]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_member_that_has_begun_keeps_its_place_though_its_next_segment_found_no_room(
    kind: str,
) -> None:
    broker = NarrowBroker(MemoryBroker(), ManualClock())
    layout = new_layout(broker)

    async def scenario() -> None:
        async with dispatched(kind, broker, layout, group_size=1) as (producer, group):
            await group.publish(rollout_uid="begun", is_last_segment=False, **sampled())
            await leave_no_room(kind, producer, broker)
            with pytest.raises(BufferFull):
                await group.publish(rollout_uid="begun", segment_idx=1, **sampled())
            broker.refusals, broker.poll_moves_s = 0, 0.0
            with pytest.raises(InvalidRollout, match="has all its 1 members"):
                await group.publish(rollout_uid="another", **sampled())
            await group.publish(rollout_uid="begun", segment_idx=1, **sampled())

    asyncio.run(scenario())
    assert failures_of(published(broker, layout)) == []


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("by_trajectory", [False, True])
def test_a_failed_member_in_doubt_is_not_said_twice(by_trajectory: bool, cancelled: bool) -> None:
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT, "FAILED"))
    layout = new_layout(broker)

    async def say(group: AsyncGroup) -> None:
        if not by_trajectory:
            await group.fail("sandbox died")
            return
        async with group.trajectory():
            pass  # One without a turn has failed.

    async def scenario() -> None:
        producer = AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace
        )
        async with producer.dispatch(example_id="ex", group_size=1) as group:
            broker.silent = True
            sent = broker.appends
            saying = asyncio.create_task(say(group))
            await until_sent(broker, sent + 1)
            if cancelled:
                saying.cancel()
            broker.silent = False
            with pytest.raises(asyncio.CancelledError if cancelled else DeliveryFailed):
                await saying
            with pytest.raises(InvalidRollout, match="0 of the 1"):
                await group.fail("sandbox died")

    asyncio.run(scenario())
    assert len(failures_of(published(broker, layout))) == 1


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("how", ["publish", "publish_many", "trajectory"])
def test_a_member_whose_publish_was_cancelled_counts_if_it_was_sent(how: str, left: bool) -> None:
    broker = MutedBroker(MemoryBroker())
    layout = new_layout(broker)

    async def say(group: AsyncGroup) -> None:
        if how == "publish":
            await group.publish(rollout_uid="cut off", **sampled())
        elif how == "publish_many":
            one_each = {"output_tokens": [[3]], "logprobs": None, "rollout_uid": ["cut off"]}
            await group.publish_many(**sampled(**one_each))
        else:
            async with group.trajectory(rollout_uid="cut off") as trajectory:
                await trajectory.turn(**sampled())

    async def scenario() -> None:
        async with (
            AsyncRolloutProducer(
                broker=broker, environment="math", namespace=layout.namespace
            ) as producer,
            producer.dispatch(example_id="ex", group_size=2) as group,
        ):
            broker.muted, sent = left, broker.appends
            saying = asyncio.create_task(say(group))
            await (until_sent(broker, sent + 1) if left else turns(1))
            saying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await saying
            broker.muted = False
            await group.publish(rollout_uid="another", **sampled())
            if left:
                with pytest.raises(InvalidRollout, match="has all its 2 members"):
                    await group.publish(rollout_uid="one too many", **sampled())

    asyncio.run(scenario())
    found = published(broker, layout)
    uids = [one["rollout_uid"] for one in segments_of(found)]
    assert uids == (["cut off", "another"] if left else ["another"])
    assert failures_of(found) == ([] if left else [(1, "left early")])


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_group_publishes_in_its_block_alone_and_begins_once(kind: str) -> None:
    """Else it would be neither admitted nor dispatched."""
    broker = MemoryBroker()
    layout = new_layout(broker)
    given: Any = {"broker": broker, "environment": "math", "namespace": layout.namespace}
    called: dict[str, Any] = {
        "publish": sampled(),
        "publish_many": sampled(output_tokens=[[3]], logprobs=None),
        "append": sampled(),
        "fail": {"reason": "sandbox died"},
        "trajectory": {},
    }

    async def with_async() -> None:
        async with AsyncRolloutProducer(**given) as producer:
            group = producer.dispatch(example_id="ex", group_size=1)
            for name, arguments in called.items():
                with pytest.raises(InvalidRollout, match=r"has not begun.*`async with` for an"):
                    await getattr(group, name)(**arguments)
            async with group:
                await group.publish(**sampled())
            with pytest.raises(InvalidRollout, match=r"a group begins once; dispatch another"):
                await group.__aenter__()

    def with_sync() -> None:
        with RolloutProducer(**given) as producer:
            group = producer.dispatch(example_id="ex", group_size=1)
            for name, arguments in called.items():
                with pytest.raises(InvalidRollout, match=r"write `with producer\.dispatch\("):
                    getattr(group, name)(**arguments)
            with group:
                group.publish(**sampled())
            with pytest.raises(InvalidRollout, match=r"a group begins once; dispatch another"):
                group.__enter__()

    if kind == "sync":
        with_sync()
    else:
        asyncio.run(with_async())
    assert [len(segments_of(published(broker, layout))), len(published(broker, layout))] == [1, 2]
