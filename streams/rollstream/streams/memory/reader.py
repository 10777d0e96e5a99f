"""Reads logs in memory."""

from __future__ import annotations

from rollstream.streams.broker import Bounds, LogReader, Logs, Offsets, Record, TopicPartition
from rollstream.streams.memory.logs import MemoryLogs


class MemoryReader(LogReader):
    """A ``LogReader``. Partitions take turns; the order is the same in every run."""

    def __init__(self, logs: MemoryLogs, starts: Offsets) -> None:
        self._logs = logs
        self._positions = dict(starts)
        self._turn = 0
        self._changed = logs.watch()

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        clock = self._logs.clock
        until_s = clock.monotonic_s() + timeout_s
        last = False
        while True:
            self._changed.clear()
            self._before_read()
            records = self._read(records_max)
            if records or last:
                return records
            # After a wait that timed out, it reads once more and returns.
            left_s = until_s - clock.monotonic_s()
            last = left_s <= 0 or not clock.wait(self._changed, left_s)

    def bounds(self, where: TopicPartition, timeout_s: float) -> tuple[int, int]:
        return self._logs.bounds(where)

    def all_bounds(self, logs: Logs, timeout_s: float) -> Bounds:
        return {where: self.bounds(where, timeout_s) for where in logs}

    def offsets_at(self, ends: Offsets, timestamp_us: int, timeout_s: float) -> Offsets:
        return {at: self._logs.offset_at(at, timestamp_us, end) for at, end in ends.items()}

    def read_to(self, where: TopicPartition) -> int:
        return self._logs.resolve(where, self._positions[where])

    def seek(self, where: TopicPartition, offset: int) -> None:
        self._positions[where] = offset

    def pause(self, where: TopicPartition) -> None:
        self._positions.pop(where, None)

    def close(self) -> None:
        self._logs.unwatch(self._changed)
        self._positions.clear()

    def _before_read(self) -> None:
        """Where a member of a group rebalances."""

    def _read(self, records_max: int) -> list[Record]:
        partitions = sorted(self._positions)
        records: list[Record] = []
        behind: dict[TopicPartition, int] = {}
        for index in range(len(partitions)):
            where = partitions[(self._turn + index) % len(partitions)]
            offset = self._positions[where] = self.read_to(where)
            left = records_max - len(records)
            taken, behind[where] = self._logs.read_on(where, offset, left)
            records += taken
        # Only now: where an offset is lost, the others are read again.
        self._positions |= behind
        self._turn += 1
        return records
