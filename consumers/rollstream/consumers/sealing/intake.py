"""What one partition reads, from one adoption on: records and log time into the assembler."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from functools import partial

from rollstream.consumers.assembling import Assembler
from rollstream.consumers.beside.asked import Asked
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.newer import newer_record
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import RollstreamError, UnreadableEvent
from rollstream.schemas.ingest.record import IngestRecord, decode_record
from rollstream.schemas.reasons import SettleReason
from rollstream.streams.broker import GroupReader, Record, TopicPartition
from rollstream.streams.damaged import next_readable
from rollstream.streams.errors import (
    BrokerUnavailable,
    CorruptLog,
    DamagedRecord,
    LogLost,
    NewerEvent,
    lost_message,
)
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.owned.log_clock import LogClock
from rollstream.streams.owned.reading import upgrade_remedy
from rollstream.streams.partitioning import partition_of
from rollstream.streams.troubles import wrong_clock

# Objects of a record that is kept, and of each entry if each has a group of its own. Measured with
# Python 3.11: 4.4 KiB a record, 0.6 KiB an entry, 1.2 KiB a group.
RECORD_BYTES = 4_500
ENTRY_BYTES = 1_800
SEARCH_S = 120.0  # For the end of what the broker does not deliver.
TICK_EVERY_S = 0.25  # How often the end offset is asked for, where a time-out may be due.
NO_ROOM_AFTER_S = 10.0
NO_ROOM = (
    "the sealer that took it over reads others first, since its memory is used up: start more "
    "sealers, or raise sealers.memory_bytes"
)
BACKLOG_FLUSHES_MAX = 2  # Full flushes of decisions not committed; above it reading pauses.
_log = logging.getLogger("rollstream.sealer")


class Intake:
    """Reads from the fold's watermark on, and passes over what the fold knows to be settled.

    Args:
        reader: of the consumer group.
        source: the partition of the ingest log.
        log: the seal log, claimed.

    Attributes:
        log_clock: log time where nothing arrives.
    """

    def __init__(
        self,
        context: SealerContext,
        reader: GroupReader,
        source: TopicPartition,
        log: OwnedLog[SealFold],
        log_clock: LogClock,
    ) -> None:
        fold = log.fold
        self.log_clock = log_clock
        self.assembler = Assembler(
            *(context.environment, context.config, fold.seen_among),
            watermark=fold.watermark,
            keep=self._keep,
        )
        self._context = context
        self._reader = reader
        self._source = source
        self._fold = fold
        self._replay_until = fold.replay_until
        self._tick_at_s = 0.0
        self._tick: tuple[int, Asked[int]] | None = None
        self._first_end: Asked[int] | None = None
        self._checked: tuple[int, Asked[int]] | None = None
        self._paused = True
        self._waits_from_s = math.inf
        self._damage: tuple[DamagedRecord, Future[int]] | None = None
        self._told_damage = -1  # The offset that its letter has.
        # The intake before this one may still read, above the watermark. Its records would leave a
        # gap, and a gap is settled as offsets without a record.
        reader.pause(source)
        context.memory.join(source)
        self.pause_or_resume()

    def take(self, records: Iterable[Record]) -> None:
        """Assembles the next records. Where too many dead letters wait for the broker, the rest is
        left, and read again; so is it where an error is raised. Offsets without a record, between
        two, are settled as such.

        Raises:
            PermanentBrokerError: somebody must change something first. UnreadableLog: of this
                partition alone.
        """
        try:
            self._context.counters.count_read(*self._take_all(records))
            self.log_clock.saw(self.assembler.now_us)
        except RollstreamError:
            # Else the reader would stand behind records that nobody took, as behind a marker.
            self._read_from_position()
            raise
        finally:
            self._count_memory()

    def lost(self, first: int) -> None:
        """Settles what retention deleted, unread, between the position and ``first``."""
        _log.error(
            "%s: retention deleted offsets %d to %d before they were sealed; they are settled as "
            "lost, and the audit fails from now on; raise retention_hours or run more sealers",
            self._source,
            self.assembler.position,
            first - 1,
        )
        self._settle_unread(first, SettleReason.LOST)
        self._read_from_position()

    def damaged(self, error: DamagedRecord) -> None:
        """The broker does not deliver the batch at an offset: finds out beside the loop, on fresh
        connections, where it goes on. Until then nothing is read."""
        self._paused = True
        self._reader.pause(self._source)
        start = max(self.assembler.position, error.offset)
        context, deadline = self._context, Deadline(SEARCH_S, self._context.clock)
        # Nobody waits for that thread: a leader that is silent holds up no claim.
        search = context.threads.beside.submit(
            next_readable, context.broker, self._source, start, deadline
        )
        self._damage = error, search

    def _settle_damaged(self, error: DamagedRecord, search: Future[int]) -> None:
        """Settles what the broker does not deliver as lost, once its letter is written."""
        if not search.done():
            return
        try:
            first, stop = self.assembler.position, search.result()
            if stop > max(first, error.offset):
                if first < error.offset:
                    self._settle_unread(error.offset, SettleReason.NO_RECORD)
                    first = error.offset
                if self._told_damage != first:
                    self._told_damage = first
                    detail = f"offsets {first} to {stop - 1} cannot be read: {error}"
                    _log.error("%s: %s; they are settled as lost", self._source, detail)
                    record = Record(*self._source, first, self.assembler.now_us, None, b"")
                    unreadable = UnreadableEvent("damaged", detail)
                    self._context.letters.write(record, 0, None, unreadable)
                if not self._context.letters.are_delivered():
                    return
                self._settle_unread(stop, SettleReason.LOST)
        except BrokerUnavailable as unavailable:
            _log.warning("%s: %s; it is tried again", self._source, unavailable)
        self._damage, self._told_damage = None, -1
        self._read_from_position()

    def settle_markers(self) -> None:
        """Settles the offsets without a record that the log ends with. Only while it is read."""
        if not self._paused:
            read_to = self._reader.read_to(self._source)
            if read_to > self.assembler.position:
                self._settle_unread(read_to, SettleReason.NO_RECORD)

    def is_caught_up(self) -> bool:
        """Whether everything was read that the log had when this was asked first.

        Raises:
            BrokerUnavailable: the end of the log is not known; the next call asks again.
        """
        if self._first_end is None:
            self._first_end = self.ask_end()
        end = self._first_end.answer()
        return end is not None and self.assembler.position >= end

    def ask_end(self) -> Asked[int]:
        """The end of the ingest log after this call; it raises as ``is_caught_up``."""
        return Asked(partial(self._context.ends.ask, self._source))

    def check_end(self) -> bool:
        """Whether it is known that the log reaches up to where it was read when this was asked.

        Raises:
            LogLost: it ends before. BrokerUnavailable: as ``is_caught_up``.
        """
        if self._checked is None:
            self._checked = self.assembler.position, self.ask_end()
        position, asked = self._checked
        end = asked.answer()
        if end is None:
            return False
        self._checked = None
        if end < position:
            raise LogLost(lost_message(str(self._source), position, f"the log ends at {end}"))
        return True

    def tick_if_due(self) -> None:
        """Moves log time on to what ``log_clock`` says, once the position has reached the end that
        the log had at that time. The end is asked for only where a time-out may be due.

        Raises:
            BrokerUnavailable: the end is not known.
        """
        context = self._context
        if self.is_caught_up():
            context.memory.leave_line(self._source)
        due_us = self.assembler.pending.due_us()
        if due_us is None:
            self._tick = None
            return
        if self._tick is None:
            now_s, now_us = context.clock.monotonic_s(), self.log_clock.now_us()
            if now_s < self._tick_at_s or now_us < due_us:
                return
            self._tick_at_s = now_s + TICK_EVERY_S
            # The time first: whatever is appended until then has an offset below the end.
            self._tick = now_us, self.ask_end()
        now_us, asked = self._tick
        end = asked.answer()
        if end is not None and self.assembler.position >= end:
            self._tick = None
            self.assembler.tick(now_us)

    def time_jumped(self, confirmed_us: int) -> bool:
        """Returns whether a claim is to tell the time anew: by this machine's clock another time
        passed than log time has it.

        Args:
            confirmed_us: LogAppendTime of the newest confirmed event.
        """
        self.log_clock.confirmed(confirmed_us)
        return self.log_clock.jumped

    def wrong_clock(self) -> str:
        """Returns what is wrong with this machine's clock; empty: nothing."""
        return wrong_clock(self.log_clock.ahead_us / 1e6)

    @property
    def asks(self) -> bool:
        """Whether a time-out may be due, and the end of the log is asked for."""
        return self._tick is not None

    @property
    def waits_for_room(self) -> bool:
        """Whether it waits for its turn, since the sealer's memory is used up."""
        return self._waits_from_s < math.inf

    def trouble(self) -> str:
        """What hinders it for long, in words; empty: nothing."""
        waits_s = self._context.clock.monotonic_s() - self._waits_from_s
        return NO_ROOM if waits_s >= NO_ROOM_AFTER_S else ""

    def pause_or_resume(self) -> None:
        """Where flushes do not get through (a full disk), reading more would only fill memory. What
        was adopted waits for its turn while memory is used up."""
        self._count_memory()
        if self._damage is not None:
            self._settle_damaged(*self._damage)
            return
        now_s = self._context.clock.monotonic_s()
        may_read = self._context.memory.may_read(self._source, now_s)
        self._waits_from_s = math.inf if may_read else min(self._waits_from_s, now_s)
        config = self._context.config
        backlog = max(
            self.assembler.decided.entries / config.max_flush_rollouts,
            self.assembler.decided.size / config.max_flush_bytes,
            self.assembler.decided.held.size / config.max_flush_bytes,
        )
        if not self._paused and (backlog > BACKLOG_FLUSHES_MAX or not may_read):
            self._paused = True
            self._reader.pause(self._source)
        elif self._paused and backlog <= BACKLOG_FLUSHES_MAX / 2 and may_read:
            self._read_from_position()

    def _keep(self, record: IngestRecord) -> int:
        """Keeps a record in memory while there is room; else its payload goes to scratch. Its
        objects stay in memory. Returns how many bytes of memory it takes."""
        self._count_memory()
        context, objects = self._context, RECORD_BYTES + ENTRY_BYTES * record.count
        admitted = context.memory.admits(objects + record.size)
        in_memory = admitted or not context.scratch.take(record)
        return objects + record.size if in_memory else objects

    def _count_memory(self) -> None:
        self._context.memory.hold(self._source, self.assembler.memory)

    def _take_all(self, records: Iterable[Record]) -> tuple[int, int]:
        """As ``take``; how many entries were taken, and the bytes of their records."""
        count = size = 0
        for record in records:
            position = self.assembler.position
            if record.offset != position:
                self._settle_unread(record.offset, SettleReason.NO_RECORD)
                position = record.offset
            known, settled = self._known(position)
            if known and len(settled) == known:
                self.assembler.skip(position, record.timestamp_us, known)
                count += known
                size += len(record.value)
                continue
            entries = self._take(record, known, settled)
            if not entries:
                break
            count += entries
            size += len(record.value)
        return count, size

    def _take(self, record: Record, known: int, settled: Collection[int]) -> int:
        """Assembles one record, of which these entries were settled before, and said to be of
        ``known``; how many it has. 0 where too many dead letters wait; it is then read again."""
        offset, timestamp_us = record.offset, record.timestamp_us
        try:
            ingested = decode_record(record.value)
        except UnreadableEvent as error:
            if settled:
                if error.reason == "unknown_schema":
                    found = f"{self._source}, offset {offset}: {error}"
                    told = f"{found}, and entries of it were sealed: {upgrade_remedy()}"
                    raise NewerEvent(told) from error
                found = f"entries that cannot be read ({error.reason}: {error.detail})"
                raise self._not_the_sealed(offset, known, found) from error
            newer = None if self._context.dead_letter_newer else newer_record(record, error)
            if newer is not None:
                raise newer from error
            if not self._write_dead_letters(record, [(0, error, record.value)]):
                return 0
            self.assembler.unreadable(offset, timestamp_us)
            return 1
        if settled and known != ingested.count:
            raise self._not_the_sealed(offset, known, f"{ingested.count} entries")
        unreadable = self._unsealable(ingested)
        letters = (
            (entry, error, ingested.part([entry]))
            for entry, error in sorted(unreadable.items())
            if entry not in settled
        )
        if not self._write_dead_letters(record, letters):
            return 0
        self.assembler.add(
            offset, timestamp_us, ingested, settled=settled, unreadable=unreadable.keys()
        )
        return ingested.count

    def _not_the_sealed(self, offset: int, known: int, found: str) -> CorruptLog:
        return CorruptLog(
            f"{self._source}: the record at {offset} has {found}; the seal log says "
            f"{known}: it is not the one that was sealed. Restore the log, or begin a new "
            "generation"
        )

    def _unsealable(self, record: IngestRecord) -> Mapping[int, UnreadableEvent]:
        """Why entries cannot be sealed here, by their numbers."""
        environment = self._context.environment
        count, number = self._context.config.partitions, self._source.partition
        detail = ""
        if record.environment != environment:
            reason = "wrong_environment"
            detail = f"a record of environment {record.environment!r} in the log of {environment!r}"
        elif record.partitions != count:
            reason = "wrong_partition"
            detail = (
                f"its producer chose among {record.partitions} partitions, and {environment} has "
                f"{count}: somebody changed a live topic, or its settings are another's; give its "
                "Kafka client the topic's number and partitioner=murmur2_random"
            )
        if detail:
            return dict.fromkeys(range(record.count), UnreadableEvent(reason, detail))
        found = {
            entry: UnreadableEvent("inconsistent", str(broken))
            for entry, broken in record.broken.items()
        }
        named = zip(record.values("group_uid"), record.values("example_id"), strict=True)
        keys = [group_uid or example_id for group_uid, example_id in named]
        # The key of an entry that is broken may be of any length.
        sound = {key for entry, key in enumerate(keys) if entry not in found} if found else {*keys}
        chosen = {key: partition_of(key.encode(), count) for key in sound}
        if set(chosen.values()) == {number}:
            return found
        for entry, key in enumerate(keys):
            if entry not in found and chosen[key] != number:
                detail = (
                    f"murmur2 of its key {key!r} names partition {chosen[key]} of {count}, and it "
                    f"stands in {number}: give its Kafka client partitioner=murmur2_random"
                )
                found[entry] = UnreadableEvent("wrong_partition", detail)
        return found

    def _settle_unread(self, stop: int, reason: SettleReason) -> None:
        """There are no records from the position up to ``stop``."""
        known = self._fold.known_between(self.assembler.position, stop)
        self.assembler.unread(known, reason)

    def _known(self, offset: int) -> tuple[int, Collection[int]]:
        """As the fold's; 0 where nobody knows."""
        return self._fold.known(offset) if offset < self._replay_until else (0, ())

    def _write_dead_letters(
        self, record: Record, letters: Iterable[tuple[int, UnreadableEvent, bytes]]
    ) -> bool:
        """Returns False where the broker took no letters in time; the record is then read again."""
        context = self._context
        try:
            for entry, error, value in letters:
                context.letters.write(record, entry, value, error)
        except BrokerUnavailable as unavailable:
            _log.warning("%s: %s", self._source, unavailable)
            self._read_from_position()
            return False
        return True

    def _read_from_position(self) -> None:
        """Reads on, paused or not until now."""
        self._paused = False
        self._reader.begin(self._source, self.assembler.position)
