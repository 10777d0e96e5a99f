"""The step of a flush that creates files, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar, cast

import pytest

from harness.assembling import Drive
from harness.entropy import SeededEntropy
from harness.failing_blobs import PassingBlobs
from harness.sealing import SealWorld
from rollstream.consumers import InlineExecutor
from rollstream.consumers.beside.lasting import Lasting
from rollstream.consumers.beside.threads import SealerThreads
from rollstream.consumers.retention.decisions import DecisionLogs
from rollstream.consumers.sealing.budget import MemoryBudget
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.dead_letters import DeadLetters
from rollstream.consumers.sealing.ends import Ends
from rollstream.consumers.sealing.flush import STEPS, Flush, put_files
from rollstream.consumers.sealing.partition import STEP_LASTS_S
from rollstream.consumers.sealing.reports_log import ReportsLog
from rollstream.consumers.sealing.rows import FlushTarget
from rollstream.consumers.sealing.scratch import Scratch
from rollstream.consumers.sealing.stats import SealerCounters
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs, Bytes, Pieces, RollUps, StoreFull
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.owned.appends import Appends
from rollstream.streams.owned.clients import OwnerClients
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.topics.layout import Layout

LASTS_S = 0.3
WAIT_S = 30.0
P = ParamSpec("P")
T = TypeVar("T")


class RequestedColumns(ThreadPoolExecutor):
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

    def create(self, path: str, data: Bytes | Pieces) -> None:
        if "policy_version=one" in path:
            raise StoreFull("no space is left")
        self.asked_too_early = self._asked.wait(LASTS_S)
        super().create(path, data)
        self.created.append(path)


def context(blobs: Blobs, writers: Executor) -> SealerContext:
    clock = ManualClock()
    broker = MemoryBroker(MemoryLogs(clock))
    config = SealWorld().config
    inline, clients = InlineExecutor(), OwnerClients(broker)
    return SealerContext(
        environment="math",
        config=EnvironmentConfig(),
        layout=Layout(),
        broker=broker,
        blobs=blobs,
        clock=clock,
        entropy=SeededEntropy(0),
        owner="tests",
        root_id="root",
        timeout_s=1.0,
        threads=SealerThreads(inline, inline, inline, inline, writers, inline),
        appends=Appends(InlineExecutor(), clock, 1.0),
        clients=clients,
        ends=Ends(clients, inline, clock, 1.0),
        memory=MemoryBudget(0),
        scratch=Scratch(clock),
        letters=DeadLetters(broker, Layout().dead_letters(), clock, InlineExecutor()),
        reports=ReportsLog(broker, Layout().reports("math"), clock),
        counters=SealerCounters(),
        decisions=DecisionLogs(config, broker),
    )


def test_a_failed_file_is_told_once_nobody_writes_any_more() -> None:
    drive = Drive(grouping="mixed")
    for version in ("one", "two"):
        for member in range(2):
            drive.rollout(f"{version}-{member}", example_id=version, policy_version=version)
    plan = drive.plan(100, 1 << 30)
    assert plan is not None
    target = FlushTarget(PartitionAddress("math", 1, 0), 1, "nonce", "name", "none", "root")
    with RequestedColumns() as writers:
        blobs = FirstIsFull(MemoryBlobs(), writers.asked)
        shared = context(blobs, writers)
        log = OwnedLog(  # Not claimed: an event would be refused.
            shared.broker,
            shared.layout.groups_log(target.address),
            owner=shared.owner,
            make_fold=lambda: SealFold(dedupe_horizon=1),
            entropy=shared.entropy,
        )
        rollups = RollUps(blobs, target.address)
        flush = Flush(plan, target, STEPS, shared, log, lambda _: None, rollups, begun_s=0.0)
        with pytest.raises(StoreFull):
            put_files(flush)
        assert not blobs.asked_too_early
        assert len(blobs.created) == 1
    assert flush.event is None


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = Deadline(WAIT_S)
    while not holds():
        assert not deadline.passed()
        deadline.wait(0.001)


class OneByOne(PassingBlobs):
    """Each create waits until it is let through."""

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self.let = threading.Semaphore(0)

    def create(self, path: str, data: Bytes | Pieces) -> None:
        assert self.let.acquire(timeout=WAIT_S)
        super().create(path, data)


def test_many_files_that_are_written_slowly_are_no_store_that_hangs() -> None:
    files, drive = 12, Drive(grouping="mixed")
    for number in range(files):
        for member in range(2):
            uid, version = f"{number}-{member}", f"v{number}"
            drive.rollout(uid, example_id=version, policy_version=version)
    plan = drive.plan(100, 1 << 30)
    assert plan is not None
    target = FlushTarget(PartitionAddress("math", 1, 0), 1, "nonce", "name", "none", "root")
    blobs = OneByOne(MemoryBlobs())
    with ThreadPoolExecutor(1) as writers, ThreadPoolExecutor(1) as workers:
        shared, log = context(blobs, writers), cast("OwnedLog[SealFold]", None)
        rollups = RollUps(blobs, target.address)
        flush = Flush(plan, target, STEPS, shared, log, lambda _: None, rollups, begun_s=0.0)
        clock = ManualClock()
        lasting = Lasting(clock)
        job = workers.submit(put_files, flush)

        def has_written(count: int) -> bool:
            return job.running() and flush.went_on == count

        for written in range(files):
            wait_until(partial(has_written, written))
            lasting.look(job, flush.went_on)
            assert not lasting.is_long(1.0), written
            clock.advance(STEP_LASTS_S - 1.0)
            lasting.look(job, flush.went_on)
            assert not lasting.is_long(STEP_LASTS_S), written
            if written == files - 1:
                clock.advance(1.0)
                lasting.look(job, flush.went_on)
                assert lasting.is_long(STEP_LASTS_S), "nothing went on"
            blobs.let.release()
        job.result(WAIT_S)
