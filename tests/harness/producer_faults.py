"""A broker that has no room, and fates of records by what they are about: for producers' tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Mapping
from typing import Any

import numpy as np
import pytest

from harness.brokers import until
from harness.faults import Append, Fate, FaultyBroker, FaultyWriter
from harness.producers import AnyProducer, sampled
from rollstream.producers import BufferFull, RolloutProducer
from rollstream.producers.engine import engine
from rollstream.producers.engine.gather import HELD_BYTES_MAX
from rollstream.producers.engine.producer import TIMEOUT_S
from rollstream.runtime.clock import ManualClock, SystemClock
from rollstream.schemas.ingest.entry import STEP_KINDS, EntryKind
from rollstream.schemas.ingest.record import IngestRecord, decode_record
from rollstream.streams.broker import IDLE_S, LogReader, OnDelivery, TopicPartition, Writer
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker

FILLING = 4
NEVER_S = 3_600.0


class NarrowBroker(FaultyBroker):
    """A broker whose writers are full for a number of appends; a poll moves the clock on.

    Attributes:
        refusals: how many appends are still refused.
        poll_moves_s: how far a poll moves the clock at least.
    """

    def __init__(self, inner: MemoryBroker, clock: ManualClock) -> None:
        super().__init__(inner)
        self.manual_clock = clock
        self.refusals = 0
        self.poll_moves_s = 0.0

    def before_append(self, append: Append, on_delivery: OnDelivery | None) -> OnDelivery | None:
        if self.refusals:
            self.refusals -= 1
            raise BufferFull("100 records are queued; poll makes room")
        return on_delivery

    def before_poll(self, timeout_s: float) -> float:
        self.manual_clock.advance(max(timeout_s, self.poll_moves_s))
        return 0.0


class MutedBroker(FaultyBroker):
    """Its writers report nothing while it is ``muted``."""

    muted = False

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> Writer:
        return MutedWriter(self, self.inner.writer())


class MutedWriter(FaultyWriter):
    def __init__(self, broker: MutedBroker, inner: Writer) -> None:
        super().__init__(broker, inner)
        self._muted_by = broker

    def poll(self, timeout_s: float = 0.0) -> None:
        if not self._muted_by.muted:
            super().poll(timeout_s)


class SilentBroker(FaultyBroker):
    """Takes records and answers nothing, once it has stopped; its polls take their time.

    Attributes:
        stopped: clear it, and it answers what is asked from then on.
        names_topics: whether it says even then which partitions a topic has.
        asking: the threads that asked for a topic.
    """

    def __init__(self) -> None:
        super().__init__(MemoryBroker(), self._fate, clock=SystemClock())
        self.stopped = threading.Event()
        self.names_topics = False
        self.asking: list[threading.Thread] = []

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> Writer:
        return _Silent(super().writer(), self)

    def reader(self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S) -> LogReader:
        if self.stopped.is_set():
            raise BrokerUnavailable("no broker answers")
        return super().reader(starts, idle_s=idle_s)

    def _fate(self, append: Append) -> Fate:
        return Fate.DROP if self.stopped.is_set() else Fate.PASS


class _Silent:
    """A ``Writer`` that is asked for topics in vain while the broker has stopped."""

    def __init__(self, inner: Writer, broker: SilentBroker) -> None:
        self._inner = inner
        self._broker = broker

    def partitions(self, topic: str, timeout_s: float) -> int:
        self._broker.asking.append(threading.current_thread())
        if self._broker.stopped.is_set() and not self._broker.names_topics:
            SystemClock().wait(threading.Event(), timeout_s)
            raise BrokerUnavailable("no broker answers")
        return self._inner.partitions(topic, timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def fill(producer: RolloutProducer) -> int:
    """Publishes until there is room for no more; returns how many rollouts that took."""
    for _ in range(FILLING):
        producer.publish(**wide_rollout())
    return FILLING


async def leave_no_room(kind: str, producer: AnyProducer, broker: NarrowBroker) -> None:
    """From now on nothing gets on its way, and the ``sync`` producer is full.

    The next publish of the other has room and waits for an answer until its time is over, at once.
    """
    await producer.flush()
    broker.refusals = 1_000_000
    for _ in range(FILLING if kind == "sync" else 0):
        await producer.publish(**wide_rollout())
    broker.poll_moves_s = TIMEOUT_S


def wide_rollout() -> dict[str, Any]:
    """One of ``FILLING`` rollouts that fill a producer together."""
    beside_its_arrays = 1_280  # What it counts for beside them, and a little less than another.
    tokens = np.zeros((HELD_BYTES_MAX // FILLING - beside_its_arrays) // 4, np.int32)
    return sampled(example_id="wide", prompt_tokens=[], output_tokens=tokens, logprobs=None)


class Doubtful:
    """Decides that records with one of these uids, or kinds of control event, are in doubt."""

    def __init__(self, fate: Fate, *uids: str) -> None:
        self.fate = fate
        self.uids = set(uids)

    def __call__(self, append: Append) -> Fate:
        record = decode_record(append.value)
        return self.fate if self.uids & abouts_of(record) else Fate.PASS


def abouts_of(record: IngestRecord) -> set[str]:
    """The uids of its segments, of steps those of trajectories, and the kinds of its control
    events."""
    named = zip(record.values("trajectory_uid"), record.values("rollout_uid"), strict=True)
    uids = zip(record.kinds, [trajectory or uid for trajectory, uid in named], strict=True)
    return {uid if kind in (0, *STEP_KINDS) else EntryKind(kind).name for kind, uid in uids}


async def until_sent(broker: FaultyBroker, records: int) -> None:
    """Returns once writers have sent so many records, while the loop goes on."""
    await asyncio.to_thread(until, lambda: broker.appends >= records)


async def turns(count: int) -> None:
    """Lets the loop turn: what was published in the first is sent in the second."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until_late(clock: ManualClock, doing: Awaitable[Any]) -> Any:
    """Awaits it; its time is over as soon as it waits for something, and was looked at."""
    task = asyncio.ensure_future(doing)
    await turns(3)
    clock.advance(10 * TIMEOUT_S)
    return await task


def never_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent because a linger ends."""
    monkeypatch.setattr(engine, "LINGER_S", NEVER_S)
