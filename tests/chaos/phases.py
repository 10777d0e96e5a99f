"""What a process is at, for whoever kills it: written to a file of its own before it begins."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.failing_blobs import PassingBlobs
from harness.faults import Append, FaultyBroker
from rollstream.consumers.sealing import STEPS, Flush, FlushStep
from rollstream.runtime.config.store import StoreConfig
from rollstream.sampler.engine import snapshots
from rollstream.schemas import codec
from rollstream.schemas.events import Adopted, Claimed
from rollstream.store import Bytes, Pieces, open_store
from rollstream.streams.broker import Delivery, OnDelivery
from rollstream.streams.kafka import KafkaBroker

WIDTH = 64  # Bytes of the file; written at once, so a reader sees one state.
IDLE = "idle"
_FINGERPRINT_BYTES = 10


def _mark(event: Any) -> bytes:
    return codec.encode(event)[:_FINGERPRINT_BYTES]


_CLAIMED = _mark(Claimed(owner="", nonce="", software="", root_id=""))
_ADOPTED = _mark(Adopted(epoch=0, nonce="", fold_from=0, watermark=0, counts={}))


class Process(NamedTuple):
    """A process, and what it is at."""

    pid: int
    phase: str


def read_phase(file: Path) -> Process | None:
    """None where no process has begun to write the file."""
    try:
        pid, _, phase = file.read_bytes().decode().rstrip().partition(" ")
    except FileNotFoundError:
        return None
    return Process(int(pid), phase) if phase else None


def state_of(pid: int) -> str:
    """As ``proc(5)`` writes it: ``T`` where it is asleep by a signal; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


class Order(NamedTuple):
    """That a process is to stop itself: when it begins a phase whose name begins so, or is about to
    end it, where what was written is in the log and its writer does not know yet."""

    phase: str
    at: str  # ``begin`` or ``end``


def order_file(file: Path) -> Path:
    """Beside the file of phases; who obeys renames it so that its process id follows the name."""
    return file.with_suffix(".order")


def take_back(order: Path) -> int | None:
    """The process that took the order and falls asleep, so that nobody wakes it before; None where
    none did, and none will."""
    try:
        order.unlink()
    except FileNotFoundError:
        (taken,) = order.parent.glob(f"{order.name}.*")
        taken.unlink()
        return int(taken.suffix[1:])
    return None


class Phases:
    """The phases of this process; several threads may be in one each, the newest is shown."""

    def __init__(self, file: Path) -> None:
        self._order = order_file(file)
        self._file = os.open(file, os.O_CREAT | os.O_WRONLY, 0o600)
        self._lock = threading.Lock()
        self._now: list[str] = []
        self._write()

    def begin(self, phase: str) -> None:
        with self._lock:
            self._now.append(phase)
            self._write()
        self._obey(phase, "begin")

    def end(self, phase: str) -> None:
        """Ends one that began; one that never did stays without consequence."""
        self._obey(phase, "end")
        with self._lock:
            if phase in self._now:
                self._now.remove(phase)
            self._write()

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        self.begin(phase)
        try:
            yield
        finally:
            self.end(phase)

    def _obey(self, phase: str, at: str) -> None:
        try:
            wanted = Order(*self._order.read_text().split("|"))
            if at != wanted.at or not phase.startswith(wanted.phase):
                return
            # One thread of one process takes it, or whoever gave it takes it back.
            self._order.rename(f"{self._order}.{os.getpid()}")
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGSTOP)

    def _write(self) -> None:
        phase = self._now[-1] if self._now else IDLE
        os.pwrite(self._file, f"{os.getpid()} {phase}".ljust(WIDTH).encode(), 0)


@cache
def phases_of(file: Path) -> Phases:
    """Those of this process that the file shows."""
    return Phases(file)


class PhasedBroker(FaultyBroker):
    """Kafka. From ``Claimed`` to the delivery of ``Adopted`` its process is at a claim; from the
    append of any other event to its delivery, at ``events`` (empty: nothing to be shown).

    It may travel to an actor: only the process that writes to Kafka writes the file.
    """

    def __init__(self, bootstrap: str, client: dict[str, str], events: str, file: Path) -> None:
        super().__init__(KafkaBroker(bootstrap, client))
        self._arguments = bootstrap, client, events, file
        self.events = events

    @property
    def phases(self) -> Phases:
        return phases_of(self._arguments[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return PhasedBroker, self._arguments

    def before_append(self, append: Append, on_delivery: OnDelivery | None) -> OnDelivery | None:
        if ".admission." in append.topic:  # A thread of its own writes these at any time.
            return on_delivery
        phases, mark = self.phases, bytes(append.value[:_FINGERPRINT_BYTES])
        ends = self.events
        if mark == _CLAIMED:
            phases.end("claim")  # Of an attempt that came to nothing.
            phases.begin("claim")
            ends = ""
        elif mark == _ADOPTED:
            ends = "claim"
        elif ends:
            phases.begin(ends)

        def delivered(delivery: Delivery) -> None:
            if ends:
                phases.end(ends)
            if on_delivery is not None:
                on_delivery(delivery)

        return delivered


class PhasedBlobs(PassingBlobs):
    """A store that shows when a snapshot or a decision's file is written; where it is made,
    snapshots are written so often that kills hit them."""

    def __init__(self, store: StoreConfig, file: Path) -> None:
        super().__init__(open_store(store))
        self._arguments = store, file
        snapshots.EVENTS_BETWEEN, snapshots.SECONDS_BETWEEN = 32, 1.0

    def __reduce__(self) -> tuple[Any, ...]:
        return PhasedBlobs, self._arguments

    def create(self, path: str, data: Bytes | Pieces) -> None:
        with phases_of(self._arguments[1]).of(_phase_of(path)):
            super().create(path, data)

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        with phases_of(self._arguments[1]).of(_phase_of(path)):
            super().replace(path, data)


def _phase_of(path: str) -> str:
    return "snapshot" if "snapshot" in path else "projection"


def phased_steps(phases: Phases) -> tuple[FlushStep, ...]:
    """The steps of a flush, each of which is shown."""

    def shown(step: FlushStep) -> FlushStep:
        def run(flush: Flush) -> None:
            with phases.of(f"flush: {step.name}"):
                step.run(flush)

        return step._replace(run=run)

    return tuple(map(shown, STEPS))
