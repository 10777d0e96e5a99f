"""Where a sealer is killed: calls on its seams. The same points end a simulated process and a real
one; only ``die`` differs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, NoReturn

from harness.failing_blobs import PassingBlobs
from harness.faults import Append, Fate, FaultyBroker, write_now
from rollstream.consumers.sealing import STEPS, Flush, FlushStep
from rollstream.schemas import codec
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Adopted, Claimed, Flushed, Retired
from rollstream.store import Blobs, Bytes, Pieces
from rollstream.streams.broker import Broker

Die = Callable[[], NoReturn]


class KillPoint(StrEnum):
    """A moment in a sealer's life."""

    AFTER_PUT_FILES = "after-put-files"
    BETWEEN_FILES = "between-files"
    BEFORE_CONFIRMED = "before-confirmed"  # The event is in the log; its owner never learns of it.
    AFTER_APPEND_EVENT = "after-append-event"
    AFTER_PROJECT_MANIFESTS = "after-project-manifests"
    AFTER_ROLL_UP_MANIFESTS = "after-roll-up-manifests"
    AFTER_COMMIT_WATERMARK = "after-commit-watermark"
    WITHIN_RECORD = "within-record"  # A flush has ended some entries of a record, others are left.
    BEFORE_CLAIM = "before-claim"
    IN_CLAIM = "in-claim"  # The claim is in the log, the adoption is not.
    AFTER_ADOPTED = "after-adopted"


class RetentionPoint(StrEnum):
    """A moment while files are retired and deleted."""

    BEFORE_RETIRED = "before-retired"
    BEFORE_CONFIRMED = "before-retired-confirmed"  # The event is in the log.
    BEFORE_PROJECTED = "before-retired-projected"
    AFTER_PROJECTED = "after-retired-projected"
    BEFORE_DELETED = "before-deleted"
    AFTER_DELETED = "after-deleted"
    BEFORE_UNNEEDED = "before-unneeded-deleted"  # A manifest, roll-up or batch file.
    AFTER_UNNEEDED = "after-unneeded-deleted"
    BEFORE_FORGOTTEN = "before-retired-forgotten"  # The blob of an older event is to be deleted.


class Armed(NamedTuple):
    """What a sealer is built from, with one kill point in it."""

    broker: Broker
    blobs: Blobs
    steps: tuple[FlushStep, ...]


def kill_process() -> NoReturn:
    """Ends this process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def arm(point: KillPoint, broker: Broker, blobs: Blobs, die: Die, *, passage: int = 1) -> Armed:
    """The seams with ``die`` at this ``passage`` of ``point``."""
    fuse = _Fuse(passage, die)
    faulty = FaultyBroker(broker)
    steps = STEPS
    match point:
        case KillPoint.BETWEEN_FILES:
            return Armed(broker, _DyingBlobs(blobs, fuse), steps)
        case KillPoint.WITHIN_RECORD:
            last = STEPS[-1]
            burn = _then(last.run, fuse, where=_ends_within_a_record)
            return Armed(broker, blobs, (*STEPS[:-1], last._replace(run=burn)))
        case KillPoint.BEFORE_CONFIRMED:
            faulty.decide = _at(Flushed, faulty, fuse, written=True)
        case KillPoint.BEFORE_CLAIM:
            faulty.decide = _at(Claimed, faulty, fuse, written=False)
        case KillPoint.IN_CLAIM:
            faulty.decide = _at(Claimed, faulty, fuse, written=True)
        case KillPoint.AFTER_ADOPTED:
            faulty.decide = _at(Adopted, faulty, fuse, written=True)
        case _:
            name = point.removeprefix("after-").replace("-", "_")
            steps = tuple(
                step._replace(run=_then(step.run, fuse)) if step.name == name else step
                for step in STEPS
            )
            assert steps != STEPS, point
            return Armed(broker, blobs, steps)
    return Armed(faulty, blobs, steps)


def arm_retention(
    point: RetentionPoint, broker: Broker, blobs: Blobs, die: Die, *, passage: int = 1
) -> Armed:
    """The seams with ``die`` at this ``passage`` of ``point``; where it returns, all goes on."""
    fuse = _Fuse(passage, die)
    if point in (RetentionPoint.BEFORE_RETIRED, RetentionPoint.BEFORE_CONFIRMED):
        faulty, written = FaultyBroker(broker), point is RetentionPoint.BEFORE_CONFIRMED
        faulty.decide = _at(Retired, faulty, fuse, written=written)
        return Armed(faulty, blobs, STEPS)
    return Armed(broker, _DyingFiles(blobs, fuse, point), STEPS)


class _Fuse:
    def __init__(self, passage: int, die: Die) -> None:
        self._left = passage
        self._die = die

    def burns_down(self) -> bool:
        """One passage; whether it is the one."""
        self._left -= 1
        return self._left == 0

    def burn(self) -> None:
        if self.burns_down():
            self._die()

    def die(self) -> NoReturn:
        self._die()


def _then(
    run: Callable[[Flush], None],
    fuse: _Fuse,
    *,
    where: Callable[[Flush], bool] = lambda flush: True,
) -> Callable[[Flush], None]:
    def run_and_burn(flush: Flush) -> None:
        run(flush)
        if where(flush):
            fuse.burn()

    return run_and_burn


def _ends_within_a_record(flush: Flush) -> bool:
    """Whether an offset has entries that this flush settled, and others that none has so far."""
    plan = flush.plan
    above = [offset for offset in plan.touched if offset >= plan.watermark]
    return any(plan.settled[offset] < plan.touched[offset] for offset in above)


def _at(
    kind: type, broker: FaultyBroker, fuse: _Fuse, *, written: bool
) -> Callable[[Append], Fate]:
    """Burns where such an event is appended: before it is in the log, or right after."""

    def decide(append: Append) -> Fate:
        if _is_a(kind, append.value) and fuse.burns_down():
            if written:
                write_now(broker.inner, append)
            fuse.die()
        return Fate.PASS

    return decide


def _is_a(kind: type, value: bytes) -> bool:
    try:
        return isinstance(codec.decode(value), kind)
    except UnreadableEvent:
        return False


class _DyingBlobs(PassingBlobs):
    """Burn the fuse between two files of one flush: they share their last name."""

    def __init__(self, inner: Blobs, fuse: _Fuse) -> None:
        super().__init__(inner)
        self._fuse = fuse
        self._last = ""

    def create(self, path: str, data: Bytes | Pieces) -> None:
        name = path.rpartition("/")[2]
        if name == self._last:
            self._fuse.burn()
        self._last = name
        self.inner.create(path, data)


class _DyingFiles(PassingBlobs):
    """Burn the fuse at a point in the life of retired files."""

    def __init__(self, inner: Blobs, fuse: _Fuse, point: RetentionPoint) -> None:
        super().__init__(inner)
        self._fuse = fuse
        self._point = point

    def create(self, path: str, data: Bytes | Pieces) -> None:
        projects = path.startswith("retired/")
        self._burn_at(RetentionPoint.BEFORE_PROJECTED, projects)
        self.inner.create(path, data)
        self._burn_at(RetentionPoint.AFTER_PROJECTED, projects)

    def delete(self, path: str) -> None:
        forgets = path.startswith("retired/")
        unneeded = path.startswith(("manifests/", "rollups/", "batches/"))
        self._burn_at(RetentionPoint.BEFORE_FORGOTTEN, forgets)
        self._burn_at(RetentionPoint.BEFORE_UNNEEDED, unneeded)
        self._burn_at(RetentionPoint.BEFORE_DELETED, not (forgets or unneeded))
        self.inner.delete(path)
        self._burn_at(RetentionPoint.AFTER_DELETED, not (forgets or unneeded))
        self._burn_at(RetentionPoint.AFTER_UNNEEDED, unneeded)

    def _burn_at(self, point: RetentionPoint, passes: bool) -> None:
        if passes and point is self._point:
            self._fuse.burn()
