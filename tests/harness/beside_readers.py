"""A broker beside whose readers something else runs, as sealers do beside a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rollstream.streams.broker import IDLE_S, Record, TopicPartition
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.memory.reader import MemoryReader


class BesideReaders(MemoryBroker):
    """Calls ``turn`` before each poll of a reader that somebody makes here."""

    def __init__(self, logs: MemoryLogs, turn: Callable[[], None]) -> None:
        super().__init__(logs)
        self._turn = turn

    def reader(
        self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
    ) -> MemoryReader:
        reader = super().reader(starts, idle_s=idle_s)
        poll = reader.poll

        def turn_first(records_max: int, timeout_s: float) -> list[Record]:
            self._turn()
            return poll(records_max, timeout_s)

        vars(reader).update(poll=turn_first)
        return reader


class AnsweringReaders(MemoryBroker):
    """Calls ``answer`` when somebody begins to read seal logs."""

    def __init__(self, logs: MemoryLogs, answer: Callable[[], None]) -> None:
        super().__init__(logs)
        self._answer = answer

    def reader(
        self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
    ) -> MemoryReader:
        if any(".groups." in where.topic for where in starts):
            self._answer()
        return super().reader(starts, idle_s=idle_s)
