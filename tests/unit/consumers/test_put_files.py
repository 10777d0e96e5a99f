"""The step of a flush that creates files, several at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.assembling import Drive
from harness.failing_blobs import PassingBlobs
from rollstream.consumers.sealing.flush import Flush, put_files
from rollstream.consumers.sealing.rows import Place
from rollstream.runtime.clock import ManualClock
from rollstream.schemas.events import Event
from rollstream.store import Blobs, Bytes, StoreFull
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.owned.log import Ticket

WAIT_S = 30.0


class NoLog:
    """Nothing is appended before the files are there."""

    epoch = 0
    nonce = ""

    def append(self, event: Event) -> Ticket:
        raise AssertionError(event)

    def heard(self, ticket: Ticket, deadline: object) -> int:
        raise AssertionError(ticket)


class FirstIsFull(PassingBlobs):
    """The first create fails; the second one ends after that."""

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self.second_began = threading.Event()
        self.first_failed = threading.Event()
        self.created: list[str] = []

    def create(self, path: str, data: Bytes) -> None:
        if not self.second_began.is_set() and "policy_version=one" in path:
            assert self.second_began.wait(WAIT_S)
            self.first_failed.set()
            raise StoreFull("no space is left")
        self.second_began.set()
        assert self.first_failed.wait(WAIT_S)
        super().create(path, data)
        self.created.append(path)


def test_a_failed_file_is_told_once_nobody_writes_any_more() -> None:
    drive = Drive(grouping="mixed")
    for version in ("one", "two"):
        for member in range(2):
            drive.rollout(f"{version}-{member}", example_id=version, policy_version=version)
    plan = drive.assembler.plan(100, 1 << 30)
    assert plan is not None
    blobs = FirstIsFull(MemoryBlobs())
    place = Place("math", 0, 0, 1, "nonce", "name", "none")
    with ThreadPoolExecutor(2) as writers:
        flush = Flush(plan, place, blobs, writers, NoLog(), ManualClock(), 1.0, lambda _: None)
        with pytest.raises(StoreFull):
            put_files(flush)
        assert len(blobs.created) == 1
    assert flush.event is None
