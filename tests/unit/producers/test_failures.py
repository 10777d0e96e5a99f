"""What producers do when the broker loses, refuses or is full."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness.brokers import until
from harness.faults import Append, Fate, FaultyBroker
from harness.producer_faults import (
    Doubtful,
    NarrowBroker,
    abouts_of,
    fill,
    until_late,
    until_sent,
    wide_rollout,
)
from harness.producers import (
    PARTITIONS,
    failures_of,
    new_layout,
    published,
    sampled,
    segments_of,
)
from rollstream.producers import (
    AsyncRolloutProducer,
    BrokerUnavailable,
    BufferFull,
    DeliveryFailed,
    FlushTimedOut,
    InvalidRollout,
    InvalidSettings,
    RolloutProducer,
    RolloutTooLarge,
)
from rollstream.runtime.clock import ManualClock
from rollstream.schemas.ingest.record import decode_record
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.partitioning import partition_of

OTHER = "other"
SHORT_S = 0.05  # Where the answer never comes; the result does not depend on how long this is.


# Examples whose rollouts go to different partitions, so that neither waits for the other's answer.
APART = {"b": "ex-0", "a": "ex-1"}
assert len({partition_of(example.encode(), PARTITIONS) for example in APART.values()}) == 2


@contextmanager
def quiet_exit(producer: RolloutProducer) -> Iterator[RolloutProducer]:
    """Closes without telling of what is still on its way."""
    yield producer
    with pytest.raises(DeliveryFailed):
        producer.close()


def until_told(producer: RolloutProducer) -> DeliveryFailed:
    """Publishes something else until a call tells of earlier failures."""
    told: list[DeliveryFailed] = []

    def publish() -> bool:
        try:
            producer.publish(example_id="other", rollout_uid=OTHER, **sampled())
        except DeliveryFailed as failed:
            told.append(failed)
        return bool(told)

    until(publish)
    return told[0]


def make(broker: FaultyBroker, **arguments: Any) -> RolloutProducer:
    layout = new_layout(broker)
    return RolloutProducer(
        broker=broker, environment="math", namespace=layout.namespace, **arguments
    )


def test_a_failed_delivery_is_told_at_the_next_publish_which_queues_nothing() -> None:
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT_AND_DROP, "a"))
    layout = new_layout(broker)
    with RolloutProducer(broker=broker, environment="math", namespace=layout.namespace) as producer:
        with producer.dispatch(example_id="ex", group_size=1) as group:  # Its end sends at once.
            group.publish(rollout_uid="a", **sampled())
        told = until_told(producer)
        assert ("a" in told.uids, told.nothing_queued) == (True, True)  # Others share its record.
        assert "not delivered to FaultyBroker (a" in str(told)
        assert "this call queued nothing, repeat it too" in str(told)
        broker.decide = Doubtful(Fate.PASS)
        for uid in told.uids:
            producer.publish(example_id="ex", rollout_uid=uid, **sampled())
    found = {s["rollout_uid"] for s in segments_of(published(broker, layout))}
    assert found <= {"a", OTHER}
    assert "a" in found


def test_failed_deliveries_are_told_at_flush_and_only_once() -> None:
    with make(FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT, "a"))) as producer:
        producer.publish(example_id="ex", rollout_uid="a", **sampled())
        with pytest.raises(DeliveryFailed, match="publish them again with the same rollout_uid"):
            producer.flush()
        producer.flush()


def test_failed_deliveries_are_told_on_leaving_the_block() -> None:
    with (
        pytest.raises(DeliveryFailed) as told,
        make(FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT, "a"))) as producer,
    ):
        producer.publish(example_id="ex", rollout_uid="a", **sampled())
    assert told.value.uids == ("a",)


def test_an_exception_of_the_block_stays_in_front_of_failed_deliveries() -> None:
    def crash() -> None:
        with make(FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT, "a"))) as producer:
            producer.publish(example_id="ex", rollout_uid="a", **sampled())
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as told:
        crash()
    assert "1 rollout was not delivered" in told.value.__notes__[0]


def test_what_is_still_on_its_way_at_the_end_is_told_as_in_doubt() -> None:
    clock = ManualClock()
    broker = FaultyBroker(MemoryBroker(clock=clock), Doubtful(Fate.DROP, "a"))
    with pytest.raises(DeliveryFailed) as told, make(broker, clock=clock) as producer:
        producer.publish(example_id="ex", rollout_uid="a", **sampled())
    assert told.value.uids == ("a",)


def test_a_lost_control_event_names_its_group() -> None:
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT, "DISPATCHED"))
    with make(broker) as producer:
        with producer.dispatch(example_id="ex", group_size=1, group_uid="g") as group:
            with pytest.raises(DeliveryFailed) as told:
                producer.flush()
            group.publish(**sampled())
        assert (told.value.uids, told.value.group_uids) == ((), ("g",))


def test_a_group_says_what_is_missing_even_while_failures_are_untold() -> None:
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT, "a"))
    layout = new_layout(broker)
    producer = RolloutProducer(broker=broker, environment="math", namespace=layout.namespace)
    with (
        quiet_exit(producer),
        producer.dispatch(example_id="ex", group_size=3) as group,
        producer.dispatch(example_id="other", group_size=1) as other,
    ):
        other.publish(rollout_uid="a", **sampled())
    # What became of "a" was known when ``group`` ended, and nobody was told.
    found = published(broker, layout)
    assert [one.entry.failure.count for one in found if one.entry.failure is not None] == [3]
    assert {one.fields["group_uid"] for one in found} == {group.group_uid, other.group_uid}


def test_a_flush_that_cannot_finish_names_broker_number_and_remedy() -> None:
    clock = ManualClock()
    broker = FaultyBroker(MemoryBroker(clock=clock), Doubtful(Fate.DROP, "a"))
    with quiet_exit(make(broker, clock=clock)) as producer:
        producer.publish(example_id="ex", rollout_uid="a", **sampled())
        told = "1 rollout or event did not reach FaultyBroker within 2 s; check"
        with pytest.raises(FlushTimedOut, match=told) as error:
            producer.flush(timeout_s=2.0)
        assert error.value.outstanding == 1


class OneOfEach:
    """Decides that "a" is in doubt, and that no report comes for "b"; of examples in partitions of
    their own."""

    def __call__(self, append: Append) -> Fate:
        (uid,) = abouts_of(decode_record(append.value))
        return {"a": Fate.DOUBT, "b": Fate.LOSE_REPORT}[uid]


def test_a_flush_that_tells_of_failures_tells_what_it_did_not_wait_for() -> None:
    clock = ManualClock()
    broker = FaultyBroker(MemoryBroker(clock=clock), OneOfEach())
    with quiet_exit(make(broker, clock=clock)) as producer:
        for uid, example in APART.items():
            producer.publish(example_id=example, rollout_uid=uid, **sampled())
        told = r"1 rollout .* \(a\): .*; 1 more rollout or event still to be answered; flush"
        with pytest.raises(DeliveryFailed, match=told) as error:
            producer.flush(timeout_s=2.0)
        assert (error.value.uids, error.value.outstanding) == (("a",), 1)
        with pytest.raises(FlushTimedOut) as late:
            producer.flush(timeout_s=2.0)
        assert late.value.outstanding == 1


def test_an_awaited_flush_that_tells_of_failures_tells_what_it_did_not_wait_for() -> None:
    clock = ManualClock()
    broker = FaultyBroker(MemoryBroker(clock=clock), OneOfEach())
    broker.silent = True
    layout = new_layout(broker)

    async def scenario() -> None:
        producer = AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace, clock=clock
        )
        publishing = [
            asyncio.create_task(producer.publish(example_id=example, rollout_uid=uid, **sampled()))
            for uid, example in APART.items()
        ]
        await until_sent(broker, 2)
        for task in publishing:
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)
        broker.silent = False
        with pytest.raises(DeliveryFailed, match="1 more rollout or event still") as error:
            await until_late(clock, producer.flush())
        assert (error.value.uids, error.value.outstanding) == (("a",), 1)
        with pytest.raises(DeliveryFailed) as rest:
            await until_late(clock, producer.close())
        assert (rest.value.uids, rest.value.outstanding) == (("b",), 0)

    asyncio.run(scenario())


def test_a_full_buffer_waits_for_room() -> None:
    broker = NarrowBroker(MemoryBroker(), ManualClock())
    layout = new_layout(broker)
    with RolloutProducer(broker=broker, environment="math", namespace=layout.namespace) as producer:
        broker.refusals = 20
        count = fill(producer)
        producer.publish(example_id="ex", **sampled())
    assert len(segments_of(published(broker, layout))) == count + 1


@pytest.mark.proves("I8")
def test_a_buffer_that_stays_full_is_told_within_the_deadline_with_the_bound() -> None:
    broker = NarrowBroker(MemoryBroker(), ManualClock())
    with make(broker, clock=broker.manual_clock, timeout_s=5.0) as producer:
        broker.refusals = 10_000
        fill(producer)
        begun_s = broker.manual_clock.monotonic_s()
        with pytest.raises(BufferFull, match=r"no room for 5 s, .*100 records are queued"):
            producer.publish(example_id="ex", **sampled())
        assert broker.manual_clock.monotonic_s() - begun_s == pytest.approx(5.0)
        broker.refusals = 0


@pytest.mark.proves("I8")
def test_a_call_that_never_has_room_is_refused_behind_others_too_and_ends_none_of_them() -> None:
    broker = NarrowBroker(MemoryBroker(), ManualClock())
    layout = new_layout(broker)
    wide = wide_rollout()["output_tokens"]

    async def scenario() -> None:
        async with (
            AsyncRolloutProducer(
                broker=broker, environment="math", namespace=layout.namespace
            ) as producer,
            producer.dispatch(example_id="ex", group_uid="g", group_size=5) as group,
        ):
            broker.refusals = 1_000_000
            waiting = [asyncio.create_task(producer.publish(**wide_rollout())) for _ in range(6)]
            await asyncio.sleep(0)  # The last two wait for room.
            many = group.publish_many(
                policy_version="step-1", weight_step=1, output_tokens=[wide] * 5
            )
            with pytest.raises(RolloutTooLarge, match="the 5 entries of this call"):
                await many
            broker.refusals = 0
            await asyncio.gather(*waiting)

    asyncio.run(scenario())
    assert [one["example_id"] for one in segments_of(published(broker, layout))] == ["wide"] * 6


def test_a_trajectory_survives_a_full_buffer() -> None:
    broker = NarrowBroker(MemoryBroker(), ManualClock())
    layout = new_layout(broker)
    producer = RolloutProducer(
        broker=broker,
        environment="math",
        namespace=layout.namespace,
        clock=broker.manual_clock,
        timeout_s=1.0,
    )
    with producer, producer.trajectory(example_id="ex", rollout_uid="mine") as trajectory:
        trajectory.turn(**sampled())
        broker.refusals = 10_000
        fill(producer)
        with pytest.raises(BufferFull):
            trajectory.turn(**sampled())
        broker.refusals = 0
        trajectory.turn(**sampled())
    found = [s for s in segments_of(published(broker, layout)) if s["rollout_uid"] == "mine"]
    assert [(s["segment_idx"], s["is_last_segment"]) for s in found] == [(0, False), (1, True)]


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_turn_in_doubt_is_sent_again_as_it_was_or_not_at_all(
    written: bool, goes_on: bool
) -> None:
    fate = Doubtful(Fate.DOUBT if written else Fate.DOUBT_AND_DROP, "t")
    broker = FaultyBroker(MemoryBroker(), fate)
    layout = new_layout(broker)

    async def scenario() -> None:
        async with (
            AsyncRolloutProducer(
                broker=broker, environment="math", namespace=layout.namespace
            ) as producer,
            producer.trajectory(example_id="ex", rollout_uid="t") as trajectory,
        ):
            await trajectory.turn(**sampled(output_tokens=[1], logprobs=[-1.0]))
            with pytest.raises(DeliveryFailed):
                await trajectory.turn(**sampled(output_tokens=[2], logprobs=[-1.0]))
            fate.uids.clear()
            if goes_on:
                await trajectory.turn(**sampled(output_tokens=[3], logprobs=[-1.0]))

    asyncio.run(scenario())
    found = published(broker, layout)
    sent = {
        (one["segment_idx"], bool(one["is_last_segment"]), one["output_tokens"][0])
        for one in segments_of(found)
    }
    assert sent == ({(0, False, 1), (1, True, 3)} if goes_on else {(0, False, 1)})
    reasons = [reason for _, reason in failures_of(found)]
    assert ["in doubt" in reason for reason in reasons] == ([] if goes_on else [True])


def test_await_publish_raises_what_became_of_its_own_rollout() -> None:
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT_AND_DROP, "a"))
    layout = new_layout(broker)

    async def scenario() -> list[Any]:
        async with AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace
        ) as producer:
            return await asyncio.gather(
                *(
                    producer.publish(example_id=example, rollout_uid=uid, **sampled())
                    for uid, example in sorted(APART.items())
                ),
                return_exceptions=True,
            )

    failed, uid = asyncio.run(scenario())
    assert isinstance(failed, DeliveryFailed)
    assert failed.uids == ("a",)
    assert uid == "b"


def test_a_cancelled_publish_that_fails_later_is_told_at_flush() -> None:
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT, "a"))
    broker.silent = True
    layout = new_layout(broker)

    async def scenario() -> None:
        async with AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace
        ) as producer:
            task = asyncio.create_task(
                producer.publish(example_id="ex", rollout_uid="a", **sampled())
            )
            await until_sent(broker, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            broker.silent = False
            with pytest.raises(DeliveryFailed) as told:
                await producer.flush()
            assert told.value.uids == ("a",)

    asyncio.run(scenario())


def test_coroutines_wait_for_room_and_all_get_it() -> None:
    broker = NarrowBroker(MemoryBroker(), ManualClock())
    layout = new_layout(broker)

    async def scenario() -> None:
        async with AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace
        ) as producer:
            broker.refusals = 5
            await asyncio.gather(
                *(producer.publish(example_id="ex", **sampled()) for _ in range(50))
            )

    asyncio.run(scenario())
    assert len(segments_of(published(broker, layout))) == 50


def test_a_producer_needs_a_broker_and_only_one() -> None:
    with pytest.raises(InvalidSettings, match="give one of them"):
        RolloutProducer(environment="math")
    with pytest.raises(InvalidSettings, match="give one of them"):
        RolloutProducer("kafka:9092", broker=MemoryBroker())


@pytest.mark.parametrize("bootstrap", ["", " "])
def test_an_empty_bootstrap_is_refused_with_what_to_give(bootstrap: str) -> None:
    with pytest.raises(InvalidSettings, match="bootstrap is empty; give Kafka's host:port"):
        RolloutProducer(bootstrap, environment="math")


def test_an_environment_that_no_topic_can_have_is_refused_at_once() -> None:
    with pytest.raises(InvalidSettings, match=r"environment 'math\.2' .*use letters, digits"):
        RolloutProducer(broker=MemoryBroker(), environment="math.2")
    with make(FaultyBroker(MemoryBroker())) as producer:
        with pytest.raises(InvalidRollout, match=r"environment 'math\.2' .*use letters, digits"):
            producer.publish(example_id="ex", environment="math.2", **sampled())
        with (
            pytest.raises(InvalidRollout, match=r"environment 'math\.2'"),
            producer.dispatch(example_id="ex", group_size=1, environment="math.2"),
        ):
            pass


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"replica_id": 3}, "replica_id is 3; give a string"),
        ({"replica_id": ""}, "replica_id is ''; give a string"),
        ({"worker_id": 3}, "worker_id is 3; give a string"),
        ({"worker_id": "w" * 4097}, "worker_id has 4097 characters"),
        ({"environment": 3}, "environment is 3; give a string"),
        ({"environment": None}, "environment is None; give a string"),
        ({"lineage": 3}, "lineage is 3; give a string"),
        ({"lineage": "x" * 5000}, "lineage has 5000 characters; give at most"),
        ({"namespace": 3}, "namespace is 3; give a string"),
        ({"namespace": "a.b"}, "namespace 'a.b' cannot be part of a topic's name; use letters"),
        ({"namespace": ""}, "namespace '' cannot be part of a topic's name; use letters"),
        ({"generation": 0}, "generation is 0; give a whole number, 1 or more"),
        ({"generation": "1"}, "generation is '1'; give a whole number"),
        ({"generation": True}, "generation is True; give a whole number"),
        ({"timeout_s": "30"}, "timeout_s is '30'; give a number of seconds, more than 0"),
        ({"timeout_s": None}, "timeout_s is None; give"),
        ({"timeout_s": True}, "timeout_s is True; give"),
        ({"timeout_s": 0}, "timeout_s is 0; give"),
        ({"timeout_s": float("nan")}, "timeout_s is nan; give"),
        ({"broker": "kafka:9092"}, "broker is 'kafka:9092'; give a MemoryBroker"),
        ({"broker": None, "bootstrap": 9092}, "bootstrap is 9092; give Kafka's host:port"),
    ],
    ids=lambda given: repr(given)[:40] if isinstance(given, dict) else "",
)
@pytest.mark.parametrize("kind", [RolloutProducer, AsyncRolloutProducer])
def test_a_wrong_setting_is_named_with_what_to_give(
    kind: Any, wrong: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidSettings, match=re.escape(told)) as refused:
        kind(**{"broker": MemoryBroker(), "environment": "math", **wrong})
    field, value = [*wrong.items()][-1]
    error = pickle.loads(pickle.dumps(refused.value))
    assert str(error) == f"{field} {error.finding}; {error.remedy}"
    assert (error.field, repr(error.value)[:40]) == (field, repr(value)[:40])


@pytest.mark.parametrize("timeout_s", ["x", None, -3, float("inf"), True])
def test_a_flush_refuses_what_is_no_time(timeout_s: Any) -> None:
    with make(FaultyBroker(MemoryBroker())) as producer:
        with pytest.raises(InvalidSettings, match=r"timeout_s is .*seconds, 0 or more"):
            producer.flush(timeout_s)
        producer.flush(0)

    async def scenario() -> None:
        async with AsyncRolloutProducer(broker=MemoryBroker(), environment="math") as producer:
            with pytest.raises(InvalidSettings, match=r"timeout_s is .*seconds, 0 or more"):
                await producer.flush(timeout_s)

    asyncio.run(scenario())


def test_errors_name_the_address_of_a_kafka_broker_that_was_given() -> None:
    broker = KafkaBroker("127.0.0.1:1")
    with (
        RolloutProducer(broker=broker, environment="math", timeout_s=SHORT_S) as producer,
        pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1 did not say"),
    ):
        producer.publish(example_id="ex", **sampled())
