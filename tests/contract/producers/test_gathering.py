"""What both producers promise of records of many: copies, order, time, sizes, cancellation."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from harness.brokers import TIMEOUT_S, World, until
from harness.producer_faults import never_linger
from harness.producer_stage import Stage
from harness.producers import (
    PARTITIONS,
    AnyProducer,
    records_of,
    sampled,
    segments_of,
)
from rollstream.producers import DeliveryFailed, RolloutProducer, RolloutTooLarge
from rollstream.producers.engine.engine import LINGER_S
from rollstream.runtime.clock import SystemClock
from rollstream.schemas.ingest.entry import EntryKind

THREADS = 16
COROUTINES = 500
EACH = 20  # Rollouts of each thread.
TOKENS = 50


class Buffers:
    """What one worker publishes from, again and again: arrays, a tensor of torch's, a list."""

    def __init__(self) -> None:
        self.prompt = [0] * 3
        self.output = np.zeros(TOKENS, np.int32)
        self.logprobs = Tensor(np.zeros(TOKENS, np.float32))
        self.experts = np.zeros((TOKENS, 4), np.uint8)
        self.image = bytearray(8)

    def fill(self, number: int) -> dict[str, Any]:
        """Arguments of ``publish`` that all say ``number``."""
        self.prompt[:] = [number] * 3
        self.output[:] = number
        self.logprobs.array[:] = -number
        self.experts[:] = number % 251
        self.image[:] = number.to_bytes(8, "little")
        return sampled(
            prompt_tokens=self.prompt,
            output_tokens=self.output,
            logprobs=self.logprobs,
            token_arrays={"experts": self.experts},
            attachments={"image": self.image},
        )


class Tensor:
    """A torch tensor that shares its memory with NumPy, as far as we touch it."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self.array


def assert_says(fields: Mapping[str, Any], number: int) -> None:
    """Every array has what it had when it was published."""
    assert fields["prompt_tokens"] == np.full(3, number, "<i4").tobytes()
    assert fields["output_tokens"] == np.full(TOKENS, number, "<i4").tobytes()
    assert fields["logprobs"] == np.full(TOKENS, -number, "<f4").tobytes()
    assert fields["token_arrays"]["experts"].data == bytes([number % 251]) * TOKENS * 4
    assert fields["attachments"] == {"image": number.to_bytes(8, "little")}


def assert_in_order(stage: Stage, wanted: Mapping[str, list[int]]) -> None:
    """Each group's rollouts are in the log once, in order, as they were published."""
    found: dict[str, list[int]] = defaultdict(list)
    for fields in segments_of(stage.log()):
        number = int(fields["rollout_uid"].partition("-")[2])
        assert_says(fields, number)
        found[fields["group_uid"]].append(number)
    assert found == wanted


@pytest.mark.proves("A1")
def test_threads_that_overwrite_their_arrays_publish_what_they_gave(world: World) -> None:
    stage = Stage("sync", world)

    def work(producer: RolloutProducer, worker: int) -> None:
        buffers = Buffers()
        for number in range(worker * EACH, (worker + 1) * EACH):
            producer.publish(
                example_id="ex",
                group_uid=f"group-{worker}",
                rollout_uid=f"uid-{number}",
                **buffers.fill(number),
            )
            buffers.fill(0)

    with RolloutProducer(
        broker=stage.broker, environment="math", namespace=stage.layout.namespace
    ) as producer:
        threads = [threading.Thread(target=work, args=(producer, n)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
    wanted = {f"group-{n}": list(range(n * EACH, (n + 1) * EACH)) for n in range(THREADS)}
    assert_in_order(stage, wanted)
    assert len(records_of(stage.broker, stage.layout)) < THREADS * EACH


@pytest.mark.proves("A1")
def test_coroutines_that_overwrite_their_arrays_publish_what_they_gave(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        buffers = Buffers()

        async def work(worker: int) -> None:
            for number in (worker, COROUTINES + worker):
                await producer.publish(
                    example_id="ex",
                    group_uid=f"group-{worker}",
                    rollout_uid=f"uid-{number}",
                    **buffers.fill(number),  # All share them: the next one overwrites.
                )

        await asyncio.gather(*(work(worker) for worker in range(COROUTINES)))

    stage.play(scenario)
    wanted = {f"group-{n}": [n, COROUTINES + n] for n in range(COROUTINES)}
    assert_in_order(stage, wanted)
    assert len(records_of(stage.broker, stage.layout)) < COROUTINES


def test_what_coroutines_publish_in_one_turn_is_one_record_a_partition(world: World) -> None:
    stage = Stage("async", world)

    async def scenario(producer: AnyProducer) -> None:
        await producer.publish(example_id="ex", **sampled())  # From now on the topic is known.
        publishing = (
            producer.publish(example_id=f"ex-{number}", **sampled()) for number in range(100)
        )
        await asyncio.gather(*publishing)

    stage.play(scenario)
    assert len(records_of(stage.broker, stage.layout)) == 1 + PARTITIONS


def test_the_report_of_a_record_ends_all_its_publishes_in_one_turn(world: World) -> None:
    async def scenario(producer: AnyProducer) -> None:
        await producer.publish(example_id="ex", **sampled())  # From now on the topic is known.
        publishing = [
            asyncio.ensure_future(producer.publish(example_id="ex", **sampled()))
            for _ in range(100)
        ]
        await asyncio.wait(publishing, return_when=asyncio.FIRST_COMPLETED)
        assert all(task.done() for task in publishing)

    Stage("async", world).play(scenario)


def test_an_awaited_publish_does_not_wait_out_a_linger(world: World) -> None:
    async def scenario(producer: AnyProducer) -> list[float]:
        await producer.publish(example_id="ex", **sampled())
        clock, took_s = SystemClock(), []
        for _ in range(20):
            begun_s = clock.monotonic_s()
            await producer.publish(example_id="ex", **sampled())
            took_s.append(clock.monotonic_s() - begun_s)
        return took_s

    took_s = Stage("async", world).play(scenario)
    assert min(took_s) < LINGER_S, "a busy machine delays some, a linger each"


def test_a_publish_that_is_cancelled_before_it_left_is_in_no_log(world: World) -> None:
    stage = Stage("async", world)

    async def scenario(producer: AnyProducer) -> None:
        await producer.publish(example_id="ex", rollout_uid="first", **sampled())
        publishing = [
            asyncio.ensure_future(
                producer.publish(example_id="ex", rollout_uid=f"uid-{number}", **sampled())
            )
            for number in range(10)
        ]
        await asyncio.sleep(0)  # They are gathered now, and sent at the end of the turn.
        for task in publishing[::2]:
            task.cancel()
        ended = await asyncio.gather(*publishing, return_exceptions=True)
        assert [isinstance(one, asyncio.CancelledError) for one in ended] == [True, False] * 5

    stage.play(scenario)
    uids = [fields["rollout_uid"] for fields in segments_of(stage.log())]
    assert uids == ["first"] + [f"uid-{number}" for number in range(1, 10, 2)]


def test_what_is_published_before_silence_is_in_the_log_soon(world: World) -> None:
    """A worker publishes the last member and generates for ten minutes without a call."""
    clock = SystemClock()
    took_s = []
    for _ in range(20):  # The machine may be busy now and then.
        stage = Stage("sync", world)
        producer = RolloutProducer(
            broker=stage.broker, environment="math", namespace=stage.layout.namespace
        )
        producer.publish(example_id="first", **sampled())
        producer.flush()
        producer.publish(example_id="ex", **sampled())
        begun_us = clock.now_us()
        until(lambda stage=stage: len(stage.log()) == 2)  # type: ignore[misc]
        newest_us = max(one.timestamp_us for one in records_of(stage.broker, stage.layout))
        took_s.append((newest_us - begun_us) / 1e6)
        producer.close()
        if took_s[-1] < LINGER_S + 0.05:
            break
    assert min(took_s) < LINGER_S + 0.05


def test_the_end_of_a_groups_block_sends_what_it_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_linger(monkeypatch)  # Nothing else sends.
    stage = Stage("sync", world)
    with RolloutProducer(
        broker=stage.broker, environment="math", namespace=stage.layout.namespace
    ) as producer:
        with producer.dispatch(example_id="ex", group_size=2) as group:
            group.publish(**sampled())
        until(lambda: len(stage.log()) == 3)
        (record,) = records_of(stage.broker, stage.layout)
        kinds = [EntryKind.DISPATCHED, EntryKind.SEGMENT, EntryKind.FAILED]
        assert [one.entry.kind for one in stage.log()] == kinds
        assert record.key is None


def test_a_producer_that_nobody_refers_to_is_collected(world: World) -> None:
    stage = Stage("sync", world)
    producer = RolloutProducer(
        broker=stage.broker, environment="math", namespace=stage.layout.namespace
    )
    producer.publish(example_id="ex", **sampled())
    producer.flush()
    reference = weakref.ref(producer)
    del producer
    until(lambda: reference() is None, gc.collect)


def test_what_a_dropped_producer_gathered_is_sent_with_a_warning(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_linger(monkeypatch)  # Nothing else sends.
    stage = Stage("sync", world)
    kept = [
        RolloutProducer(broker=stage.broker, environment="math", namespace=stage.layout.namespace)
    ]
    uids = [kept[0].publish(example_id="ex", **sampled()) for _ in range(3)]
    with pytest.warns(ResourceWarning, match=r"without close\(\), with 3 rollouts"):
        # Objects of a producer refer to each other, so it is collected.
        until(lambda: len(stage.log()) == 3, kept.clear, gc.collect)
    assert [segment["rollout_uid"] for segment in segments_of(stage.log())] == uids


LIMIT = 4_000  # Bytes that a topic takes: a few rollouts of a few hundred.


def test_records_that_the_broker_refuses_as_too_large_arrive_in_parts(
    kind: str, world: World
) -> None:
    stage = Stage(kind, world, record_bytes_max=LIMIT)
    uids = [f"uid-{number:03}" for number in range(100)]

    async def scenario(producer: AnyProducer) -> None:
        publishing = []
        for number, uid in enumerate(uids):
            call = producer.publish(
                example_id=f"ex-{number % 3}",
                rollout_uid=uid,
                **sampled(token_arrays={"experts": np.zeros((3, 50), np.uint8)}),
            )
            publishing.append(asyncio.ensure_future(call))
        await asyncio.gather(*publishing)

    stage.play(scenario)
    found = defaultdict(list)
    for fields in segments_of(stage.log()):
        found[fields["example_id"]].append(fields["rollout_uid"])
    assert found == {f"ex-{n}": uids[n::3] for n in range(3)}


def test_only_a_rollout_that_is_too_large_by_itself_is_told_so(kind: str, world: World) -> None:
    stage = Stage(kind, world, record_bytes_max=LIMIT)
    wide = sampled(token_arrays={"experts": np.zeros((3, LIMIT), np.uint8)})

    async def scenario(producer: AnyProducer) -> None:
        calls = [
            producer.publish(
                example_id="ex",
                rollout_uid=f"uid-{number}",
                **(wide if number == 3 else sampled()),
            )
            for number in range(8)
        ]
        told = await asyncio.gather(*map(asyncio.ensure_future, calls), return_exceptions=True)
        if kind == "async":
            assert isinstance(told[3], RolloutTooLarge)
            assert (told[3].size > 3 * LIMIT, told[3].limit) == (True, None)
            await producer.flush()
            return
        with pytest.raises(DeliveryFailed, match="more than the broker takes") as failed:
            await producer.flush()
        assert failed.value.uids == ("uid-3",)

    stage.play(scenario)
    assert [s["rollout_uid"] for s in segments_of(stage.log())] == [
        f"uid-{number}" for number in range(8) if number != 3
    ]
