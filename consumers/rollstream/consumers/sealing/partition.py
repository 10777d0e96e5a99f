"""One partition's life under one sealer: claim, fold, read, flush; doubt, fenced, letting go."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from rollstream.consumers.assembling import Assembler, Plan
from rollstream.consumers.assembling.decisions import offsets_of
from rollstream.consumers.sealing.backoff import Backoff
from rollstream.consumers.sealing.dead_letters import DeadLetters
from rollstream.consumers.sealing.flush import Flush, Step
from rollstream.consumers.sealing.intake import Intake, Source
from rollstream.consumers.sealing.projecting import project_missing
from rollstream.consumers.sealing.rows import FlushTarget
from rollstream.consumers.sealing.stats import PartitionStats, SealerCounters
from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import Entropy
from rollstream.schemas.reasons import SettleReason
from rollstream.store import Blobs, StoreError
from rollstream.streams.broker import Broker, GroupReader, Record, TopicPartition
from rollstream.streams.errors import (
    BrokerUnavailable,
    ClaimFailed,
    CorruptLog,
    DeliveryUnknown,
    Fenced,
)
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.topics.layout import Layout

COMMIT_EVERY_S = 1.0  # The committed offset is a hint: the seal log carries the watermark.
COMMIT_TIMEOUT_S = 5.0
_log = logging.getLogger("rollstream.sealer")


@dataclass(frozen=True, slots=True)
class SealerContext:
    """What all partitions of one environment share."""

    environment: str
    config: EnvironmentConfig
    layout: Layout
    broker: Broker
    reader: GroupReader
    blobs: Blobs
    clock: Clock
    entropy: Entropy
    owner: str
    timeout_s: float
    steps: tuple[Step, ...]
    workers: Executor
    writers: Executor
    letters: DeadLetters
    counters: SealerCounters


class Partition:
    """Seals one partition while it is assigned.

    At most one job (a claim, or the steps of one flush) runs beside the loop at a time, and only
    that job touches the owned log meanwhile. ``turn`` never waits for it.

    Attributes:
        source: of the ingest log.
        gone: revoked or lost: nothing new is begun.
        let_go: fenced, and the group says that the partition is somebody else's.
    """

    def __init__(self, context: SealerContext, number: int) -> None:
        self.source = TopicPartition(context.layout.rollouts(context.environment), number)
        self.revoked = False
        self.relinquished = False
        self._context = context
        self._log = OwnedLog(
            context.broker,
            TopicPartition(context.layout.groups(context.environment), number),
            owner=context.owner,
            make_fold=lambda: SealFold(dedupe_horizon=context.config.dedupe_horizon),
            clock=context.clock,
            entropy=context.entropy,
        )
        self._fold: SealFold | None = None
        self._intake: Intake | None = None
        self._flush: Flush | None = None
        self._plan: Plan | None = None  # Of the flush, until it is committed.
        self._flushes = 0
        self._job: Future[object] | None = None
        self._must_claim = True
        self._must_project = True
        self._must_ask = False
        self._backoff = Backoff(context.clock)
        self._hint: int | None = None
        self._committed: int | None = None  # None: the group was not asked yet.
        self._to_commit = 0
        self._commit_at_s = 0.0
        self._due_since_s: float | None = None

    @property
    def assembler(self) -> Assembler | None:
        """None while the partition is not read."""
        return None if self._intake is None else self._intake.assembler

    def busy(self) -> bool:
        """Whether a job runs beside the loop."""
        return self._job is not None and not self._job.done()

    def drained(self) -> bool:
        """Whether everything that is decided is committed."""
        undecided = self.assembler is None or self.assembler.decided_records == 0
        return undecided and self._flush is None

    def turn(self, *, draining: bool = False) -> None:
        """Goes on as far as it can without waiting for a job.

        Raises:
            PermanentBrokerError, CorruptLog: somebody must change something first.
        """
        if self._job is not None and self._job.done():
            job, self._job = self._job, None
            self._finish(job)
        if self.revoked or self.relinquished:
            return
        if self._intake is not None:
            # Whatever is waited for below: records come all the while.
            self._intake.pause_or_resume()
        if self._job is not None or self._backoff.active():
            return
        try:
            self._go_on(draining)
        except BrokerUnavailable as error:
            self._backoff.record_failure(str(self.source), error)

    def take(self, records: Iterable[Record]) -> None:
        """The next records of the source."""
        assert self._intake is not None, f"{self.source} was not begun"
        self._intake.take(records)

    def lost(self, first: int) -> None:
        """Retention deleted what lies between the position and ``first``, unread."""
        assert self._intake is not None, f"{self.source} was not begun"
        self._intake.lost(first)

    def release(self) -> None:
        """Lets go of the owned log. Only without a job; what is not committed is forgotten."""
        assert not self.busy(), f"{self.source}: a job is still running"
        self._log.release()
        self._intake = self._flush = self._plan = None

    def commit_now(self) -> None:
        """Commits the consumer group's offset, on leaving."""
        self._commit_at_s = 0.0
        self._commit_if_due()

    def stats(self) -> PartitionStats:
        """Where it stands."""
        assembler = self.assembler
        if assembler is None:
            return PartitionStats(self._context.environment, self.source.partition)
        return PartitionStats(
            self._context.environment,
            self.source.partition,
            position=assembler.position,
            watermark=assembler.watermark,
            pending=assembler.pending_records,
            pending_bytes=assembler.pending_bytes,
            pending_groups=assembler.pending_groups,
            decided=assembler.decided_records,
        )

    def _go_on(self, draining: bool) -> None:
        if self._must_ask:
            self._ask_the_group()
        if self.relinquished:
            return
        if self._must_claim or self._must_project:
            self._begin_claim()
        elif self._flush is not None:
            self._continue_flush()
        elif self._log.should_reclaim():
            self._must_claim = self._must_project = True
            self._begin_claim()
        elif self._intake is not None:
            self._intake.tick_if_due()
            self._begin_flush_if_due(self._intake.assembler, draining)
            self._commit_if_due()

    def _ask_the_group(self) -> None:
        """Overtaken: by a zombie, then we claim again, or by whoever owns the partition now."""
        if self._context.reader.still_assigned(self.source, self._context.timeout_s):
            self._must_claim = self._must_project = True
        else:
            self.relinquished = True
        self._must_ask = False

    # --- jobs beside the loop ---

    def _finish(self, job: Future[object]) -> None:
        """A job has ended, well or not."""
        self._commit_plan()
        error = job.exception()
        if error is None:
            self._backoff.reset()
            if not self.revoked:
                self._after_claim_or_steps()
        elif isinstance(error, StoreError):
            self._backoff.record_failure(f"{self.source}: the store", error)
        elif isinstance(error, Fenced):
            _log.warning("%s: %s", self.source, error)
            self._must_ask = True
        elif isinstance(error, DeliveryUnknown | ClaimFailed | BrokerUnavailable):
            self._must_claim = self._must_project = True
            self._backoff.record_failure(f"{self.source}: the seal log", error)
        else:
            raise error

    def _after_claim_or_steps(self) -> None:
        if self._log.fold is not self._fold:
            # The first claim, or somebody else owned it meanwhile: all that was pending is read
            # again, and what was about to be flushed is theirs or comes again.
            self._begin_reading(self._log.fold)
        elif self._plan is not None and self._epoch_passed():
            # Doubt. A flush is one record, so the fold knows it whole or not at all.
            if self._log.fold.settled(next(offsets_of(self._plan.decisions))):
                self._commit_plan_of(self._plan)
                self._flush = None
            else:
                self._flush = self._make_flush(self._plan)

    def _epoch_passed(self) -> bool:
        return self._flush is not None and self._flush.target.epoch != self._log.epoch

    def _begin_reading(self, fold: SealFold) -> None:
        assert self._committed is not None, "asked before the claim"
        if self._committed > fold.watermark:
            raise CorruptLog(
                f"{self.source}: the group committed {self._committed}, but the seal log settles "
                f"only up to {fold.watermark}: the seal log lost its end. Restore it, or begin a "
                "new generation"
            )
        context = self._context
        self._fold = fold
        self._flush = self._plan = self._due_since_s = None
        source = Source(
            context.environment,
            self.source,
            context.config,
            context.reader,
            context.clock,
            context.timeout_s,
            context.letters,
            context.counters,
        )
        self._intake = Intake(source, fold)
        _log.info("%s: reading from %d, epoch %d", self.source, fold.watermark, self._log.epoch)

    def _begin_claim(self) -> None:
        if self._committed is None:
            committed = self._context.reader.committed(self.source, self._context.timeout_s)
            self._committed = 0 if committed is None else committed.offset
            if committed is not None and committed.metadata.isdigit():
                self._hint = int(committed.metadata)
        self._job = self._context.workers.submit(self._claim_and_project)

    def _claim_and_project(self) -> None:
        context = self._context
        if self._must_claim:
            self._log.claim(Deadline(context.timeout_s, context.clock), hint=self._hint)
            self._must_claim = False
        project_missing(
            context.broker,
            context.blobs,
            context.environment,
            context.layout.generation,
            self._log.where,
            self._log.fold.flushes,
            Deadline(context.timeout_s, context.clock),
        )
        self._must_project = False

    # --- flushes ---

    def _begin_flush_if_due(self, assembler: Assembler, draining: bool) -> None:
        if assembler.decided_records == 0:
            self._due_since_s = None
            return
        config, now_s = self._context.config, self._context.clock.monotonic_s()
        if self._due_since_s is None:
            self._due_since_s = now_s
        full = (
            assembler.decided_records >= config.max_flush_rollouts
            or assembler.decided_bytes >= config.max_flush_bytes
        )
        if not (full or draining or now_s - self._due_since_s >= config.flush_interval_s):
            return
        plan = assembler.plan(config.max_flush_rollouts, config.max_flush_bytes)
        assert plan is not None, "something is decided"
        if _has_unreadable(plan):
            self._context.letters.deliver(Deadline(self._context.timeout_s, self._context.clock))
        self._due_since_s = now_s  # What is decided from now on may wait as long, flush or not.
        self._plan = plan
        self._flush = self._make_flush(plan)
        self._continue_flush()

    def _make_flush(self, plan: Plan) -> Flush:
        context = self._context
        self._flushes += 1
        generation, number = context.layout.generation, self.source.partition
        target = FlushTarget(
            environment=context.environment,
            generation=generation,
            partition=number,
            epoch=self._log.epoch,
            nonce=self._log.nonce,
            name=f"g{generation}-p{number}-{self._flushes}",
            compression=context.config.compression,
        )
        return Flush(
            plan,
            target,
            context.blobs,
            context.writers,
            self._log,
            context.clock,
            context.timeout_s,
            self._note_commit,
        )

    def _continue_flush(self) -> None:
        """Steps in the loop are done here; those beside it go to a worker, up to the next."""
        flush, steps = self._flush, self._context.steps
        assert flush is not None, "a flush is on its way"
        while flush.done < len(steps) and steps[flush.done].in_loop:
            steps[flush.done].run(flush)
            flush.done += 1
        if flush.done == len(steps):
            self._flush = None
        else:
            self._job = self._context.workers.submit(_run_beside, flush, steps)

    def _commit_plan(self) -> None:
        """Once confirmed, whatever comes of the steps behind it."""
        if self._flush is not None and self._flush.offset is not None and self._plan is not None:
            self._commit_plan_of(self._plan)

    def _commit_plan_of(self, plan: Plan) -> None:
        assert self._intake is not None, "what is planned was read"
        self._intake.assembler.commit(plan)
        self._plan = None
        self._context.counters.committed(plan, self._context.clock.now_us())

    # --- the consumer group's offset ---

    def _note_commit(self, watermark: int) -> None:
        self._to_commit = max(self._to_commit, watermark)
        self._commit_if_due()

    def _commit_if_due(self) -> None:
        now_s = self._context.clock.monotonic_s()
        behind = self._committed is not None and self._to_commit > self._committed
        if self.revoked or not behind or now_s < self._commit_at_s:
            return
        self._commit_at_s = now_s + COMMIT_EVERY_S
        hint = str(self._log.epoch)
        try:
            timeout_s = min(COMMIT_TIMEOUT_S, self._context.timeout_s)
            if self._context.reader.commit(self.source, self._to_commit, hint, timeout_s):
                self._committed = self._to_commit
        except BrokerUnavailable as error:
            # Nothing depends on it: the next one says the same and more.
            _log.warning("%s: the offset was not committed: %s", self.source, error)


def _run_beside(flush: Flush, steps: tuple[Step, ...]) -> None:
    while flush.done < len(steps) and not steps[flush.done].in_loop:
        steps[flush.done].run(flush)
        flush.done += 1


def _has_unreadable(plan: Plan) -> bool:
    return any(
        settlement.reason is SettleReason.UNREADABLE
        for decision in plan.decisions
        if decision.group is None
        for settlement in decision.settled
    )
