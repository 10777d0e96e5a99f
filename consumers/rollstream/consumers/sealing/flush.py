"""A flush: named steps, in order. Between any two of them the process may be killed.

The order is the guarantee: files before the event that names them, nothing acted upon before the
event is confirmed, the committed offset last. Tests build faulty sealers from
other tuples of steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from rollstream.consumers.assembling import Plan
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.rows import FlushTarget, draft_flush
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Pieces, RollUps, StoreError, create_or_compare, project
from rollstream.store.layout import manifest_path
from rollstream.streams.errors import CorruptLog
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.owned.reading import event_in
from rollstream.streams.reading import read_between

_log = logging.getLogger("rollstream.sealer")


@dataclass(slots=True)
class Flush:
    """One flush on its way.

    Attributes:
        plan: what it settles.
        steps: in their order.
        log: the seal log.
        commit: commits this watermark as the consumer group's offset.
        rollups: of the partition.
        begun_s: when it was made, by the monotonic clock.
        done: how many steps were done.
        event: set once the files are written.
        appending: the event that is on its way, if any.
        offset: of the event in the seal log, set once it is confirmed.
        manifest_size: bytes of its manifest, set once that is written.
        committed: whether the plan was committed in the assembler.
        writes: of its files, begun so far.
    """

    plan: Plan
    target: FlushTarget
    steps: tuple[FlushStep, ...]
    context: SealerContext
    log: OwnedLog[SealFold]
    commit: Callable[[int], None]
    rollups: RollUps
    begun_s: float
    done: int = 0
    event: Flushed | None = None
    appending: Future[int] | None = None
    offset: int | None = None
    manifest_size: int | None = None
    committed: bool = False
    writes: list[Future[None]] = field(default_factory=list)

    @property
    def went_on(self) -> int:
        """Another number with each file that was written. Any thread may ask."""
        return sum(map(Future.done, self.writes.copy()))

    def run_steps(self, *, in_loop: bool) -> None:
        """Runs the next steps, up to the first that has to run elsewhere, or after one that
        appended."""
        steps = self.steps
        while self.done < len(steps) and steps[self.done].in_loop is in_loop:
            steps[self.done].run(self)
            self.done += 1
            if self.appending is not None:
                break

    @property
    def step(self) -> str:
        """The name of the step that is next, or runs."""
        return self.steps[self.done].name

    def take_answer(self) -> None:
        """Takes down where the event stands that was on its way, if it is confirmed."""
        appended, self.appending = self.appending, None
        if appended is not None and appended.exception() is None:
            self.offset = appended.result()

    def finished(self) -> bool:
        """Whether every step was done."""
        return self.done == len(self.steps)


class FlushStep(NamedTuple):
    """One step. Steps beside the loop run in a worker thread, so that reading goes on meanwhile;
    a step in the loop waits for nothing."""

    name: str
    run: Callable[[Flush], None]
    in_loop: bool = False


def put_files(flush: Flush) -> None:
    """Creates the files, synced; no reader sees them before the event. While some are written, the
    next ones are encoded."""
    context = flush.context
    flush.writes = writes = []

    def put(path: str, data: Pieces) -> None:
        writes.append(context.threads.writers.submit(create_or_compare, context.blobs, path, data))

    try:
        event = draft_flush(flush.plan, flush.target, put)
    finally:
        wait(writes)  # No write may still run when the step is tried again.
    for write in writes:
        write.result()
    flush.event = event


def append_event(flush: Flush) -> None:
    """Appends the event; the next step is begun once it is confirmed: the commit point."""
    assert flush.event is not None, "files first"
    flush.appending = flush.context.appends.begin(flush.log, flush.event)


def project_manifests(flush: Flush) -> None:
    """Writes the manifest of the confirmed event."""
    assert flush.event is not None, "files first"
    assert flush.offset is not None, "nothing is projected before it was confirmed"
    address, blobs = flush.target.address, flush.context.blobs
    flush.manifest_size = project(blobs, address, flush.offset, flush.event)


def roll_up_manifests(flush: Flush) -> None:
    """Rolls manifests up, where enough were written. Nothing depends on it, so what fails is left
    to a later flush."""
    assert flush.event is not None, "files first"
    assert flush.offset is not None, "nothing is projected before it was confirmed"
    assert flush.manifest_size is not None, "manifests first"
    try:
        flush.rollups.add(flush.offset, flush.event, flush.manifest_size)
    except StoreError as error:
        _log.warning("%s: manifests were not rolled up: %s", flush.target.address, error)


def commit_watermark(flush: Flush) -> None:
    """Moves the consumer group's offset forward."""
    flush.commit(flush.plan.watermark)


STEPS: tuple[FlushStep, ...] = (
    FlushStep("put_files", put_files),
    FlushStep("append_event", append_event, in_loop=True),
    FlushStep("project_manifests", project_manifests),
    FlushStep("roll_up_manifests", roll_up_manifests),
    FlushStep("commit_watermark", commit_watermark, in_loop=True),
)


def project_missing(
    context: SealerContext, address: PartitionAddress, flushes: Sequence[int]
) -> None:
    """Writes the manifests that are missing of ``flushes`` (offsets of events that count, rising):
    a predecessor may have been killed between its event and the manifest.

    An owner projects one flush before it appends the next, and a new owner first of all calls this;
    so those that are missing are the newest, and the search ends at the first that exists.

    Raises:
        BrokerUnavailable: an event could not be read in time. StoreError: a manifest was not
            written.
    """
    missing: list[int] = []
    for offset in reversed(flushes):
        if context.blobs.info(manifest_path(address, offset)) is not None:
            break
        missing.append(offset)
    if not missing:
        return
    where = context.layout.groups_log(address)
    with closing(context.broker.reader({where: missing[-1]})) as reader:
        for offset in reversed(missing):
            for record in read_between(reader, where, offset, offset + 1, context.deadline()):
                event = event_in(record)
                if not isinstance(event, Flushed):
                    raise CorruptLog(f"{where}: the event at {offset} is no flush")
                project(context.blobs, address, offset, event)
