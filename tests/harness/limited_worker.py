"""A producer that a sampler limits, by a clock that the test moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from harness.brokers import until
from harness.faults import FaultyBroker
from harness.granting import Granting
from harness.producers import AnyProducer, new_layout, open_producer, published, sampled
from rollstream.runtime.clock import Clock, ManualClock
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.streams.broker import Broker


class StillClock(ManualClock):
    """Moves by ``advance`` alone; its waits are short, so that what it moved past is seen soon."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(min(timeout_s, 0.01))


class Worker:
    """A producer that a sampler limits, over topics of its own."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.layout = new_layout(broker)
        sound = broker.inner if isinstance(broker, FaultyBroker) else broker
        self.granting = Granting(sound, self.layout)

    def play(self, kind: str, scenario: Callable[[AnyProducer], Any], clock: Clock) -> None:
        async def run() -> None:
            producer = open_producer(
                kind, self.broker, self.layout, environment="math", clock=clock
            )
            try:
                await scenario(producer)
            finally:
                await producer.close()

        asyncio.run(run())

    async def grant(self, total: int, **overrides: Any) -> None:
        await asyncio.to_thread(lambda: self.granting.grant(total, **overrides))

    def count(self, kind: EntryKind) -> int:
        return [one.entry.kind for one in published(self.broker, self.layout)].count(kind)

    async def until_alive(self, count: int) -> None:
        await asyncio.to_thread(until, lambda: self.count(EntryKind.ALIVE) >= count)


async def play(producer: AnyProducer, **arguments: Any) -> None:
    async with producer.dispatch(example_id="ex", group_size=1, **arguments) as group:
        await group.publish(**sampled())
