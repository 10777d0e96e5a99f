"""The life of a partition's files under the owner of its seal log: retired by request and by
schedule, and deleted once no sampler can need them.

These are jobs beside the loop, which yield what needs the log, so that flushes go on. The process
may be killed at any point: what the log says was retired is projected and deleted by whoever owns
the partition next, and a request that was not answered is answered then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rollstream.consumers.beside.backoff import described
from rollstream.consumers.beside.chores import Chore, Chores, Job, LogStep, asking_log
from rollstream.consumers.beside.context import OwnerContext
from rollstream.consumers.retention.decisions import DecisionLogs, NoSampler, UnregisteredSampler
from rollstream.consumers.retention.files import deletable, delete_retired, project_retired
from rollstream.consumers.retention.flushes import plan_partition
from rollstream.consumers.retention.known import KnownFlushes
from rollstream.consumers.retention.limits import RetentionLimits
from rollstream.consumers.retention.plan import RetentionPlan, describe_held, parts
from rollstream.consumers.retention.unneeded import (
    STAGED_AGE_S,
    abandoned_groups,
    orphans,
    unneeded_batches,
    unneeded_manifests,
)
from rollstream.folds.state import SamplerState
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Requested, RequestKind, Retired, RetiredFile
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.retired import retired_offsets
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog

BY_SCHEDULE = -1  # Instead of a request's offset.
SCHEDULE_EVERY_S = 300.0
DELETE_EVERY_S = 10.0  # While retired files are not deleted.
ORPHANS_EVERY_S = 3_600.0  # By schedule: all row files of the environment are listed.
READ_TIMEOUT_S = 600.0  # For all decisions, or manifests.
PLAN_S = 60.0  # For the manifests of old files; the next plan goes on behind those that it opened.
PLANS_SHARE = 10  # The schedule waits so many times as long as its plan took.
DETAIL_CHARS_MAX = 1_000
NOT_ALL = "not all files that nothing needs were deleted"
US_PER_HOUR = 3_600_000_000
_log = logging.getLogger("rollstream.sealer")


@dataclass(slots=True)
class PartitionFiles:
    """The files of a partition, for its owner.

    Attributes:
        decisions: of the samplers.
        log_now_us: log time in microseconds. It decides how old files are, since a machine's clock
            may be days ahead.
        flushes: what plans know of them.
        known: hashes of row files that are no orphans.
        projected: the newest ``Retired`` event that readers go by; None: not known.
        left: whether retired files may be left to be deleted.
        orphans_at_s: when orphans are looked for by schedule.
    """

    context: OwnerContext
    address: PartitionAddress
    log: OwnedLog[SealFold]
    decisions: DecisionLogs
    log_now_us: Callable[[], int]
    orphans_at_s: float
    flushes: KnownFlushes = field(default_factory=KnownFlushes)
    known: set[int] = field(default_factory=set)
    projected: int | None = None
    left: bool = False
    warned: str = ""

    @property
    def staged_before_us(self) -> int:
        """When a file was staged by a writer that was killed since: it is old by the machine's
        clock, which the file has its time from, and by log time."""
        now_us = min(self.context.clock.now_us(), self.log_now_us())
        return now_us - round(STAGED_AGE_S * 1e6)

    def project(self, offset: int, deadline: Deadline) -> None:
        """Readers leave out what was retired up to the event at ``offset``, unless they do."""
        if offset == self.projected:
            return
        blobs, broker = self.context.blobs, self.context.broker
        project_retired(blobs, broker, self.log.where, self.address, offset, deadline)
        self.projected, self.left = offset, bool(retired_offsets(blobs, self.address))

    def samplers(self, deadline: Deadline) -> Mapping[str, SamplerState]:
        """What they decided."""
        return self.decisions.read(self.address.environment, deadline)

    def warn(self, message: str, error: Exception) -> str:
        """Logs it once, however often it is tried again; where nobody foresaw the error, with its
        place. Returns the error as text."""
        text, unforeseen = described(error)
        if self.warned != (warned := f"{message}: {text}"):
            self.warned = warned
            _log.warning("%s: %s", self.address, warned, exc_info=unforeseen)
        return text


def retention_chores(
    context: OwnerContext,
    address: PartitionAddress,
    log: OwnedLog[SealFold],
    decisions: DecisionLogs,
    log_now_us: Callable[[], int],
) -> Chores:
    """What the owner of a partition does for its files, from its claim on."""
    clock, now_s = context.clock, context.clock.monotonic_s()
    files = PartitionFiles(context, address, log, decisions, log_now_us, now_s + ORPHANS_EVERY_S)
    chore = partial(Chore, runs_in=context.threads.beside, timeout_s=READ_TIMEOUT_S)
    by_schedule = partial(_retire_by_schedule, files)
    chores = [
        chore("retention", partial(_answer, files)),
        chore(
            "retention by schedule",
            by_schedule,
            due_s=now_s + SCHEDULE_EVERY_S,
            again_s=SCHEDULE_EVERY_S,
        ),
        chore("retired files", partial(_delete_left, files)),
    ]
    return Chores(str(address), clock, chores)


def asks_to_retire(request: Requested) -> bool:
    """Whether it is answered here."""
    return request.kind == RequestKind.RETAIN and _limits_of(request) != RetentionLimits()


def _limits_of(request: Requested) -> RetentionLimits:
    given = (getattr(request, name) for name in RetentionLimits._fields)
    return RetentionLimits(*(None if limit < 0 else limit for limit in given))


def _answer(files: PartitionFiles, deadline: Deadline) -> Job | None:
    for offset, (_, request) in files.log.fold.requests.items():
        if asks_to_retire(request):
            return _retire(files, files.log.fold.retired, offset, _limits_of(request), deadline)
    return None


def _retire_by_schedule(files: PartitionFiles, deadline: Deadline) -> Job | None:
    config = files.context.config
    hours = config.retain_after_hours
    age_us = None if hours is None else round(hours * US_PER_HOUR)
    limits = RetentionLimits(age_us, config.retain_groups, config.retain_groups_per_policy)
    if limits == RetentionLimits():
        return None
    return _retire(files, files.log.fold.retired, BY_SCHEDULE, limits, deadline)


def _delete_left(files: PartitionFiles, deadline: Deadline) -> Job | None:
    retired = files.log.fold.retired
    return _delete(files, retired, deadline) if files.left or files.projected != retired else None


def _retire(
    files: PartitionFiles,
    retired: int,
    request: int,
    limits: RetentionLimits,
    deadline: Deadline,
) -> Job:
    """One plan a job. A request stays open until all old files were looked at, and is answered once
    readers leave out what was retired."""
    asked, now_s = request != BY_SCHEDULE, files.context.clock.monotonic_s
    files.project(retired, deadline)  # A predecessor may have been killed after its event.
    began_s, detail, failed = now_s(), "", None
    try:
        plan = _plan(files, limits, deadline)
    except Exception as error:  # noqa: BLE001, who asked is told, and `status`
        plan, detail = RetentionPlan(), files.warn("nothing more is retired", error)
        failed = error
    wait_s = max(SCHEDULE_EVERY_S, PLANS_SHARE * (now_s() - began_s))
    for part in parts(plan.files):
        offset = yield partial(_append, files, request, part, more=asked)
        files.project(offset, deadline)
    if plan.files:
        size = sum(file.size for file in plan.files)
        named = f"{len(plan.files):,} file{'s'[: len(plan.files) > 1]}"
        _log.info("%s: retired %s, %d bytes", files.address, named, size)
    if asked and not plan.finished:
        return 0.0
    deleted = ""
    if asked or now_s() >= files.orphans_at_s:
        try:
            deleted = yield from _delete_unneeded(files, deadline, orphans_too=True)
            files.orphans_at_s = now_s() + ORPHANS_EVERY_S
        except Exception as error:  # noqa: BLE001, likewise
            deleted = f"{NOT_ALL}: {files.warn(NOT_ALL, error)}"
            failed = failed or error
    if not asked and failed is not None:
        raise failed
    if not asked:
        return wait_s
    told = "; ".join(filter(None, (detail or describe_held(plan.held_files, plan.held), deleted)))
    yield partial(_append, files, request, detail=told, refused=bool(detail))
    return 0.0


def _delete(files: PartitionFiles, retired: int, deadline: Deadline) -> Job:
    files.project(retired, deadline)  # As above; a new owner first of all.
    blobs, address = files.context.blobs, files.address
    found = deletable(blobs, address, files.samplers(deadline)) if files.left else ()
    if found:
        yield from asking_log(files.context, files.log.check_still_owner)
        delete_retired(blobs, found)
        files.left = bool({*retired_offsets(blobs, address)} - {one.offset for one in found})
        try:
            yield from _delete_unneeded(files, deadline, orphans_too=False)
        except Exception as error:  # noqa: BLE001, it is tried again by schedule
            files.warn(NOT_ALL, error)
    return DELETE_EVERY_S


def _delete_unneeded(
    files: PartitionFiles, deadline: Deadline, *, orphans_too: bool
) -> Generator[LogStep, Any, str]:
    """Returns what was deleted, in words."""
    blobs = files.context.blobs
    found = _find_unneeded(files, deadline, orphans_too)
    yield from asking_log(files.context, files.log.check_still_owner)
    for paths in found.values():
        for path in paths:  # Repeating it, also beside another owner, changes nothing.
            blobs.delete(path)
    counts = {kind: len(paths) for kind, paths in found.items()}
    if orphans_too and files.address.partition == 0:
        counts["unfinished files"] = blobs.delete_staged(files.staged_before_us)
    deleted = ", ".join(f"{kind}: {count:,}" for kind, count in counts.items() if count)
    if not deleted:
        return ""
    _log.info("%s: deleted %s", files.address, deleted)
    return f"deleted {deleted}"


def _append(
    files: PartitionFiles, request: int, part: tuple[RetiredFile, ...] = (), **said: Any
) -> Future[int]:
    return files.context.appends.begin(
        files.log, retired_event(files.context, files.log, request, files=part, **said)
    )


def retired_event(
    context: OwnerContext,
    log: OwnedLog[SealFold],
    request: int,
    *,
    files: tuple[RetiredFile, ...] = (),
    more: bool = False,
    detail: str = "",
    refused: bool = False,
) -> Retired:
    """Retires files, or answers a request."""
    return Retired(
        epoch=log.epoch,
        nonce=log.nonce,
        now_ts=context.clock.now_us(),
        previous=log.fold.retired,
        request=request,
        more=more,
        files=files,
        detail=detail[:DETAIL_CHARS_MAX],
        refused=refused,
    )


def _plan(files: PartitionFiles, limits: RetentionLimits, deadline: Deadline) -> RetentionPlan:
    context, address = files.context, files.address
    # Flushes have the log time of the partition, too. Where the sealer lags, a file counts as older
    # than it is by as much.
    log_now_us = files.log_now_us()
    samplers = files.samplers(deadline)
    until = Deadline(PLAN_S, context.clock)
    return plan_partition(
        *(context.blobs, address, samplers, limits.of_partition(context.config.partitions)),
        *(log_now_us, files.flushes, deadline, lambda: not until.passed()),
    )


def _find_unneeded(
    files: PartitionFiles, deadline: Deadline, orphans_too: bool
) -> dict[str, Sequence[str]]:
    """Files that nothing needs, by kind, each kind in the order in which it is to be deleted. What
    belongs to the whole environment is up to the owner of its first partition."""
    context, address = files.context, files.address
    blobs = context.blobs
    found: dict[str, Sequence[str]] = {"manifests and roll-ups": unneeded_manifests(blobs, address)}
    if address.partition == 0:
        with suppress(UnregisteredSampler, NoSampler):  # Retiring says so.
            found["batch files"] = unneeded_batches(blobs, files.samplers(deadline))
        if orphans_too:
            found["orphans"] = orphans(
                *(context.broker, context.layout, blobs),
                context.layout.addresses({address.environment: context.config.partitions}),
                deadline,
                answer_s=context.ask_s,
                known=files.known,
            )
    if orphans_too:
        staged = abandoned_groups(blobs, address, files.staged_before_us)
        requested = {request.event.staged for request in files.log.fold.requests.values()}
        found["abandoned groups"] = sorted(staged - requested)
    return found
