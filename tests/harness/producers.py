"""One producer contract, two producers: tests are written with ``await`` and run over both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import Any, NamedTuple, Protocol, cast
from uuid import uuid4

from harness.brokers import TIMEOUT_S, until
from rollstream.producers import (
    AsyncRolloutProducer,
    FlushTimedOut,
    FollowedPolicy,
    Group,
    RolloutProducer,
    Trajectory,
)
from rollstream.producers.engine.outbox import Outbox
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.ingest.entry import SEGMENT_KINDS, Entry
from rollstream.schemas.ingest.record import IngestRecord, decode_record
from rollstream.streams.broker import EARLIEST, Broker, LogReader, Record, TopicPartition, TopicSpec
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.topics.layout import RECORD_BYTES_MAX, Layout

PARTITIONS = 4
ENVIRONMENT = "math"

# Builds and encodes what a producer sends, without one.
OUTBOX = Outbox(
    broker="kafka:9092",
    environment="math",
    replica_id="replica-0",
    worker_id="worker-0",
    lineage="",
    layout=Layout(),
    uid_prefix="uid",
    clock=ManualClock(),
)


def sampled(**overrides: Any) -> dict[str, Any]:
    """What ``publish`` needs besides the example."""
    return {
        "policy_version": "step-1",
        "weight_step": 1,
        "prompt_tokens": [1, 2],
        "output_tokens": [3, 4, 5],
        "logprobs": [-0.5, -0.25, -0.125],
        "reward": 1.0,
        **overrides,
    }


class AnyGroup(Protocol):
    """``AsyncGroup``, or the same over ``Group``."""

    @property
    def group_uid(self) -> str: ...
    async def publish(self, **member: Any) -> str: ...
    async def publish_many(self, **members: Any) -> list[str]: ...
    async def append(self, **rollout: Any) -> str: ...
    def wanted(self) -> bool: ...
    async def fail(self, reason: str | BaseException, *, count: int = 1) -> None: ...
    def trajectory(self, **arguments: Any) -> AbstractAsyncContextManager[AnyTrajectory]: ...


class AnyTrajectory(Protocol):
    """``AsyncTrajectory``, or the same over ``Trajectory``."""

    @property
    def rollout_uid(self) -> str: ...
    async def turn(self, **segment: Any) -> None: ...


class AnyProducer(Protocol):
    """``AsyncRolloutProducer``, or the same over ``RolloutProducer``."""

    async def publish(self, **rollout: Any) -> str: ...
    async def append_to_group(self, **rollout: Any) -> str: ...
    async def policy(self, **arguments: Any) -> FollowedPolicy: ...
    def dispatch(self, **arguments: Any) -> AbstractAsyncContextManager[AnyGroup]: ...
    def admit(self, **arguments: Any) -> AbstractAsyncContextManager[object]: ...
    def trajectory(self, **arguments: Any) -> AbstractAsyncContextManager[AnyTrajectory]: ...
    async def flush(self, timeout_s: float = TIMEOUT_S) -> None: ...
    async def close(self) -> None: ...


class AwaitedTrajectory:
    def __init__(self, inner: Trajectory) -> None:
        self._inner = inner

    @property
    def rollout_uid(self) -> str:
        return self._inner.rollout_uid

    async def turn(self, **segment: Any) -> None:
        self._inner.turn(**segment)


class AwaitedGroup:
    def __init__(self, inner: Group) -> None:
        self._inner = inner

    @property
    def group_uid(self) -> str:
        return self._inner.group_uid

    async def publish(self, **member: Any) -> str:
        return self._inner.publish(**member)

    async def publish_many(self, **members: Any) -> list[str]:
        return self._inner.publish_many(**members)

    async def append(self, **rollout: Any) -> str:
        return self._inner.append(**rollout)

    def wanted(self) -> bool:
        return self._inner.wanted()

    async def fail(self, reason: str | BaseException, *, count: int = 1) -> None:
        self._inner.fail(reason, count=count)

    @asynccontextmanager
    async def trajectory(self, **arguments: Any) -> AsyncIterator[AnyTrajectory]:
        with self._inner.trajectory(**arguments) as turns:
            yield AwaitedTrajectory(turns)


class AwaitedProducer:
    """The sync producer with ``await`` in front."""

    def __init__(self, inner: RolloutProducer) -> None:
        self._inner = inner

    async def publish(self, **rollout: Any) -> str:
        return self._inner.publish(**rollout)

    async def append_to_group(self, **rollout: Any) -> str:
        return self._inner.append_to_group(**rollout)

    async def policy(self, **arguments: Any) -> FollowedPolicy:
        return await asyncio.to_thread(self._inner.policy, **arguments)

    @asynccontextmanager
    async def dispatch(self, **arguments: Any) -> AsyncIterator[AnyGroup]:
        with ExitStack() as stack:
            # It may wait for admission, and the loop has others to run.
            group = self._inner.dispatch(**arguments)
            yield AwaitedGroup(await asyncio.to_thread(stack.enter_context, group))

    @asynccontextmanager
    async def admit(self, **arguments: Any) -> AsyncIterator[None]:
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, self._inner.admit(**arguments))
            yield

    @asynccontextmanager
    async def trajectory(self, **arguments: Any) -> AsyncIterator[AnyTrajectory]:
        with self._inner.trajectory(**arguments) as turns:
            yield AwaitedTrajectory(turns)

    async def flush(self, timeout_s: float = TIMEOUT_S) -> None:
        self._inner.flush(timeout_s)

    async def close(self) -> None:
        self._inner.close()


def open_producer(kind: str, broker: Broker, layout: Layout, **arguments: Any) -> AnyProducer:
    """A ``sync`` or an ``async`` producer; call it inside the event loop."""
    names = {"namespace": layout.namespace, "generation": layout.generation, **arguments}
    if kind == "sync":
        return AwaitedProducer(RolloutProducer(broker=broker, **names))
    # Its arguments are spelled out; the tests here give them as they come.
    return cast(AnyProducer, AsyncRolloutProducer(broker=broker, **names))


def flush_by_jumps(producer: RolloutProducer) -> None:
    """Returns once all is in the log, of a producer whose clock jumps: by such a clock no call has
    time to wait for the broker."""

    def is_flushed() -> bool:
        try:
            producer.flush(0)
        except FlushTimedOut:
            return False
        return True

    until(is_flushed)


def new_layout(
    broker: Broker, *environments: str, record_bytes_max: int = RECORD_BYTES_MAX
) -> Layout:
    """Topics of a test's own."""
    layout = Layout(namespace=f"test-{uuid4().hex}")
    config = {
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(record_bytes_max),
    }
    names = environments or (ENVIRONMENT,)
    specs = [TopicSpec(layout.rollouts(name), PARTITIONS, config) for name in names]
    specs += [TopicSpec(layout.scores(name), PARTITIONS, config) for name in names]
    specs += [TopicSpec(layout.admission(name), 1, config) for name in names]
    broker.admin().create(specs, TIMEOUT_S)
    return layout


SCHEMA_3 = (("schema", b"3"),)
"""The headers of each record that a producer writes."""


class Logged(NamedTuple):
    """An entry as the log has it."""

    partition: int
    offset: int
    number: int
    record: IngestRecord
    entry: Entry

    @property
    def fields(self) -> Mapping[str, Any]:
        return self.entry.fields


def records_of(
    broker: Broker, layout: Layout, environment: str = ENVIRONMENT, partitions: int = PARTITIONS
) -> list[Record]:
    """All that is in the log, in order within a partition."""
    topic = layout.rollouts(environment)
    logs = [TopicPartition(topic, partition) for partition in range(partitions)]
    reader = broker.reader(dict.fromkeys(logs, EARLIEST))
    count = sum(_end(reader, where) for where in logs)
    records: list[Record] = []
    while len(records) < count:
        records += reader.poll(1000, TIMEOUT_S)
    reader.close()
    return records


def published(
    broker: Broker, layout: Layout, environment: str = ENVIRONMENT, partitions: int = PARTITIONS
) -> list[Logged]:
    """The entries of all that is in the log, in order within a partition; each is sound."""
    found = []
    for one in records_of(broker, layout, environment, partitions):
        record = decode_record(one.value)
        assert (record.broken, record.environment) == ({}, environment)
        assert (one.key, one.headers) == (None, SCHEMA_3)
        found += [
            Logged(one.partition, one.offset, number, record, record.entry(number))
            for number in range(record.count)
        ]
    return found


def _end(reader: LogReader, where: TopicPartition) -> int:
    deadline = Deadline(TIMEOUT_S)
    while True:
        try:
            return reader.bounds(where, deadline.left_s())[1]
        except BrokerUnavailable:  # A new topic's leader is not known everywhere at once.
            assert not deadline.passed(), where


def segments_of(found: list[Logged]) -> list[Mapping[str, Any]]:
    """The fields of the rollout segments among them."""
    return [one.fields for one in found if one.entry.kind in SEGMENT_KINDS]


def failures_of(found: list[Logged]) -> list[tuple[int, str]]:
    """How many members will never come, and why, as each entry says that says so."""
    failures = [one.entry.failure for one in found]
    return [(failure.count, failure.reason) for failure in failures if failure is not None]
