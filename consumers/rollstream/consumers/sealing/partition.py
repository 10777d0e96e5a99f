"""One partition's life under one sealer: claim, read, flush, and what happens when it is fenced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from rollstream.consumers.assembling import Plan
from rollstream.consumers.beside.backoff import Backoff
from rollstream.consumers.beside.chores import Chores, first_trouble
from rollstream.consumers.beside.lasting import Lasting
from rollstream.consumers.sealing.cadence import FlushCadence
from rollstream.consumers.sealing.claiming import Claims
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.flush import Flush, FlushStep
from rollstream.consumers.sealing.flush_requests import FlushRequests
from rollstream.consumers.sealing.intake import Intake
from rollstream.consumers.sealing.offsets import CommittedOffset, GroupOffsets
from rollstream.consumers.sealing.owned_chores import owned_chores
from rollstream.consumers.sealing.retrying import RetryWatch
from rollstream.consumers.sealing.rows import FlushTarget
from rollstream.consumers.sealing.state import CLAIM_STATES, FINAL_STATES, STOPPED_STATES, State
from rollstream.consumers.sealing.stats import PartitionStats
from rollstream.runtime.metrics import catalogue
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.reasons import SettleReason
from rollstream.store import RollUps, StoreError
from rollstream.store.layout import flush_name
from rollstream.streams.broker import GroupReader
from rollstream.streams.errors import (
    BrokerError,
    BrokerUnavailable,
    ClaimFailed,
    CorruptLog,
    DeliveryUnknown,
    Fenced,
    OffsetLost,
    UnreadableLog,
)
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.troubles import BESIDE, PUT_ASIDE

STEP_LASTS_S = 8.0  # A flush takes less than a second.
QUEUED_S = 0.5  # A look that no thread took by then waits for silent leaders.
CLAIM_LASTS_S = 60.0  # A claim may read for long, or wait for others.
IDLE_EVERY_S = 1.0  # How often a partition without work is looked at,
PENDING_EVERY_S = 0.25  # or one where a time-out may be due.
CHECK_EVERY_S = 10.0  # How often the ingest log is asked whether it was cut back.
_log = logging.getLogger("rollstream.sealer")


class Partition:
    """Seals one partition while it is assigned.

    At most one job (a claim, missing manifests, the steps of one flush, or a log step of a chore)
    runs beside the loop at a time, and only that job touches the owned log meanwhile. ``advance``
    never waits for it. While the last steps of a flush run, those of the next one run too that come
    before its event: its files are written.

    Args:
        committed: by the group, of all that were assigned together.
        doubted: the group is asked first whether the partition is this sealer's.
        beside: returns in words what fails that is done for several partitions; empty: nothing.

    Attributes:
        source: the partition of the ingest log.
        intake: what reads it; None before the first claim.
        aside: why it was put aside; empty: it was not.
        look_at_s: when it is to be advanced again, though it has no work.
    """

    def __init__(
        self,
        context: SealerContext,
        steps: tuple[FlushStep, ...],
        reader: GroupReader,
        number: int,
        committed: GroupOffsets,
        *,
        doubted: bool,
        beside: Callable[[], str],
    ) -> None:
        layout = context.layout
        self.address = PartitionAddress(context.environment, layout.generation, number)
        self.source = layout.rollouts_log(self.address)
        self.state = State.ASKING_GROUP if doubted else State.CLAIMING
        self.intake: Intake | None = None
        self.aside = ""
        self.look_at_s = 0.0
        self._context = context
        self._steps = steps
        self._reader = reader
        self._beside = beside
        self._log = OwnedLog(
            context.broker,
            layout.groups_log(self.address),
            owner=context.owner,
            make_fold=lambda: SealFold(dedupe_horizon=context.config.dedupe_horizon),
            entropy=context.entropy,
            root_id=context.root_id,
            clients=context.clients,
        )
        self._fold: SealFold | None = None  # What the intake began from.
        self._flush: Flush | None = None
        self._next: tuple[Flush, Future[None]] | None = None  # With the job that writes its files.
        self._flushes = 0
        self._newest_flush = -1  # In the log, before the one on its way.
        self._job: Future[Any] | None = None
        self._backoff = Backoff(context.clock)
        self._offset = CommittedOffset(
            context, reader, self.source, committed, lambda: self._log.epoch
        )
        self._lasting = Lasting(context.clock)
        self._claims = Claims(context, self.address, self._log)
        self._check_at_s = 0.0
        self._cadence = FlushCadence(context.config)
        self._rollups = RollUps(context.blobs, self.address)
        self._requests = FlushRequests(context, self.address, self._log)
        self._retry = RetryWatch(context, self._log.where)
        self._chores: tuple[Chores, ...] = ()  # Since the first claim; those that report first.

    def busy(self) -> bool:
        """Whether a job runs beside the loop."""
        jobs = self._job, self._next and self._next[1]
        return any(job is not None and not job.done() for job in jobs)

    def has_work(self) -> bool:
        """Whether anything is decided or under way. It has no work while a claim runs, while
        nothing that is pending is due, and once it was put aside."""
        if self.intake is None:
            return self.state is not State.ASIDE if self._job is None else self._job.done()
        if self._job is not None or self._flush is not None or self.state is not State.READING:
            return True
        decided = self.intake.assembler.decided
        if decided.entries > decided.living or self._requests.waits:
            return True
        return self.intake.asks or self.intake.waits_for_room

    def drained(self) -> bool:
        """Whether everything that is decided is committed."""
        undecided = self.intake is None or self.intake.assembler.decided.entries == 0
        return undecided and self._flush is None

    def advance(self, *, draining: bool = False) -> None:
        """Does what can be done without waiting for a job.

        Raises:
            PermanentBrokerError: somebody must change something first.
        """
        if self.state not in FINAL_STATES:
            flush, job = self._next or (None, None)
            if self._job is not None:
                flush, job = self._flush, self._job
            went_on = 0 if flush is None else flush.went_on
            self._lasting.look(job, went_on + self._claims.went_on)
            self._offset.tell(self._trouble)
        try:
            self._advance(draining)
        except BrokerUnavailable as error:
            self._backoff.record_failure(str(self.source), error)
        except (UnreadableLog, OffsetLost) as error:
            self.put_aside(error)
        pends = self.intake is not None and self.intake.assembler.pending.entries > 0
        every_s = PENDING_EVERY_S if pends else IDLE_EVERY_S
        self.look_at_s = self._context.clock.monotonic_s() + every_s

    def put_aside(self, error: Exception) -> None:
        """A log of this partition cannot be read on: all others are sealed."""
        if self.state not in STOPPED_STATES:
            self.aside = str(error)
            self._enter(State.ASIDE)
            _log.error(
                "%s is put aside, and nothing is written for it until `rollstream seal --retry` or "
                "another start of a sealer; all other partitions are sealed: %s",
                *(self.source, error),
            )

    def revoke(self) -> None:
        """The group took the partition away."""
        self._enter(State.REVOKED)

    def release(self) -> None:
        """Releases the owned log. Only without a job; what is not committed is forgotten."""
        assert not self.busy(), f"{self.source}: a job is still running"
        self._abandon_chores()
        self._log.release()
        self._context.memory.leave(self.source)
        self.intake = self._flush = self._next = None

    def commit_last(self) -> Future[bool] | None:
        """Commits the group's offset, on leaving; what is to be waited for, if anything."""
        return None if self.state is State.REVOKED else self._offset.leave()

    def stats(self) -> PartitionStats:
        """Position, watermark, and what is pending or decided. Any thread may call it."""
        named, intake = (self.address.environment, self.address.partition), self.intake
        if intake is None:
            return PartitionStats(*named, aside=self.aside, trouble=self._offset.told)
        assembler, log_us = intake.assembler, intake.log_clock.now_us()
        return PartitionStats(
            *named,
            position=assembler.position,
            watermark=assembler.decided.watermark,
            pending=assembler.pending.entries,
            pending_bytes=assembler.held.size,
            pending_groups=len(assembler.pending.by_key),
            decided=assembler.decided.entries,
            backlog_s=max(0, log_us - (assembler.pending.oldest_ts() or log_us)) / 1e6,
            waits_for_room=intake.waits_for_room,
            foreign=self._log.foreign,
            aside=self.aside,
            trouble=self._offset.told,
        )

    # --- states ---

    def _advance(self, draining: bool) -> None:
        if self._job is not None and self._job.done():
            job, self._job = self._job, None
            self._finish(job)
        if self.state is State.ASIDE and self._job is None and not draining:
            self._try_again_if_asked()
        if self.state in STOPPED_STATES:
            return
        jumped = self.intake is not None and self.intake.time_jumped(self._log.confirmed_us)
        if self.intake is not None:
            # Before anything that waits: records come all the while.
            self.intake.pause_or_resume()
            self._cadence.waiting(*self._waiting_entries(), self._context.clock.monotonic_s())
            self._drop_queued_look(self.intake.assembler.decided.entries)
        if self._job is not None or self._backoff.active():
            self._begin_next_if_due(draining)
            return
        match self.state:
            case State.ASKING_GROUP if (ours := self._offset.is_ours()) is not None:
                self._enter(State.CLAIMING if ours else State.RELINQUISHED)
            case State.CLAIMING if self._offset.is_known() and not self.busy():
                threads, failed = self._context.threads, self._backoff.error is not None
                claimers = threads.lookers if failed else threads.claimers
                self._job = claimers.submit(self._claims.claim, self._offset.hint)
            case State.PROJECTING:
                claimers = self._context.threads.claimers
                self._job = claimers.submit(self._claims.complete_manifests)
            case State.READING if jumped or self._log.should_reclaim():
                # The group may be silent, and is not asked: an owner that is fenced asks it.
                self._enter(State.CLAIMING)
            case State.READING:
                assert self.intake is not None, "reading"
                self.intake.settle_markers()
                self.intake.tick_if_due()
                if not draining:
                    self._check_end_if_due()
                    self._job = self._requests.advance(self.intake)
                    begun = (chores.advance() for chores in self._chores)
                    self._job = self._job or next(filter(None, begun), None)
                if self._job is None:
                    self._begin_flush_if_due(draining)
                self._offset.commit_if_due()
        if self.state is State.FLUSHING and self._job is None:
            self._advance_flush()
            self._begin_next_if_due(draining)

    def _advance_flush(self) -> None:
        """Steps in the loop run here, and those beside it, up to the next, in a worker."""
        assert self._flush is not None, "a flush is on its way"
        self._flush.run_steps(in_loop=True)
        if self._flush.appending is not None:
            self._job = self._flush.appending
        elif self._flush.finished():
            took_s = self._context.clock.monotonic_s() - self._flush.begun_s
            self._context.observe(catalogue.SEALER_FLUSH, took_s, self.address.environment)
            self._flush = None
            self._enter(State.READING)
        else:
            self._job = self._context.threads.workers.submit(self._flush.run_steps, in_loop=False)

    def _try_again_if_asked(self) -> None:
        if self._retry.asked:
            _log.info("%s is tried again, as somebody asked", self.source)
            self._enter(State.TRYING_AGAIN)
        elif self._retry.is_due():
            self._job = self._context.threads.lookers.submit(self._retry.look)

    def _enter(self, state: State) -> None:
        aside = self.state is State.ASIDE and state in FINAL_STATES
        if aside or self.state not in STOPPED_STATES:
            self.state = state

    def _finish(self, job: Future[Any]) -> None:
        """Enters the state that follows on a job, whether it succeeded or failed."""
        flush, error = self._flush, job.exception()
        if flush is not None:
            flush.take_answer()
            if flush.offset is not None and not flush.committed:
                self._commit(flush)  # Even where a later step failed.
        if error is None:
            self._backoff.reset()
            if self.state is State.CLAIMING:
                self._enter(State.PROJECTING)
            elif self.state is State.PROJECTING:
                self._own()
        elif isinstance(error, StoreError):
            self._backoff.record_failure(f"{self.source}: the store", error)
        elif isinstance(error, Fenced):
            _log.warning("%s: %s", self.source, error)
            self._enter(State.ASKING_GROUP)
        elif isinstance(error, DeliveryUnknown | ClaimFailed | BrokerUnavailable):
            self._enter(State.CLAIMING)
            self._backoff.record_failure(f"{self.source}: the seal log", error)
        else:
            raise error

    def _own(self) -> None:
        """The log is claimed and its manifests are complete: goes on, or begins anew."""
        self._next = None  # It would name the claim before. What it settles is planned again.
        if self._log.fold is not self._fold:
            # The first claim, or somebody else owned it meanwhile: all that was pending is read
            # again, and what was about to be flushed is theirs or comes again.
            self._begin_reading(self._log.fold)
        elif self._flush is not None and not self._flush.committed:
            # In doubt. A flush is one record, so the fold has all of it or nothing.
            plan = self._flush.plan
            if self._log.fold.newest_flush != self._newest_flush:
                self._commit(self._flush)
                self._flush = None
                # Its manifest was written as a missing one.
                self._rollups = RollUps(self._context.blobs, self.address)
            else:
                self._flush = self._make_flush(plan)
        self._enter(State.READING if self._flush is None else State.FLUSHING)

    # --- claims ---

    def _begin_reading(self, fold: SealFold) -> None:
        committed = self._offset.offset
        if committed > fold.watermark:
            raise CorruptLog(
                f"{self.source}: the group committed {committed}, but the seal log settles "
                f"only up to {fold.watermark}: the seal log lost its end. Restore it, or begin a "
                "new generation"
            )
        self._fold = fold
        self._flush = None
        self._cadence = FlushCadence(self._context.config)
        self._rollups = RollUps(self._context.blobs, self.address)
        clock = self._claims.log_clock
        self.intake = Intake(self._context, self._reader, self.source, self._log, clock)
        self._abandon_chores()
        self._requests = FlushRequests(self._context, self.address, self._log)
        self._chores = owned_chores(
            self._context, self.address, self._log, self.intake, self._requests
        )
        self._check_at_s = self._context.clock.monotonic_s() + CHECK_EVERY_S
        _log.info("%s: reading from %d, epoch %d", self.source, fold.watermark, self._log.epoch)

    def _abandon_chores(self) -> None:
        self._requests.abandon()
        for chores in self._chores:
            if turn := chores.abandon():  # It keeps the thread of all such jobs.
                self._context.threads.abandon(turn, chores.hanging)

    def _check_end_if_due(self) -> None:
        """Of an idle partition nothing else tells: a client that reads on beyond the end of a log
        that was restored from an older copy may wait there for ever, and say nothing."""
        now_s = self._context.clock.monotonic_s()
        assert self.intake is not None, "reading"
        if now_s < self._check_at_s or self.intake.assembler.decided.entries:
            return  # What is read moves on.
        if self.intake.check_end():
            self._check_at_s = now_s + CHECK_EVERY_S

    def _drop_queued_look(self, decided: int) -> None:
        """A look at the log that waits behind silent leaders holds up no flush."""
        waits = self.state is State.READING and self._lasting.is_long(QUEUED_S)
        if decided and waits and self._job is not None and self._job.cancel():
            self._job = None

    # --- flushes ---

    def _waiting_entries(self) -> tuple[int, int]:
        """How many entries are decided and in no flush; and of these say only that a producer
        lives."""
        assert self.intake is not None, "what is decided was read"
        decided = self.intake.assembler.decided
        flush = self._flush if self._next is None else self._next[0]
        if flush is None or flush.committed:
            return decided.entries, decided.living
        return decided.entries - flush.plan.entries, decided.living - flush.plan.alive

    def _begin_flush_if_due(self, draining: bool) -> None:
        if self._next is not None:
            (self._flush, self._job), self._next = self._next, None
        else:
            self._flush = self._due_flush(draining)
        if self._flush is not None:
            self._enter(State.FLUSHING)

    def _begin_next_if_due(self, draining: bool) -> None:
        """Once the event of a flush is confirmed, the files of the next one may be written."""
        flush = self._flush
        if flush is None or not flush.committed or self._next is not None:
            return
        if self._backoff.active() or self._log.should_reclaim():
            return
        if (due := self._due_flush(draining)) is not None:
            job = self._context.threads.workers.submit(due.run_steps, in_loop=False)
            self._next = due, job

    def _due_flush(self, draining: bool) -> Flush | None:
        """The next flush, if it is due."""
        assert self.intake is not None, "what is decided was read"
        assembler = self.intake.assembler
        context, decided = self._context, assembler.decided
        announced, now_s = context.announced, context.clock.monotonic_s()
        if decided.entries == 0 or not (draining or announced is None or announced.loaded):
            return None
        self._cadence.waiting(decided.entries, decided.living, now_s)
        due = self._cadence.due(decided.entries, decided.living, decided.size, now_s)
        if not (draining or due or self._requests.waits_for_flush):
            return None
        entries_max, size_max = context.config.max_flush_rollouts, context.config.max_flush_bytes
        fresh = None if announced is None else announced.freshness(assembler.now_us)
        settled_if_old = None if fresh is None else fresh.settled
        plan = decided.plan(entries_max, size_max, assembler.now_us, settled_if_old)
        assert plan is not None, "something is decided"
        if fresh is not None:
            plan = plan._replace(newest=fresh.newest)
        settled = (settlement for decision in plan.decisions for settlement in decision.settled)
        unreadable = any(settlement.reason is SettleReason.UNREADABLE for settlement in settled)
        if unreadable and not context.letters.are_delivered():
            return None
        left = decided.entries - plan.entries, decided.living - plan.alive
        self._cadence.waiting(*left, now_s)  # Mostly none: it may end at once.
        return self._make_flush(plan)

    def _make_flush(self, plan: Plan) -> Flush:
        self._flushes += 1
        self._newest_flush = self._log.fold.newest_flush
        target = FlushTarget(
            *(self.address, self._log.epoch, self._log.nonce),
            name=flush_name(self.address, self._flushes),
            compression=self._context.config.compression,
            root_id=self._context.root_id,
        )
        shared = self._steps, self._context, self._log, self._offset.move, self._rollups
        return Flush(plan, target, *shared, begun_s=self._context.clock.monotonic_s())

    def _commit(self, flush: Flush) -> None:
        """The flush is confirmed: its plan is committed in the assembler."""
        assert self.intake is not None, "what is planned was read"
        self.intake.assembler.commit(flush.plan)
        flush.committed = True
        self._chores[0].hurry()  # Groups that ended with it are open no more.
        now_us = self._context.clock.now_us()
        self._context.counters.count_flush(flush.plan, flush.event, now_us)

    # --- what `status` reads ---

    def _trouble(self) -> str:
        if self.aside:
            return f"{PUT_ASIDE}{self.aside}"
        if isinstance(self._backoff.error, BrokerError):
            return self._offset.told  # `status` finds that by itself.
        if self._backoff.is_trouble():
            return f"{self._backoff.why} (since {self._backoff.since})"
        # A claim may read for long, but for its calls of the store.
        is_quick = self.state is not State.CLAIMING or bool(self._store_step())
        is_quick = is_quick and self._lasting.runs
        if self.busy() and self._lasting.is_long(STEP_LASTS_S if is_quick else CLAIM_LASTS_S):
            return self._lasting.told(self._store_step(), claims=self.state in CLAIM_STATES)
        if self.intake is None:
            return ""
        tell = (chores.trouble for chores in self._chores)
        beside = first_trouble(*tell, self._beside, self.intake.wrong_clock)
        return self.intake.trouble() or (beside and f"{BESIDE}{beside}")

    def unended(self) -> Iterator[str]:
        """Yields what of it runs beside the loop now, in words."""
        if self.busy():
            claims = self.state in CLAIM_STATES
            yield f"{self.source}: {self._lasting.told(self._store_step(), claims=claims)}"
        yield from filter(None, (chores.unended() for chores in self._chores))

    def hangs(self, seconds: float) -> str:
        """Which call of the store has not ended for so long, in words; empty: none."""
        is_long = self._lasting.runs and self._lasting.is_long(seconds)
        step = self._store_step() if is_long else ""
        return f"{self.source}: {self._lasting.told(step)}" if step else ""

    def _store_step(self) -> str:
        """The name of the step that runs beside the loop and calls the store; empty: none does."""
        if self._next is not None and self._job is None:
            return self._next[0].step
        if self.state is State.FLUSHING and self._flush is not None:
            return "" if self._flush.appending is not None else self._flush.step
        return self._claims.store_step if self.state in CLAIM_STATES else ""
