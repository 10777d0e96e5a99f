"""The broker in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rollstream.runtime.clock import Clock
from rollstream.streams.broker import (
    IDLE_S,
    Broker,
    Commits,
    GroupMembers,
    Logs,
    Offsets,
    OnRevoked,
    Opened,
    TopicSpec,
)
from rollstream.streams.memory.logs import MemoryLogs
from rollstream.streams.memory.member import MemoryGroupReader
from rollstream.streams.memory.reader import MemoryReader
from rollstream.streams.memory.writer import MemoryWriter


class MemoryBroker(Broker):
    """A ``Broker`` in memory: the same contract as Kafka's, the same results in every run.

    Args:
        logs: shared with other brokers; new ones by default.
        clock: stamps records and measures waits (a ``ManualClock`` makes waits instant); only
            where ``logs`` is not given.
    """

    def __init__(self, logs: MemoryLogs | None = None, *, clock: Clock | None = None) -> None:
        assert logs is None or clock is None, "shared logs bring their own clock"
        self.logs = logs or MemoryLogs(clock)
        self._opened = Opened()

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> MemoryWriter:
        return self._opened.add(MemoryWriter(self.logs), MemoryWriter.abandon)

    def reader(self, starts: Offsets, *, idle_s: float = IDLE_S) -> MemoryReader:
        return self._opened.add(MemoryReader(self.logs, starts), MemoryReader.close)

    def group_reader(
        self, group: str, topics: Sequence[str], *, on_revoked: OnRevoked
    ) -> MemoryGroupReader:
        reader = MemoryGroupReader(self.logs, group, topics, on_revoked)
        return self._opened.add(reader, MemoryGroupReader.close)

    def admin(self) -> MemoryAdmin:
        return MemoryAdmin(self.logs)

    def close(self) -> None:
        self._opened.close()


class MemoryAdmin:
    """An ``Admin``."""

    def __init__(self, logs: MemoryLogs) -> None:
        self._logs = logs

    def reach(self, timeout_s: float) -> None:
        pass

    def brokers(self, timeout_s: float) -> int:
        return self._logs.brokers

    def group(self, name: str, timeout_s: float) -> GroupMembers:
        with self._logs.lock:
            return self._logs.group(name).describe()

    def committed(self, group: str, asked: Logs, timeout_s: float) -> Commits:
        with self._logs.lock:
            commits = self._logs.group(group).commits
            return {where: commits[where] for where in asked if where in commits}

    def describe(self, names: Collection[str], timeout_s: float) -> dict[str, TopicSpec]:
        topics = self._logs.topics()
        return {name: spec for name, spec in topics.items() if name in names}

    def topics(self, prefix: str, timeout_s: float) -> list[str]:
        return sorted(name for name in self._logs.topics() if name.startswith(prefix))

    def create(self, specs: Sequence[TopicSpec], timeout_s: float) -> None:
        for spec in specs:
            self._logs.create(spec)
