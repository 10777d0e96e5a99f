"""A producer of either kind over topics of a test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from harness.brokers import World
from harness.producers import AnyProducer, Logged, new_layout, open_producer, published
from rollstream.streams.topics.layout import RECORD_BYTES_MAX

Scenario = Callable[[AnyProducer], Awaitable[Any]]


class Stage:
    """A producer over topics of the test's own, and what it published.

    Args:
        kind: ``sync`` or ``async``.
        record_bytes_max: of its topics.
    """

    def __init__(
        self, kind: str, world: World, *, record_bytes_max: int = RECORD_BYTES_MAX
    ) -> None:
        self.kind = kind
        self.broker = world.broker()
        self.layout = new_layout(self.broker, "math", "code", record_bytes_max=record_bytes_max)

    def play(self, scenario: Scenario, **arguments: Any) -> Any:
        """Runs it with a producer that is closed afterwards."""

        async def run() -> Any:
            wanted = {"environment": "math", "replica_id": "replica-3", **arguments}
            producer = open_producer(self.kind, self.broker, self.layout, **wanted)
            try:
                return await scenario(producer)
            finally:
                await producer.close()

        return asyncio.run(run())

    def log(self, environment: str = "math") -> list[Logged]:
        return published(self.broker, self.layout, environment)
