"""The life of a partition's files under the owner of its seal log: retired by request and by
schedule, and deleted once no sampler can need them.

It is a sequence of named steps. Between any two of them the process may be killed: what the log
says was retired is projected and deleted by whoever owns the partition next, and a request that
was not answered is answered then. Steps that need the log run as a job of the partition, all others
beside it, so that flushes go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from rollstream.consumers.retention.decisions import DecisionLogs, NoSampler, UnknownSampler
from rollstream.consumers.retention.files import deletable, delete_retired, project_retired
from rollstream.consumers.retention.flushes import unretired_flushes
from rollstream.consumers.retention.plan import (
    HeldFlush,
    RetentionPlan,
    describe_held,
    parts,
    plan_retention,
)
from rollstream.consumers.retention.unneeded import (
    STAGED_AGE_S,
    Unneeded,
    orphans,
    unnamed_by_log,
    unneeded_batches,
    unneeded_manifests,
)
from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.events import (
    FLUSH_KINDS,
    Requested,
    RequestKind,
    Retired,
    RetiredFile,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs, StoreError
from rollstream.store.retired import RetiredFiles, retired_offsets
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.appends import Appends
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.topics.layout import Layout

BY_SCHEDULE = -1  # Instead of a request's offset.
ASK_EVERY_S = 3.0  # An owner that appends nothing asks so often for requests in its log.
SCHEDULE_EVERY_S = 300.0
DELETE_EVERY_S = 10.0  # While retired files are not deleted.
ORPHANS_EVERY_S = 3_600.0  # By schedule: all row files of the environment are listed.
TRY_AGAIN_S = 10.0  # After the store or the broker failed.
READ_TIMEOUT_S = 600.0  # For all decisions.
PLAN_S = 60.0  # For the manifests of old files; the next plan goes on behind those that it opened.
PLANS_SHARE = 10  # The schedule waits so many times as long as its plan took.
DETAIL_CHARS_MAX = 1_000
US_PER_HOUR = 3_600_000_000
_log = logging.getLogger("rollstream.sealer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionServices:
    """What the retention of one environment works with.

    Attributes:
        decisions: of its samplers.
        beside: one thread for all partitions, since ``decisions`` is not shared.
        config: of the environment.
    """

    broker: Broker
    layout: Layout
    blobs: Blobs
    clock: Clock
    timeout_s: float
    decisions: DecisionLogs
    beside: Executor
    config: EnvironmentConfig

    def deadline(self) -> Deadline:
        """A new deadline, ``timeout_s`` from now."""
        return Deadline(self.timeout_s, self.clock)

    def reading_deadline(self) -> Deadline:
        """One for whole logs."""
        return Deadline(READ_TIMEOUT_S, self.clock)


class Step(NamedTuple):
    """One step.

    Attributes:
        with_log: whether it needs the owned log, so that no flush may run meanwhile.
        appends: whether it appends, and returns the future of that.
    """

    name: str
    run: Callable[[], Any]
    with_log: bool = False
    appends: bool = False


Steps = Generator[Step, Any, None]


class Retention:
    """Retires and deletes the files of one partition. Only its loop calls it.

    Args:
        workers: run the steps that need the log.
        appends: what is on its way into the log.
    """

    def __init__(
        self,
        services: RetentionServices,
        address: PartitionAddress,
        log: OwnedLog[SealFold],
        workers: Executor,
        appends: Appends,
    ) -> None:
        self._appends = appends
        self._services = services
        self._address = address
        self._log = log
        self._workers = workers
        self._abandoned = threading.Event()
        self._warned = ""
        self._held: dict[int, HeldFlush] = {}  # By offset; only the thread of the plans uses it.
        self._known: set[str] = set()  # Row files that are no orphans; the same thread uses it.
        self._schedule_at_s = self._now_s() + SCHEDULE_EVERY_S
        self._orphans_at_s = self._now_s() + ORPHANS_EVERY_S
        self.begin()

    def begin(self) -> None:
        """The log was claimed, and somebody else may have owned it before. What was on its way is
        forgotten: the log has it or not."""
        self.abandon()
        now_s = self._services.clock.monotonic_s()
        self._abandoned = threading.Event()
        self._steps: Steps | None = None
        self._future: Future[Any] | None = None
        self._complete = False  # Whether what the log says was retired is projected.
        self._pending = False  # Whether retired files may be left to be deleted.
        self._again_at_s = now_s
        self._delete_at_s = now_s
        self._ask_at_s = now_s + ASK_EVERY_S
        self._next_offset = -1

    def abandon(self) -> None:
        """A step that runs beside the loop ends soon, and nobody waits for it."""
        self._abandoned.set()

    def advance(self) -> Future[Any] | None:
        """Goes on without waiting; returns a step that runs now and needs the log, for the
        partition to wait for."""
        if self._future is not None:
            if not self._future.done():
                return None
            finished, self._future = self._future, None
            step = self._go_on(finished)
        else:
            self._steps = self._due()
            step = None if self._steps is None else self._go_on(None)
        if step is None:
            return None
        if step.appends:
            self._future = step.run()
        else:
            workers = self._workers if step.with_log else self._services.beside
            self._future = workers.submit(step.run)
        return self._future if step.with_log else None

    def _go_on(self, finished: Future[Any] | None) -> Step | None:
        """The next step, given how the one before ended."""
        assert self._steps is not None, "some steps were begun"
        try:
            if finished is None:
                return next(self._steps)
            error = finished.exception()
            return (
                self._steps.send(finished.result()) if error is None else self._steps.throw(error)
            )
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001, sealing goes on, whatever became of old files
            self._warn(f"retired files: {_text(error)}; it is tried again", error)
            self._complete = False
            self._again_at_s = self._now_s() + TRY_AGAIN_S
        self._steps = None
        return None

    def _due(self) -> Steps | None:
        now_s = self._now_s()
        if now_s < self._again_at_s:
            return None
        if not self._complete:
            return self._complete_predecessor()
        fold = self._log.fold
        for offset, (_, request) in fold.requests.items():
            if request.kind not in FLUSH_KINDS:  # The partition carries those out.
                return self._answer(offset, request)
        hours = self._services.config.retain_after_hours
        if hours is not None and now_s >= self._schedule_at_s:
            self._schedule_at_s = now_s + SCHEDULE_EVERY_S
            return self._retire(BY_SCHEDULE, round(hours * US_PER_HOUR))
        if self._pending and now_s >= self._delete_at_s:
            self._delete_at_s = now_s + DELETE_EVERY_S
            return self._delete()
        if self._next_offset != self._log.next_offset:
            # An append folds the requests before it.
            self._next_offset, self._ask_at_s = self._log.next_offset, now_s + ASK_EVERY_S
        elif now_s >= self._ask_at_s:
            self._ask_at_s = now_s + ASK_EVERY_S
            return self._look_for_requests()
        return None

    # --- sequences of steps ---

    def _complete_predecessor(self) -> Steps:
        """A predecessor may have been killed between its event and the rest."""
        self._pending = yield Step(
            "project_missing", partial(self._project, self._log.fold.retired)
        )
        self._complete = True

    def _look_for_requests(self) -> Steps:
        yield Step("fold_requests", self._fold_requests, with_log=True)

    def _answer(self, offset: int, request: Requested) -> Steps:
        if request.kind == RequestKind.RETAIN and request.older_than_us >= 0:
            yield from self._retire(offset, request.older_than_us)
        elif request.kind == RequestKind.RETRY:
            yield self._append_step(offset, ())  # It is read: whoever owns it answers.
        else:
            detail = f"this version of Rollstream does nothing for {request}"
            yield self._append_step(offset, (), detail=detail, refused=True)

    def _retire(self, request: int, older_than_us: int) -> Steps:
        """A request until all old files were looked at, the schedule one plan at a time. A request
        is answered once readers leave out what was retired."""
        asked = request != BY_SCHEDULE
        detail, retired = "", 0
        finished = False
        while not finished:
            try:
                plan = yield Step("plan", partial(self._plan, older_than_us))
            except Exception as error:  # noqa: BLE001, who asked is told
                more = "more " if retired else ""
                self._warn(f"nothing {more}is retired: {_text(error)}", error)
                plan, detail = RetentionPlan(), _text(error)
            finished = plan.finished or not asked
            for files in parts(plan.files):
                offset = yield self._append_step(request, files, more=asked)
                self._pending = yield Step("project_retired", partial(self._project, offset))
                self._delete_at_s = self._now_s()
            if plan.files:
                retired += len(plan.files)
                size = sum(file.size for file in plan.files)
                named = f"{len(plan.files):,} file{'s'[: len(plan.files) > 1]}"
                _log.info("%s: retired %s, %d bytes", self._address, named, size)
        deleted = ""
        if asked or self._now_s() >= self._orphans_at_s:
            self._orphans_at_s = self._now_s() + ORPHANS_EVERY_S
            deleted = yield from self._delete_unneeded(orphans_too=True)
        if asked:
            told = "; ".join(filter(None, (detail or describe_held(plan), deleted)))
            yield self._append_step(request, (), detail=told, refused=bool(detail))

    def _delete(self) -> Steps:
        found: Sequence[RetiredFiles] = yield Step("find_deletable", self._find_deletable)
        if found and (yield Step("check_owner", self._is_owner, with_log=True)):
            self._pending = yield Step("delete_files", partial(self._delete_files, found))
            yield from self._delete_unneeded(orphans_too=False)

    def _delete_unneeded(self, *, orphans_too: bool) -> Generator[Step, Any, str]:
        """Returns what was deleted, in words. An error ends only this."""
        try:
            find = partial(self._find_unneeded, orphans_too)
            found: Unneeded = yield Step("find_unneeded", find)
            is_owner = yield Step("check_owner", self._is_owner, with_log=True)
            if not is_owner:
                return ""
            run = partial(self._run_unneeded, found, orphans_too)
            deleted: str = yield Step("delete_unneeded", run)
        except Exception as error:  # noqa: BLE001, who asked is told
            self._warn(f"not all files that nothing needs were deleted: {_text(error)}", error)
            return f"not all files that nothing needs were deleted: {_text(error)}"
        if not deleted:
            return ""
        _log.info("%s: deleted %s", self._address, deleted)
        return f"deleted {deleted}"

    def _append_step(
        self,
        request: int,
        files: Sequence[RetiredFile],
        *,
        more: bool = False,
        detail: str = "",
        refused: bool = False,
    ) -> Step:
        append = partial(self._append, request, tuple(files), more, detail, refused)
        return Step("append_retired", append, with_log=True, appends=True)

    # --- steps that need the log ---

    def _append(
        self,
        request: int,
        files: tuple[RetiredFile, ...],
        more: bool,
        detail: str,
        refused: bool,
    ) -> Future[int]:
        event = Retired(
            epoch=self._log.epoch,
            nonce=self._log.nonce,
            now_ts=self._services.clock.now_us(),
            previous=self._log.fold.retired,
            request=request,
            more=more,
            files=files,
            detail=detail[:DETAIL_CHARS_MAX],
            refused=refused,
        )
        return self._appends.begin(self._log, event)

    def _fold_requests(self) -> None:
        try:
            self._log.fold_arrived(self._services.deadline())
        except BrokerUnavailable as error:
            self._warn(f"requests were not looked for: {error}")

    def _is_owner(self) -> bool:
        try:
            self._log.check_still_owner(self._services.deadline())
        except BrokerUnavailable as error:
            self._warn(f"nothing is deleted for now: {error}")
            return False
        return True

    # --- steps beside the loop ---

    def _plan(self, older_than_us: int) -> RetentionPlan:
        services = self._services
        # Ages are of log time, which follows the wall clock wherever a partition was read to its
        # end; behind that a file counts as older than it is by what the sealers lag.
        sealed_until_us = services.clock.now_us() - older_than_us
        samplers = services.decisions.read(self._address.environment, services.reading_deadline())
        began_s, address = self._now_s(), self._address

        def still_held(offset: int) -> HeldFlush | None:
            held = self._held.get(offset)
            if held is not None and not held.is_held(address, samplers):
                del self._held[offset]
                return None
            return held

        flushes = unretired_flushes(services.blobs, address, self._check_time(), still_held)
        plan = plan_retention(
            address,
            flushes,
            samplers,
            sealed_until_us,
            self._held,
            lambda: self._now_s() < began_s + PLAN_S,
        )
        now_s = self._now_s()
        wait_s = PLANS_SHARE * (now_s - began_s)
        self._schedule_at_s = max(self._schedule_at_s, now_s + wait_s)
        return plan

    def _project(self, offset: int) -> bool:
        """Returns whether anything was ever retired."""
        services = self._services
        where, check_time = self._log.where, self._check_time()
        project_retired(
            services.blobs,
            services.broker,
            where,
            self._address,
            offset,
            services.deadline(),
            check_time,
        )
        return bool(retired_offsets(services.blobs, self._address))

    def _find_deletable(self) -> Sequence[RetiredFiles]:
        samplers = self._services.decisions.read(
            self._address.environment, self._services.reading_deadline()
        )
        return deletable(self._services.blobs, self._address, samplers)

    def _delete_files(self, found: Sequence[RetiredFiles]) -> bool:
        """Returns whether more is to be deleted."""
        blobs = self._services.blobs
        delete_retired(blobs, found)
        return bool({*retired_offsets(blobs, self._address)} - {one.offset for one in found})

    def _find_unneeded(self, orphans_too: bool) -> Unneeded:
        """What belongs to the whole environment is up to the owner of its first partition."""
        services, address = self._services, self._address
        blobs = services.blobs
        found = Unneeded(manifests=unneeded_manifests(blobs, address))
        if address.partition != 0:
            return found
        environment = address.environment
        with suppress(UnknownSampler, NoSampler):  # Retiring says so.
            samplers = services.decisions.read(environment, services.reading_deadline())
            found = found.plus(Unneeded(batches=unneeded_batches(blobs, samplers)))
        if not orphans_too:
            return found
        addresses = services.layout.addresses({environment: services.config.partitions})
        candidates = orphans(blobs, addresses, self._check_time(), self._known)
        deadline = services.reading_deadline()
        unnamed = unnamed_by_log(services.broker, services.layout, candidates, deadline)
        return found.plus(Unneeded(orphans=unnamed))

    def _run_unneeded(self, found: Unneeded, orphans_too: bool) -> str:
        """Deletes it; returns what it was, in words."""
        services, staged = self._services, 0
        found.delete(services.blobs)
        if orphans_too and self._address.partition == 0:
            before_us = services.clock.now_us() - round(STAGED_AGE_S * 1e6)
            staged = services.blobs.delete_staged(before_us)
        unfinished = f"unfinished files: {staged:,}" if staged else ""
        return ", ".join(filter(None, (str(found), unfinished)))

    def _check_time(self) -> Callable[[], None]:
        abandoned = self._abandoned

        def check() -> None:
            if abandoned.is_set():
                raise StoreError(f"the manifests of {self._address} are for its next owner to read")

        return check

    def _warn(self, message: str, error: Exception | None = None) -> None:
        """Once, however often it is tried again; where nobody foresaw the error, with its place."""
        if message != self._warned:
            self._warned = message
            foreseen = error is None or isinstance(error, RollstreamError)
            _log.warning("%s: %s", self._address, message, exc_info=None if foreseen else error)

    def _now_s(self) -> float:
        return self._services.clock.monotonic_s()


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, RollstreamError) else repr(error)
