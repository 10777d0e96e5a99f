"""One environment under one sealer: its consumer group, and the partitions that are assigned."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial

from rollstream.consumers.beside.chores import Chore, Chores, first_trouble
from rollstream.consumers.beside.context import ASK_S
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.flush import FlushStep
from rollstream.consumers.sealing.intake import Intake
from rollstream.consumers.sealing.offsets import group_offsets
from rollstream.consumers.sealing.partition import Partition
from rollstream.consumers.sealing.score_files import EVERY_S, ScoreFiles
from rollstream.consumers.sealing.state import FINAL_STATES, STOPPED_STATES, State
from rollstream.consumers.sealing.stats import PartitionStats
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import RollstreamError
from rollstream.store import StoreError
from rollstream.streams.broker import Record, TopicPartition
from rollstream.streams.errors import (
    BrokerUnavailable,
    CorruptLog,
    DamagedRecord,
    OffsetLost,
    UnreadableLog,
)
from rollstream.streams.reading import POLL_RECORDS_MAX

FEW_PARTITIONS = 32  # So many are looked at whenever the loop comes round.
LAST_POLL_S = 0.05
SCORES_S = 600.0  # So long all scores may take that are in no file.
ASK_EVERY_S = 1.0  # How often the group is asked about a partition that was relinquished.
_log = logging.getLogger("rollstream.sealer")


class EnvironmentSealer:
    """Joins one consumer group, reads, and hands its partitions their records.

    Adoption runs outside the rebalance callback: there a partition is only marked as revoked.

    Attributes:
        has_joined: whether its group assigned partitions to it, now or before.
        has_work: whether a partition had something to do when all were advanced last.
    """

    def __init__(self, context: SealerContext, steps: tuple[FlushStep, ...]) -> None:
        layout, environment = context.layout, context.environment
        self._context = context
        self._steps = steps
        self._topic = layout.rollouts(environment)
        self._partitions: dict[TopicPartition, Partition] = {}
        self._ask_at_s: dict[TopicPartition, float] = {}
        self._scores = ScoreFiles(context)
        self._last_scores: Future[float] | None = None
        beside = context.threads.beside
        scores = Chore("scores", self._write_scores, beside, SCORES_S, again_s=EVERY_S)
        self._chores = Chores(environment, context.clock, [scores], raises=True)
        poll = None if context.announced is None else context.announced.poll
        policies = Chore("policies", lambda _: poll, context.threads.askers, ASK_S)
        self._announced = Chores(environment, context.clock, [policies], raises=True)
        self._scored: frozenset[int] = frozenset()  # Partitions.
        self.has_joined = self.has_work = False
        self._reader = context.broker.group_reader(
            layout.sealer_group(environment), [self._topic], on_revoked=self._on_revoked
        )

    def step(self, timeout_s: float) -> int:
        """Reads once, then advances every partition; returns how many records were read."""
        records: list[Record] = []
        by_number: defaultdict[int, list[Record]] = defaultdict(list)
        try:
            try:
                records = self._reader.poll(POLL_RECORDS_MAX, timeout_s)
            except OffsetLost as error:
                self._settle_loss(error)
            except DamagedRecord as error:
                self._intake_of(error.where[1]).damaged(error)
        except BrokerUnavailable as error:
            _log.warning("%s: %s; the next step asks again", self._context.environment, error)
        for record in records:
            by_number[record.partition].append(record)
        # Whatever was read is taken, or its offsets would count as ones without a record.
        broken: RollstreamError | None = None
        for number, listed in by_number.items():
            # The reader returns no records of a partition that was not begun, or was revoked.
            intake = self._intake_of(number)
            try:
                intake.take(listed)
            except UnreadableLog as error:
                self._partitions[TopicPartition(self._topic, number)].put_aside(error)
            except RollstreamError as error:
                broken = broken or error
        if broken is not None:
            raise broken
        self._adopt()
        self._announced.advance()
        self.advance()
        adopted = frozenset(self._adopted())
        new, self._scored = adopted - self._scored, adopted
        if new:
            self._chores.hurry()
        self._chores.advance()
        return len(records)

    def advance(self, *, draining: bool = False) -> None:
        """Advances every partition; reads nothing."""
        self._context.reports.poll()
        now_s, self.has_work = self._now_s(), False
        everyone = draining or len(self._partitions) <= FEW_PARTITIONS
        for where, partition in list(self._partitions.items()):
            has_work = partition.has_work()
            self.has_work |= has_work
            if not (everyone or has_work or now_s >= partition.look_at_s):
                continue
            partition.advance(draining=draining)
            if partition.state is State.ASIDE:
                self._reader.pause(where)
                if not partition.busy():
                    partition.release()
            if partition.state is State.TRYING_AGAIN:
                self._scores.aside.pop(where.partition, None)
            if partition.state is State.RELINQUISHED:
                self._reader.pause(where)
                self._ask_at_s[where] = self._now_s() + ASK_EVERY_S
            if partition.state in FINAL_STATES and not partition.busy():
                partition.release()
                del self._partitions[where]

    def seal_pending(self) -> None:
        """Seals every pending group that has enough members."""
        for partition in self._partitions.values():
            if partition.intake is not None:
                partition.intake.assembler.flush()

    def finish_scores(self, deadline: Deadline) -> None:
        """Writes the scores that are in no file yet, or leaves them to a successor at the deadline,
        as where the store hangs; raises as ``step``."""
        if not self._chores.finish(deadline.left_s()):
            return
        bring_up, workers = self._scores.bring_up, self._context.threads.workers
        written = workers.submit(bring_up, self._adopted(), deadline)
        self._last_scores = written
        if not wait([written], deadline.left_s()).not_done:
            try:
                written.result()
            except (BrokerUnavailable, StoreError) as error:
                _log.warning("late scores are left to the next sealer: %s", error)

    def busy(self) -> bool:
        """Whether any job runs beside the loop."""
        return any(partition.busy() for partition in self._partitions.values())

    def hangs(self, seconds: float) -> str:
        """Which call of the store has not ended for so long, in words; empty: none."""
        return next(filter(None, (one.hangs(seconds) for one in self._partitions.values())), "")

    def unended(self) -> Iterator[str]:
        """Yields what runs beside the loop now, in words."""
        for partition in self._partitions.values():
            yield from partition.unended()
        if self._last_scores is not None and self._last_scores.running():
            written = f"the last write of scores of {self._context.environment}"
            yield f"{written}: {self._scores.waits}"
        if unended := self._chores.unended():
            yield unended

    def drained(self) -> bool:
        """Whether everything that is decided is committed."""
        return all(partition.drained() for partition in self._partitions.values())

    def commit_last(self, deadline: Deadline) -> None:
        """Commits offsets, on leaving, as far as the broker answers by the deadline; what is read
        meanwhile stays unread."""
        sent: list[Future[bool] | None] = []
        for partition in list(self._partitions.values()):
            try:
                sent.append(partition.commit_last())
            except RollstreamError as error:
                _log.warning("%s: the offset was not committed: %s", partition.source, error)
        commits = [commit for commit in sent if commit is not None]
        while not (deadline.passed() or all(commit.done() for commit in commits)):
            try:
                self._reader.poll(1, deadline.slice_s(LAST_POLL_S))
            except RollstreamError as error:  # Each poll may say so until the answers are there.
                deadline.log_waiting(partial(str, error))
                deadline.wait(LAST_POLL_S)

    def leave(self) -> None:
        """Leaves the group. No question to the broker may be running; a job that is does so for
        ever."""
        for partition in self._partitions.values():
            if not partition.busy():
                partition.release()
        self._partitions.clear()
        self._reader.close()
        self._context.reports.close()
        if self._context.announced is not None:
            self._context.announced.close()

    def stats(self) -> list[PartitionStats]:
        """One a partition, by number."""
        every = [partition.stats() for _, partition in sorted(self._partitions.items())]
        return [
            replace(one, scores_aside=self._scores.aside.get(one.partition, "")) for one in every
        ]

    def _intake_of(self, number: int) -> Intake:
        """Of a partition that is read."""
        intake = self._partitions[TopicPartition(self._topic, number)].intake
        assert intake is not None, f"{self._topic}[{number}] was not begun"
        return intake

    def _adopted(self) -> list[int]:
        """Numbers of the partitions that are owned, and were claimed."""
        return [
            one.address.partition
            for one in self._partitions.values()
            if one.state not in STOPPED_STATES and one.intake is not None
        ]

    def _write_scores(self, deadline: Deadline) -> Callable[[], float] | None:
        if not self._scored:
            return None
        return partial(self._scores.bring_up, sorted(self._adopted()), deadline)

    def _adopt(self) -> None:
        now_s = self._now_s()
        new = [
            where
            for where in self._reader.assigned()
            if where not in self._partitions and now_s >= self._ask_at_s.get(where, now_s)
        ]
        if not new:
            return
        self.has_joined = True
        committed = group_offsets(self._context, new)
        for where in sorted(new):
            # One that was relinquished, and that the group did not revoke, is doubted.
            doubted = self._ask_at_s.pop(where, None) is not None
            self._partitions[where] = Partition(
                self._context,
                *(self._steps, self._reader, where.partition, committed),
                doubted=doubted,
                beside=partial(self._trouble_beside, where.partition),
            )

    def _trouble_beside(self, number: int) -> str:
        """What fails that is done for all partitions, or for the scores of this one, in words."""
        aside, context = self._scores.aside.get(number), self._context
        if aside:
            return f"late scores of it are written to no file any more: {aside}"
        scratch = [context.scratch.trouble] if context.memory.is_exceeded else []
        return first_trouble(
            *scratch, self._chores.trouble, self._announced.trouble, context.threads.abandoned
        )

    def _on_revoked(self, where: TopicPartition) -> None:
        self._ask_at_s.pop(where, None)
        if where in self._partitions:
            self._partitions[where].revoke()

    def _settle_loss(self, error: OffsetLost) -> None:
        """Retention was faster than the sealer: settles what it took. Where it was not retention,
        the partition is put aside."""
        # The reader raises for no revoked partition, so it is one of ours.
        partition = next(one for at, one in self._partitions.items() if str(at) == error.where)
        if partition.intake is None or partition.state in STOPPED_STATES:
            return  # It is read no more from the next step on.
        if partition.intake.assembler.position < error.first:
            partition.intake.lost(error.first)
            return
        # Also where the log was written to again and holds that offset by now.
        partition.put_aside(
            CorruptLog(
                f"{error}, and retention did not take it: the log was cut back, so its offsets may "
                "name other records than those that were sealed. Restore it, or begin a new "
                "generation"
            )
        )

    def _now_s(self) -> float:
        return self._context.clock.monotonic_s()
