"""A flush: named steps, in order. Between any two of them the process may be killed.

The order is the guarantee: files before the event that names them, nothing acted upon before the
event is confirmed, the committed offset last. A sealer that is to be broken on purpose is another
tuple of steps.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rollstream.consumers.assembling import Plan
from rollstream.consumers.sealing.rows import Draft, FlushTarget, draft_flush
from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Event, Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import BlobExists, Blobs, Bytes, CorruptFile, project
from rollstream.streams.owned.log import Ticket


class EventAppender(Protocol):
    """What a flush needs of the owned log."""

    epoch: int
    nonce: str

    def append(self, event: Event) -> Ticket: ...

    def wait_confirmed(self, ticket: Ticket, deadline: Deadline) -> int: ...


@dataclass(slots=True)
class Flush:
    """One flush on its way.

    Attributes:
        plan: what is settled.
        name: of its files; an epoch uses each once.
        commit: commits the consumer group's offset.
        done: how many steps were done.
        event: once files are put.
        offset: of the event in the seal log, once it was confirmed.
    """

    plan: Plan
    target: FlushTarget
    blobs: Blobs
    writers: Executor
    log: EventAppender
    clock: Clock
    timeout_s: float
    commit: Callable[[int], None]
    done: int = 0
    event: Flushed | None = None
    offset: int | None = None


class Step(NamedTuple):
    """One step. Steps beside the loop run in a worker thread, so that reading goes on meanwhile;
    a step in the loop may use the consumer group."""

    name: str
    run: Callable[[Flush], None]
    in_loop: bool = False


def put_files(flush: Flush) -> None:
    """Creates the files, synced; nobody reads them yet. While they are written, those behind them
    are encoded."""
    writes: list[Future[None]] = []

    def put(draft: Draft) -> None:
        write = flush.writers.submit(create_or_compare, flush.blobs, draft.path, draft.data)
        writes.append(write)

    try:
        event = draft_flush(flush.plan, flush.target, put)
    finally:
        wait(writes)  # Nobody writes any more when the step is tried again.
    for write in writes:
        write.result()
    flush.event = event


def append_event(flush: Flush) -> None:
    """Appends the event and waits until it is confirmed: the commit point."""
    assert flush.event is not None, "files first"
    ticket = flush.log.append(flush.event)
    flush.offset = flush.log.wait_confirmed(ticket, Deadline(flush.timeout_s, flush.clock))


def project_manifests(flush: Flush) -> None:
    """Writes the manifest of what was confirmed."""
    assert flush.event is not None, "files first"
    assert flush.offset is not None, "nothing is projected before it was confirmed"
    target = flush.target
    address = PartitionAddress(target.environment, target.generation, target.partition)
    project(flush.blobs, address, flush.offset, flush.event)


def commit_watermark(flush: Flush) -> None:
    """Moves the consumer group's offset forward."""
    flush.commit(flush.plan.watermark)


STEPS: tuple[Step, ...] = (
    Step("put_files", put_files),
    Step("append_event", append_event),
    Step("project_manifests", project_manifests),
    Step("commit_watermark", commit_watermark, in_loop=True),
)


def create_or_compare(blobs: Blobs, path: str, data: Bytes) -> None:
    """Creates the blob; one that exists already must hold the same bytes.

    Raises:
        CorruptFile: it holds others. StoreFull, StoreError.
    """
    try:
        blobs.create(path, data)
    except BlobExists:
        if blobs.read(path) != data:
            raise CorruptFile(
                f"{path} exists and holds other bytes than this flush would write; move it away"
            ) from None
