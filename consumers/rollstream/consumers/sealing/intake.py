"""What one partition reads, from one adoption on: records and log time into the assembler."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from rollstream.consumers.assembling import Assembler
from rollstream.consumers.sealing.dead_letters import DeadLetters
from rollstream.consumers.sealing.readable import Reading
from rollstream.consumers.sealing.stats import SealerCounters
from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import UnreadableEvent
from rollstream.streams.broker import GroupReader, Record, TopicPartition
from rollstream.streams.errors import BrokerUnavailable, CorruptLog
from rollstream.streams.folds.seal import SealFold

TICK_EVERY_S = 0.25  # How often the end offset is asked for, where a time-out may be due.
BACKLOG_FLUSHES_MAX = 2  # Decided and not committed, in full flushes; beyond, reading pauses.
_log = logging.getLogger("rollstream.sealer")


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from, and what they are turned into."""

    environment: str
    where: TopicPartition
    config: EnvironmentConfig
    reader: GroupReader
    clock: Clock
    timeout_s: float
    letters: DeadLetters
    counters: SealerCounters


class Intake:
    """Reads from the fold's watermark on; what the fold knows to be settled is passed over."""

    def __init__(self, source: Source, fold: SealFold) -> None:
        self.assembler = Assembler(
            source.environment, source.config, fold.seen, watermark=fold.watermark
        )
        self._source = source
        self._fold = fold
        above = fold.settled_above()
        self._replay_until = int(above[-1]) + 1 if len(above) else fold.watermark
        self._reading = Reading(source.environment)
        self._tick_at_s = 0.0
        self._tick: tuple[int, int] | None = None
        self._paused = False
        source.reader.begin(source.where, fold.watermark)

    def take(self, records: Iterable[Record]) -> None:
        """The next records.

        Raises:
            BrokerUnavailable: too many dead letters wait; what was not taken is read again.
            CorruptLog: between two records there are offsets without one.
        """
        try:
            self._take(records)
        except BrokerUnavailable:
            self._read_on()
            raise

    def _take(self, records: Iterable[Record]) -> None:
        source, fold = self._source, self._fold
        decode, add = self._reading.decode, self.assembler.add
        replay_until = self._replay_until
        position = self.assembler.position
        count = 0
        for record in records:
            offset, timestamp_us, value = record.offset, record.timestamp_us, record.value
            if offset != position:
                raise CorruptLog(
                    f"{source.where}: no records at offsets {position} to {offset - 1}: somebody "
                    "writes here with Kafka transactions, whose marks take offsets too, or the "
                    "topic is compacted. Have them write without, and begin a new generation"
                )
            position += 1
            count += 1
            if offset < replay_until and fold.settled(offset):
                self.assembler.skip(offset, timestamp_us)
                continue
            try:
                event = decode(value)
            except UnreadableEvent as error:
                source.letters.write(record, error, Deadline(source.timeout_s, source.clock))
                self.assembler.unreadable(offset, timestamp_us)
            else:
                add(offset, timestamp_us, event, len(value))
        source.counters.read += count

    def lost(self, first: int) -> None:
        """Retention deleted what lies between the position and ``first``, unread."""
        _log.error(
            "%s: retention deleted offsets %d to %d before they were sealed; they are settled as "
            "lost, and the audit fails from now on; raise retention_hours or run more sealers",
            self._source.where,
            self.assembler.position,
            first - 1,
        )
        self.assembler.lost(first, self._fold.settled)
        self._read_on()

    def tick_if_due(self) -> None:
        """Moves log time to the wall clock, once the position has reached the end that the log had
        at that time. The end is asked for only where a time-out may be due.

        Raises:
            BrokerUnavailable.
        """
        source = self._source
        oldest_ts = self.assembler.oldest_ts()
        if oldest_ts is None:
            return
        if self._tick is None:
            now_s, now_us = source.clock.monotonic_s(), source.clock.now_us()
            due_us = oldest_ts + round(source.config.seal_timeout_s * 1e6)
            if now_s < self._tick_at_s or now_us < due_us:
                return
            self._tick_at_s = now_s + TICK_EVERY_S
            # The time first: whatever is appended until then lies below the end.
            self._tick = (now_us, source.reader.bounds(source.where, source.timeout_s)[1])
        now_us, end = self._tick
        if self.assembler.position >= end:
            self._tick = None
            self.assembler.tick(now_us)

    def pause_or_resume(self) -> None:
        """Where flushes do not get through (a full disk), reading more would only fill memory."""
        source, config = self._source, self._source.config
        backlog = max(
            self.assembler.decided_records / config.max_flush_rollouts,
            self.assembler.decided_bytes / config.max_flush_bytes,
        )
        if not self._paused and backlog > BACKLOG_FLUSHES_MAX:
            self._paused = True
            source.reader.pause(source.where)
        elif self._paused and backlog <= BACKLOG_FLUSHES_MAX / 2:
            self._read_on()

    def _read_on(self) -> None:
        """From the position, paused or not until now."""
        self._paused = False
        self._source.reader.begin(self._source.where, self.assembler.position)
