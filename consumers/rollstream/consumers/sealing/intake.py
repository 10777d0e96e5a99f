"""What one partition reads, from one adoption on: records and log time into the assembler."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rollstream.consumers.assembling import Assembler
from rollstream.consumers.sealing.context import SealerContext
from rollstream.schemas.codec import Segment, decode
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Dispatched, Event, Failed
from rollstream.schemas.rules import BrokenRule, check_control_names, check_names
from rollstream.streams.broker import GroupReader, Record, TopicPartition
from rollstream.streams.errors import BrokerUnavailable, CorruptLog
from rollstream.streams.folds.seal import SealFold

TICK_EVERY_S = 0.25  # How often the end offset is asked for, where a time-out may be due.
BACKLOG_FLUSHES_MAX = 2  # Full flushes of decisions not committed; above it reading pauses.
_log = logging.getLogger("rollstream.sealer")


class Intake:
    """Reads from the fold's watermark on, and passes over what the fold knows to be settled.

    Args:
        reader: of the consumer group.
        source: the partition of the ingest log.
        fold: of the seal log.
    """

    def __init__(
        self, context: SealerContext, reader: GroupReader, source: TopicPartition, fold: SealFold
    ) -> None:
        self.assembler = Assembler(
            context.environment, context.config, fold.seen, watermark=fold.watermark
        )
        self._context = context
        self._reader = reader
        self._source = source
        self._fold = fold
        above = fold.settled_above()
        self._replay_until = int(above[-1]) + 1 if len(above) else fold.watermark
        self._tick_at_s = 0.0
        self._tick: tuple[int, int] | None = None
        self._paused = False
        reader.begin(source, fold.watermark)

    def take(self, records: Iterable[Record]) -> None:
        """Assembles the next records. Where too many dead letters wait for the broker, the rest is
        left, and read again.

        Raises:
            CorruptLog: between two records there are offsets without one.
        """
        context, fold = self._context, self._fold
        environment, add = context.environment, self.assembler.add
        replay_until = self._replay_until
        position = self.assembler.position
        count = 0
        for record in records:
            offset, timestamp_us, value = record.offset, record.timestamp_us, record.value
            if offset != position:
                raise CorruptLog(
                    f"{self._source}: no records at offsets {position} to {offset - 1}: somebody "
                    "writes here with Kafka transactions, whose marks take offsets too, or the "
                    "topic is compacted. Have them write without, and begin a new generation"
                )
            position += 1
            if offset < replay_until and fold.settled(offset):
                self.assembler.skip(offset, timestamp_us)
            else:
                try:
                    event = _sealable(decode(value), environment)
                except UnreadableEvent as error:
                    if not self._write_dead_letter(record, error):
                        break
                    self.assembler.unreadable(offset, timestamp_us)
                else:
                    add(offset, timestamp_us, event, len(value))
            count += 1
        context.counters.read += count

    def lost(self, first: int) -> None:
        """Settles what retention deleted, unread, between the position and ``first``."""
        _log.error(
            "%s: retention deleted offsets %d to %d before they were sealed; they are settled as "
            "lost, and the audit fails from now on; raise retention_hours or run more sealers",
            self._source,
            self.assembler.position,
            first - 1,
        )
        self.assembler.lost(first, self._fold.settled)
        self._read_from_position()

    def tick_if_due(self) -> None:
        """Moves log time to the wall clock, once the position has reached the end that the log had
        at that time. The end is asked for only where a time-out may be due.

        Raises:
            BrokerUnavailable: the end is not known.
        """
        context = self._context
        oldest_ts = self.assembler.pending.oldest_ts()
        if oldest_ts is None:
            return
        if self._tick is None:
            now_s, now_us = context.clock.monotonic_s(), context.clock.now_us()
            due_us = oldest_ts + round(context.config.seal_timeout_s * 1e6)
            if now_s < self._tick_at_s or now_us < due_us:
                return
            self._tick_at_s = now_s + TICK_EVERY_S
            # The time first: whatever is appended until then has an offset below the end.
            self._tick = (now_us, self._reader.bounds(self._source, context.timeout_s)[1])
        now_us, end = self._tick
        if self.assembler.position >= end:
            self._tick = None
            self.assembler.tick(now_us)

    def pause_or_resume(self) -> None:
        """Where flushes do not get through (a full disk), reading more would only fill memory."""
        config = self._context.config
        backlog = max(
            self.assembler.decided.records / config.max_flush_rollouts,
            self.assembler.decided.size / config.max_flush_bytes,
        )
        if not self._paused and backlog > BACKLOG_FLUSHES_MAX:
            self._paused = True
            self._reader.pause(self._source)
        elif self._paused and backlog <= BACKLOG_FLUSHES_MAX / 2:
            self._read_from_position()

    def _write_dead_letter(self, record: Record, error: UnreadableEvent) -> bool:
        """Returns False where the broker took no letters in time; the record is then read again."""
        try:
            self._context.letters.write(record, error, self._context.deadline())
        except BrokerUnavailable as unavailable:
            _log.warning("%s: %s", self._source, unavailable)
            self._read_from_position()
            return False
        return True

    def _read_from_position(self) -> None:
        """Reads on, paused or not until now."""
        self._paused = False
        self._reader.begin(self._source, self.assembler.position)


def _sealable(event: Segment | Event, environment: str) -> Segment | Dispatched | Failed:
    """Returns the event; raises ``UnreadableEvent`` where it would fail at flush time, so that the
    record becomes a dead letter instead."""
    try:
        if isinstance(event, Segment):
            origin = event.header.environment
            check_names(event.header)
        elif isinstance(event, Dispatched | Failed):
            origin = event.environment
            check_control_names(event)
        else:
            raise UnreadableEvent(
                "not_an_event", f"{type(event).__name__} does not belong into an ingest log"
            )
    except BrokenRule as broken:
        raise UnreadableEvent("inconsistent", str(broken)) from broken
    if origin != environment:
        raise UnreadableEvent("inconsistent", f"a record of environment {origin!r}")
    return event
