"""A broker whose appends and questions are timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from rollstream.runtime.clock import Clock
from rollstream.runtime.metrics import catalogue
from rollstream.runtime.metrics.timings import Timings, timed
from rollstream.streams.broker import (
    IDLE_S,
    Admin,
    Broker,
    Delivery,
    GroupReader,
    LogReader,
    Offsets,
    OnDelivery,
    OnRevoked,
    Writer,
)


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

    def reader(self, starts: Offsets, *, idle_s: float = IDLE_S) -> LogReader:
        return self._inner.reader(starts, idle_s=idle_s)

    def group_reader(
        self, group: str, topics: Sequence[str], *, on_revoked: OnRevoked
    ) -> GroupReader:
        return self._inner.group_reader(group, topics, on_revoked=on_revoked)

    def admin(self) -> Admin:
        asks: Any = _TimedCalls(self._inner.admin(), self._timings, self._clock)
        admin: Admin = asks
        return admin

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
        on_delivery: OnDelivery | None = None,
        **named: Any,
    ) -> None:
        begun_s = self._clock.monotonic_s()

        def delivered(delivery: Delivery) -> None:
            took_s = self._clock.monotonic_s() - begun_s
            self._timings.observe(catalogue.BROKER_APPEND, took_s, topic)
            failed = int(delivery.error is not None)
            self._timings.count(catalogue.BROKER_FAILURES, topic, times=failed)
            if on_delivery is not None:
                on_delivery(delivery)

        self._inner.append(topic, value, on_delivery=delivered, **named)

    def poll(self, timeout_s: float = 0.0) -> None:
        self._inner.poll(timeout_s)

    def flush(self, timeout_s: float) -> int:
        return self._inner.flush(timeout_s)

    def partitions(self, topic: str, timeout_s: float) -> int:
        return self._inner.partitions(topic, timeout_s)

    def abandon(self) -> None:
        self._inner.abandon()


class _TimedCalls:
    """The methods of another object, each call timed under the method's name."""

    def __init__(self, inner: object, timings: Timings, clock: Clock) -> None:
        self._inner = inner
        self._timings = timings
        self._clock = clock

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)

        @wraps(method)
        def call(*args: Any, **named: Any) -> Any:
            with timed(self._timings.observe, self._clock, catalogue.BROKER_CALL, name):
                return method(*args, **named)

        return call
