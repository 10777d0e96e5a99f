"""Writes the logs of scores as Parquet files, beside sealing: the sealer that owns a partition of
an environment does so for that partition's scores."""

from __future__ import annotations

import logging
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import closing

from rollstream.consumers.sealing.context import SealerContext
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.events import Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.scores import LoggedScore, write_scores, written_up_to
from rollstream.streams.owned.follow import Follower

EVERY_S = 60.0  # A file a minute and partition at most, where scores come without end.
FILE_RECORDS_MAX = 65_536  # Of one file: some 10 MB.
_log = logging.getLogger("rollstream.sealer")


class ScoreFiles:
    """Brings the files of an environment up to its logs, now and then.

    What a file holds is a function of the log and of its name, and it is created whole or not at
    all. So a writer that is killed at any point leaves each score once, and so do two that write
    at a time. What no file has yet is in the log, which is kept for ever.
    """

    def __init__(self, context: SealerContext) -> None:
        self._context = context
        self._due_s = context.clock.monotonic_s() + EVERY_S
        self._job: Future[None] | None = None

    def step(self, partitions: Collection[int]) -> None:
        """Begins to write what is new in these partitions, where it is time; waits for nothing."""
        if self._context.clock.monotonic_s() < self._due_s or not partitions:
            return
        if self._job is None or self._job.done():
            self._due_s = self._context.clock.monotonic_s() + EVERY_S
            self._job = self._context.retention.beside.submit(self._bring_up, sorted(partitions))

    def write(self, address: PartitionAddress) -> int:
        """Writes what is new in a partition; returns the offset up to which files cover its log.

        Raises:
            BrokerUnavailable, StoreError: the next attempt goes on where this one ended.
        """
        where = self._context.layout.scores_log(address)
        first = written_up_to(self._context.blobs, address)
        records: list[LoggedScore] = []
        with closing(Follower(self._context.broker, {where: first}, scores=[where])) as follower:
            for one in follower.read_to_end(self._context.deadline()):
                assert isinstance(one.event, Scored), one
                if len(records) == FILE_RECORDS_MAX:
                    write_scores(self._context.blobs, address, first, one.offset, records)
                    first, records = one.offset, []
                records.append(LoggedScore(one.offset, one.timestamp_us, one.event))
            stop = follower.next_offsets()[where]
        if records:
            # Behind the newest score, whatever stands there: it is looked at again.
            stop = records[-1].offset + 1
            write_scores(self._context.blobs, address, first, stop, records)
        return stop

    def _bring_up(self, partitions: Collection[int]) -> None:
        try:
            topic = self._context.layout.scores(self._context.environment)
            if topic not in self._context.broker.admin().describe([topic], self._context.timeout_s):
                return  # A deployment from before there were scores.
            for number in partitions:
                generation = self._context.layout.generation
                self.write(PartitionAddress(self._context.environment, generation, number))
        except RollstreamError as error:
            _log.warning("scores of %s are written later: %s", self._context.environment, error)
