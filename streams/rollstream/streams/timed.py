"""A broker whose appends and questions are timed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from rollstream.runtime.clock import Clock
from rollstream.runtime.metrics import catalogue
from rollstream.runtime.metrics.timings import Timings, timed
from rollstream.streams.broker import (
    IDLE_S,
    Admin,
    Broker,
    Committed,
    Delivery,
    GroupMembers,
    GroupReader,
    Headers,
    LogReader,
    OnDelivery,
    TopicPartition,
    TopicSpec,
    Writer,
)

T = TypeVar("T")


class TimedBroker(Broker):
    """Another broker. Timed are appends, up to the broker's answer, and the questions of ``Admin``;
    readers are that broker's own."""

    def __init__(self, inner: Broker, timings: Timings, clock: Clock) -> None:
        self._inner = inner
        self._timings = timings
        self._clock = clock

    def __str__(self) -> str:
        return str(self._inner)

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> Writer:
        inner = self._inner.writer(linger_ms=linger_ms, retries=retries)
        return _TimedWriter(inner, self._timings, self._clock)

    def reader(self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S) -> LogReader:
        return self._inner.reader(starts, idle_s=idle_s)

    def group_reader(
        self, group: str, topics: Sequence[str], *, on_revoked: Callable[[TopicPartition], None]
    ) -> GroupReader:
        return self._inner.group_reader(group, topics, on_revoked=on_revoked)

    def admin(self) -> Admin:
        return _TimedAdmin(self._inner.admin(), self._timings, self._clock)

    def outage(self) -> str:
        return self._inner.outage()

    def close(self) -> None:
        self._inner.close()


class _TimedWriter(Writer):
    def __init__(self, inner: Writer, timings: Timings, clock: Clock) -> None:
        self._inner = inner
        self._timings = timings
        self._clock = clock

    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        begun_s = self._clock.monotonic_s()

        def delivered(delivery: Delivery) -> None:
            took_s = self._clock.monotonic_s() - begun_s
            self._timings.observe(catalogue.BROKER_APPEND, took_s, topic)
            failed = int(delivery.error is not None)
            self._timings.count(catalogue.BROKER_FAILURES, topic, times=failed)
            if on_delivery is not None:
                on_delivery(delivery)

        self._inner.append(
            topic, value, key=key, partition=partition, headers=headers, on_delivery=delivered
        )

    def poll(self, timeout_s: float = 0.0) -> None:
        self._inner.poll(timeout_s)

    def flush(self, timeout_s: float) -> int:
        return self._inner.flush(timeout_s)

    def partitions(self, topic: str, timeout_s: float) -> int:
        return self._inner.partitions(topic, timeout_s)

    def abandon(self) -> None:
        self._inner.abandon()


class _TimedAdmin(Admin):
    def __init__(self, inner: Admin, timings: Timings, clock: Clock) -> None:
        self._inner = inner
        self._timings = timings
        self._clock = clock

    def reach(self, timeout_s: float) -> None:
        self._timed("reach", lambda: self._inner.reach(timeout_s))

    def brokers(self, timeout_s: float) -> int:
        return self._timed("brokers", lambda: self._inner.brokers(timeout_s))

    def group(self, name: str, timeout_s: float) -> GroupMembers:
        return self._timed("group", lambda: self._inner.group(name, timeout_s))

    def committed(
        self, group: str, asked: Collection[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, Committed]:
        return self._timed("committed", lambda: self._inner.committed(group, asked, timeout_s))

    def describe(self, names: Collection[str], timeout_s: float) -> dict[str, TopicSpec]:
        return self._timed("describe", lambda: self._inner.describe(names, timeout_s))

    def topics(self, prefix: str, timeout_s: float) -> list[str]:
        return self._timed("topics", lambda: self._inner.topics(prefix, timeout_s))

    def create(self, specs: Sequence[TopicSpec], timeout_s: float) -> None:
        self._timed("create", lambda: self._inner.create(specs, timeout_s))

    def _timed(self, call: str, ask: Callable[[], T]) -> T:
        with timed(self._timings.observe, self._clock, catalogue.BROKER_CALL, call):
            return ask()
