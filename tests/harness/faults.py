"""Wrappers around the broker's seams: what gets lost, late or doubtful, and what is counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import NamedTuple, Self

from rollstream.runtime.clock import Clock
from rollstream.streams.broker import (
    IDLE_S,
    Admin,
    Bounds,
    Broker,
    Delivery,
    GroupReader,
    Headers,
    LogReader,
    Logs,
    Offsets,
    OnDelivery,
    Record,
    TopicPartition,
    Writer,
)
from rollstream.streams.errors import BufferFull, DeliveryUnknown

WRITE_TIMEOUT_S = 30.0


class Fate(Enum):
    """What becomes of an append."""

    PASS = auto()  # As without us.
    LOSE_REPORT = auto()  # In the log; nobody ever says so.
    DOUBT = auto()  # In the log; the report says that nobody knows.
    DROP = auto()  # Not in the log; nobody ever says so.
    DOUBT_AND_DROP = auto()  # Not in the log; the report says that nobody knows.
    HOLD = auto()  # Not in the log until `land`; nobody ever says so.


class Append(NamedTuple):
    """An append as it reaches the seam."""

    topic: str
    value: bytes
    key: bytes | None
    partition: int | None
    headers: Headers = ()


Decide = Callable[[Append], Fate]


def always_pass(append: Append) -> Fate:
    return Fate.PASS


def write_now(broker: Broker, append: Append) -> None:
    """The record is in the log when this returns; its own writer never learns of it."""
    writer = broker.writer()
    writer.append(
        append.topic,
        append.value,
        key=append.key,
        partition=append.partition,
        headers=append.headers,
    )
    assert writer.flush(WRITE_TIMEOUT_S) == 0


class FaultyBroker:
    """A ``Broker`` whose writers ask ``decide`` about each append, and whose readers count.

    Attributes:
        decide: may be replaced at any time; may also kill its own process.
        records_read: by all readers so far.
        appends: by all writers so far.
        doubts: how many doubts were reported so far.
        silent: whether polls keep doubts to themselves for now.
        clock: on which a poll or a flush waits for reports that will never come; None: it does not
            wait.
    """

    def __init__(
        self, inner: Broker, decide: Decide = always_pass, *, clock: Clock | None = None
    ) -> None:
        self.clock = clock
        self.inner = inner
        self.decide = decide
        self.records_read = 0
        self.appends = self.doubts = 0
        self.silent = False
        self._held: list[Append] = []
        self._writers: list[FaultyWriter] = []

    def fail_writers(self) -> None:
        """The clients of all writers fail for good: each makes another, as ``KafkaWriter``."""
        for writer in self._writers:
            writer.failed = True

    def land(self) -> int:
        """What was held reaches the log now, late; how many records."""
        held, self._held = self._held, []
        for append in held:
            write_now(self.inner, append)
        return len(held)

    @property
    def held(self) -> int:
        """How many records are held."""
        return len(self._held)

    def hold(self, append: Append) -> None:
        self._held.append(append)

    def before_append(self, append: Append, on_delivery: OnDelivery | None) -> OnDelivery | None:
        """Called before ``decide``; returns who is told of the delivery."""
        return on_delivery

    def before_poll(self, timeout_s: float) -> float:
        """Called before each poll of a writer; returns how long it waits."""
        return timeout_s

    def before_read(self) -> None:
        """Called before each read; for simulations, where others get their turn here."""

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> Writer:
        inner = self.inner.writer(linger_ms=linger_ms, retries=retries)
        writer = FaultyWriter(self, inner)
        self._writers.append(writer)
        return writer

    def reader(self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S) -> LogReader:
        return CountingReader(self, self.inner.reader(starts, idle_s=idle_s))

    def group_reader(
        self, group: str, topics: Sequence[str], *, on_revoked: Callable[[TopicPartition], None]
    ) -> GroupReader:
        return self.inner.group_reader(group, topics, on_revoked=on_revoked)

    def admin(self) -> Admin:
        return self.inner.admin()

    def outage(self) -> str:
        return self.inner.outage()

    def close(self) -> None:
        self.inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class FaultyWriter:
    """A ``Writer``.

    Attributes:
        failed: it takes nothing before a poll, which says of all that is on its way that nobody
            knows.
    """

    failed = False

    def __init__(self, broker: FaultyBroker, inner: Writer) -> None:
        self._broker = broker
        self._inner = inner
        self._silent: list[tuple[Append, OnDelivery]] = []
        self._doubts: list[tuple[Append, OnDelivery]] = []

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
        if self.failed:
            raise BufferFull(f"{topic}: the test's client failed")
        append = Append(topic, value or b"", key, partition, headers)
        forward = partial(
            self._inner.append, topic, value, key=key, partition=partition, headers=headers
        )
        on_delivery = self._broker.before_append(append, on_delivery)
        fate = self._broker.decide(append)
        self._broker.appends += 1
        if fate is Fate.PASS:
            forward(on_delivery=on_delivery)
            return
        if fate in (Fate.LOSE_REPORT, Fate.DOUBT):
            forward()
        elif fate is Fate.HOLD:
            self._broker.hold(append)
        if on_delivery is not None:
            doubtful = fate in (Fate.DOUBT, Fate.DOUBT_AND_DROP)
            (self._doubts if doubtful else self._silent).append((append, on_delivery))

    def poll(self, timeout_s: float = 0.0) -> None:
        timeout_s = self._broker.before_poll(timeout_s)
        if self.failed:
            self.failed = False
            self._doubts, self._silent = [*self._doubts, *self._silent], []
        doubts: list[tuple[Append, OnDelivery]] = []
        if not self._broker.silent:
            doubts, self._doubts = self._doubts, []
        _report_doubt(doubts)
        self._broker.doubts += len(doubts)
        if self._silent and self._broker.clock is not None:
            self._broker.clock.wait(threading.Event(), timeout_s)
        self._inner.poll(0.0 if doubts else timeout_s)

    def flush(self, timeout_s: float) -> int:
        doubts, self._doubts = self._doubts, []
        _report_doubt(doubts)
        if self._silent and self._broker.clock is not None:
            self._broker.clock.wait(threading.Event(), timeout_s)
        return self._inner.flush(timeout_s) + len(self._silent)

    def partitions(self, topic: str, timeout_s: float) -> int:
        return self._inner.partitions(topic, timeout_s)

    def abandon(self) -> None:
        # What was accepted before reaches the log all the same: the harder case, always.
        self._inner.flush(WRITE_TIMEOUT_S)
        self._inner.abandon()
        _report_doubt(self._doubts)
        _report_doubt(self._silent)


def _report_doubt(appends: Sequence[tuple[Append, OnDelivery]]) -> None:
    for append, on_delivery in appends:
        doubt = DeliveryUnknown(f"{append.topic}: the test lost the report")
        on_delivery(Delivery(append.topic, append.partition or 0, -1, doubt))


class CountingReader:
    """A ``LogReader``."""

    def __init__(self, broker: FaultyBroker, inner: LogReader) -> None:
        self._broker = broker
        self._inner = inner

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        self._broker.before_read()
        records = self._inner.poll(records_max, timeout_s)
        self._broker.records_read += len(records)
        return records

    def bounds(self, where: TopicPartition, timeout_s: float) -> tuple[int, int]:
        return self._inner.bounds(where, timeout_s)

    def all_bounds(self, logs: Logs, timeout_s: float) -> Bounds:
        return self._inner.all_bounds(logs, timeout_s)

    def read_to(self, where: TopicPartition) -> int:
        return self._inner.read_to(where)

    def offsets_at(self, ends: Offsets, timestamp_us: int, timeout_s: float) -> Offsets:
        return self._inner.offsets_at(ends, timestamp_us, timeout_s)

    def seek(self, where: TopicPartition, offset: int) -> None:
        self._inner.seek(where, offset)

    def pause(self, where: TopicPartition) -> None:
        self._inner.pause(where)

    def close(self) -> None:
        self._inner.close()
