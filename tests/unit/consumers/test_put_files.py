"""The step of a flush that creates files, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import pytest

from harness.assembling import Drive
from harness.failing_blobs import PassingBlobs
from rollstream.consumers.sealing.flush import Flush, put_files
from rollstream.consumers.sealing.rows import FlushTarget
from rollstream.runtime.clock import ManualClock
from rollstream.schemas.events import Event
from rollstream.store import Blobs, Bytes, StoreFull
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.owned.log import Ticket

LASTS_S = 0.3
P = ParamSpec("P")
T = TypeVar("T")


class NoLog:
    """Nothing is appended before the files are there."""

    epoch = 0
    nonce = ""

    def append(self, event: Event) -> Ticket:
        raise AssertionError(event)

    def wait_confirmed(self, ticket: Ticket, deadline: object) -> int:
        raise AssertionError(ticket)


class Asked(ThreadPoolExecutor):
    """Says when somebody asks for a result."""

    def __init__(self) -> None:
        super().__init__(2)
        self.asked = threading.Event()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = super().submit(fn, *args, **kwargs)
        result = future.result

        def asked_for(timeout: float | None = None) -> T:
            self.asked.set()
            return result(timeout)

        future.result = asked_for  # type: ignore[method-assign]
        return future


class FirstIsFull(PassingBlobs):
    """The first create fails; the second one lasts until somebody asks for a result, or a while."""

    def __init__(self, inner: Blobs, asked: threading.Event) -> None:
        super().__init__(inner)
        self._asked = asked
        self.asked_too_early = False
        self.created: list[str] = []

    def create(self, path: str, data: Bytes) -> None:
        if "policy_version=one" in path:
            raise StoreFull("no space is left")
        self.asked_too_early = self._asked.wait(LASTS_S)
        super().create(path, data)
        self.created.append(path)


def test_a_failed_file_is_told_once_nobody_writes_any_more() -> None:
    drive = Drive(grouping="mixed")
    for version in ("one", "two"):
        for member in range(2):
            drive.rollout(f"{version}-{member}", example_id=version, policy_version=version)
    plan = drive.assembler.plan(100, 1 << 30)
    assert plan is not None
    target = FlushTarget("math", 0, 0, 1, "nonce", "name", "none")
    with Asked() as writers:
        blobs = FirstIsFull(MemoryBlobs(), writers.asked)
        flush = Flush(plan, target, blobs, writers, NoLog(), ManualClock(), 1.0, lambda _: None)
        with pytest.raises(StoreFull):
            put_files(flush)
        assert not blobs.asked_too_early
        assert len(blobs.created) == 1
    assert flush.event is None
