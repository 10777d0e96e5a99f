"""Topics in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rollstream.streams.broker import TopicSpec
from rollstream.streams.memory.logs import MemoryLogs


class MemoryAdmin:
    """An ``Admin``."""

    def __init__(self, logs: MemoryLogs) -> None:
        self._logs = logs

    def describe(self, names: Collection[str] | None, timeout_s: float) -> dict[str, TopicSpec]:
        topics = self._logs.topics()
        return {name: spec for name, spec in topics.items() if names is None or name in names}

    def create(self, specs: Sequence[TopicSpec], timeout_s: float) -> None:
        for spec in specs:
            self._logs.create(spec)
