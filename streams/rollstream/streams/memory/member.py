"""A member of a consumer group in memory."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from rollstream.streams.broker import Committed, OnRevoked, TopicPartition
from rollstream.streams.memory.logs import MemoryLogs
from rollstream.streams.memory.reader import MemoryReader


class MemoryGroupReader(MemoryReader):
    """A ``GroupReader``: partitions are spread when members join, leave or are evicted, and change
    hands inside ``poll`` only."""

    def __init__(
        self, logs: MemoryLogs, group: str, topics: Sequence[str], on_revoked: OnRevoked
    ) -> None:
        super().__init__(logs, {})
        self._group = logs.group(group)
        self._topics = tuple(topics)
        self._on_revoked = on_revoked
        self._member: int | None = None
        self._assigned: set[TopicPartition] = set()
        self._answers: list[tuple[TopicPartition, bool, Future[bool]]] = []  # Of commits.

    def assigned(self) -> frozenset[TopicPartition]:
        return frozenset(self._assigned)

    def begin(self, where: TopicPartition, offset: int) -> None:
        assert where in self._assigned, f"{where} is not assigned"
        self._positions[where] = offset

    def commit(self, where: TopicPartition, offset: int, metadata: str) -> Future[bool]:
        answer: Future[bool] = Future()
        with self._logs.lock:
            holds = self._group.holds(self._member, where)
            if holds:
                self._group.commits[where] = Committed(offset, metadata)
        self._answers.append((where, holds, answer))
        return answer

    def evict(self) -> None:
        """What a session time-out does: the group forgets this member, which learns of it in its
        next ``poll``, and joins again."""
        with self._logs.lock:
            if self._member is not None:
                self._group.leave(self._member, self._logs.partition_counts())
                self._logs.wake()

    def close(self) -> None:
        self.evict()
        self._member = None
        self._assigned.clear()
        super().close()

    def _before_read(self) -> None:
        with self._logs.lock:
            joined = self._group.knows(self._member)  # Else it is new, or was evicted.
            losing = sorted(self._assigned.difference(self._group.meant_for(self._member)))
        # Without the lock: what the owner does on losing a partition may take the broker's time.
        for where in losing:
            self.pause(where)
            self._on_revoked(where)
            self._assigned.discard(where)
        with self._logs.lock:
            if self._member is None or not joined:
                counts = self._logs.partition_counts()
                self._member = self._group.join(self._topics, counts)
                self._logs.wake()
            for where in losing:
                self._group.give_up(self._member, where)
            if losing:
                self._logs.wake()
            self._assigned.update(self._group.take(self._member))
        answers, self._answers = self._answers, []
        for where, held, answer in answers:
            answer.set_result(held and where not in losing)
