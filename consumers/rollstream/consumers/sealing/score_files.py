"""Writes the logs of scores as Parquet files, beside sealing: the sealer that owns a partition of
an environment does so for that partition's scores: at once where the partition is new to it, then
now and then, and at the end."""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator
from concurrent.futures import wait
from contextlib import closing
from itertools import takewhile

from rollstream.consumers.sealing.context import SealerContext
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.errors import StoreError
from rollstream.store.score_files import (
    FILE_BYTES_MAX,
    FILE_RECORDS_MAX,
    LoggedScore,
    PartitionScores,
    ScoreFile,
    ScoreOrigin,
)
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import BrokerUnavailable, LogLost, OffsetLost, UnreadableLog
from rollstream.streams.owned.follow import Follower

QUICK_S = 1.0  # A leader that answers does so sooner: of those behind one that did not.
BROKER, STORE = "the broker does not answer", "does the store hang?"
EVERY_S = 60.0  # A file a minute and partition at most, where scores come without end.
_log = logging.getLogger("rollstream.sealer")


class ScoreFiles:
    """The files of an environment's scores, as a sealer that writes them knows them.

    What a file holds is a function of the log and of its name, and it is created whole or not at
    all. So a writer that is killed at any point leaves each score once, and so do two that write
    at a time. What no file has yet is in the log, which is kept for ever.
    """

    def __init__(self, context: SealerContext) -> None:
        self._context = context
        self._newest: dict[int, tuple[int, ScoreOrigin]] = {}  # By partition; its next offset.
        self._written: dict[int, PartitionScores] = {}  # By partition.
        self._ends_within_s = context.ask_s  # How long a log's end is waited for.
        self._lost = set[str]()  # Paths of damaged files that the log no longer has.
        self.aside: dict[int, str] = {}  # Why a partition's scores are written no more.
        self.waits = STORE  # What a job that does not end waits for, in words.

    def bring_up(self, partitions: Collection[int], deadline: Deadline) -> float:
        """Writes what is new in these partitions, a job. What fails is left to a later one, and
        holds up no other partition for longer than an answer of the broker may take. At the
        deadline no further leader is waited for once one was silent.

        Raises:
            PermanentBrokerError: somebody must change something first. BrokerUnavailable,
                StoreError: new scores of a partition have no file yet.
        """
        failed: BrokerUnavailable | StoreError | None = None
        self._ends_within_s = self._context.ask_s
        environment, generation = self._context.environment, self._context.layout.generation
        # Another sealer may have written those that were given away meanwhile.
        self._written = {one: self._written[one] for one in partitions if one in self._written}
        topic = self._context.layout.scores(environment)
        self.waits = BROKER
        if topic not in self._context.broker.admin().describe([topic], self._context.ask_s):
            return EVERY_S  # A deployment from before there were scores.
        empty = self._empty(partitions)
        for number in partitions:
            address = PartitionAddress(environment, generation, number)
            if number in self.aside:
                continue
            try:
                self.write(address, is_empty=number in empty)
            except (UnreadableLog, OffsetLost) as error:
                self.aside[number] = str(error)
                _log.error("scores of %s are written no more: %s", address, error)
            except StoreError as error:
                failed = error
            except BrokerUnavailable as error:
                failed, self._ends_within_s = failed or error, QUICK_S
                if deadline.passed():
                    break
        if failed is not None:
            raise failed
        return EVERY_S

    def _empty(self, partitions: Collection[int]) -> frozenset[int]:
        """The partitions whose logs are known to have had no score ever: each log that is read
        costs a client."""
        topic = self._context.layout.scores(self._context.environment)
        ends = {one: self._context.ends.ask(TopicPartition(topic, one)) for one in partitions}
        wait(ends.values(), self._ends_within_s)
        answered = [(one, end) for one, end in ends.items() if end.done() and not end.exception()]
        return frozenset(one for one, end in answered if end.result() == 0)

    def write(self, address: PartitionAddress, *, is_empty: bool = False) -> int:
        """Writes what is new in a partition, and damaged files anew; returns the offset up to which
        files cover its log.

        Args:
            is_empty: whether it is known that the log has had no score ever.

        Raises:
            BrokerUnavailable, StoreError: the next attempt goes on where this one ended.
            LogLost: the log does not hold the last record that files have. UnreadableLog: it cannot
                be read on; what is before that is written.
        """
        self.waits = STORE
        number, now_s = address.partition, self._context.clock.monotonic_s()
        is_new = number not in self._written
        if not is_new:
            self._written[number].look(now_s)  # Files are listed now and then.
        else:
            self._written[number] = PartitionScores(self._context.blobs, address, now_s)
        written = self._written[number]
        first, records, size = written.stop, list[LoggedScore](), 0
        if is_empty and not first and not written.damaged:
            return first
        unreadable: UnreadableLog | None = None
        with closing(self._scores(address, max(first - 1, 0))) as scores:
            if first:  # What was written last is compared.
                self._require_log_of_files(address, first, next(scores, None))
            try:
                for one in scores:
                    records.append(one)
                    size += one.size
                    if len(records) == FILE_RECORDS_MAX or size >= FILE_BYTES_MAX:
                        first = self._write(address, first, records)
                        records, size = [], 0
            except UnreadableLog as error:
                unreadable = error
        if records:
            first = self._write(address, first, records)
        if is_new and not first:
            self._warn_of_lost(address)
        self.waits = STORE
        written.roll_up()
        for file in sorted(written.damaged):
            if file.path not in self._lost:
                self._mend(address, file)
        if unreadable is not None:
            raise unreadable
        return first

    def _warn_of_lost(self, address: PartitionAddress) -> None:
        """Logs that scores were deleted that no file has: nothing else tells of an empty log."""
        context, where = self._context, self._context.layout.scores_log(address)
        deadline = Deadline(context.ask_s, context.clock)
        with context.clients.reader(where, deadline) as reader:
            first, end = reader.bounds(where, deadline.left_s())
        if 0 < first == end:  # Else there are records: none is a score, or one came just now.
            _log.error(
                "%s: retention deleted the scores up to offset %d, and no file has them; set "
                "retention.ms=-1 for its topic, as `rollstream topics check` says",
                where,
                end,
            )

    def _write(self, address: PartitionAddress, first: int, records: list[LoggedScore]) -> int:
        """Returns the first offset behind the file, which is that behind the newest score: whatever
        stands there is looked at again."""
        self.waits, stop = STORE, records[-1].offset + 1
        self._written[address.partition].write(first, stop, records)
        self._newest[address.partition] = stop, ScoreOrigin.of(records[-1])
        return stop

    def _mend(self, address: PartitionAddress, file: ScoreFile) -> None:
        """Writes a damaged file anew, where the log still has all of it."""
        try:
            with closing(self._scores(address, file.first)) as scores:
                records = list(takewhile(lambda one: one.offset < file.stop, scores))
        except OffsetLost as error:
            self._lost.add(file.path)
            _log.error(
                "%s is damaged, and cannot be written anew: %s. Restore it from a copy; until "
                "then readers of these scores fail where no other file has them",
                file.path,
                error,
            )
            return
        self.waits = STORE
        self._written[address.partition].write(file.first, file.stop, records)
        _log.warning("%s was damaged, and was written anew from the log", file.path)

    def _scores(self, address: PartitionAddress, first: int) -> Generator[LoggedScore, None, None]:
        """Those of a partition's log, from an offset on."""
        context, where = self._context, self._context.layout.scores_log(address)
        self.waits = BROKER
        with closing(Follower(context.broker, {where: first}, scores=[where])) as follower:
            for one in follower.read_to_end(context.deadline(), ends_within_s=self._ends_within_s):
                assert isinstance(one.event, Scored), one
                yield LoggedScore(one.offset, one.timestamp_us, one.event)
                self.waits = BROKER

    def _require_log_of_files(
        self, address: PartitionAddress, stop: int, one: LoggedScore | None
    ) -> None:
        """Returns where the record before ``stop`` is the last one that files have: the log only
        grows, so that it then holds those before too."""
        self.waits = STORE
        known_stop, written = self._newest.get(address.partition, (-1, None))
        if known_stop != stop:
            written = self._written[address.partition].last()
        if one is not None and one.offset == stop - 1:
            found = ScoreOrigin.of(one)
            if written in (None, found):
                self._newest[address.partition] = stop, found
                return
        raise LogLost(
            f"{self._context.layout.scores_log(address)} does not hold the score at {stop - 1} "
            "that a file below scores/ under the store's root has: the topic was made anew, lost "
            "or cut back. Nothing is written: restore the log, or correct store.root, or begin a "
            "new kafka.generation"
        )
