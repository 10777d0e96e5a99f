"""What hinders a sealer is told with the offsets that it commits, where `status` reads it."""

from __future__ import annotations

import errno
import gc
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from harness.failing_blobs import FullBlobs, PassingBlobs
from harness.faults import Append, Fate, FaultyBroker
from harness.sealing import TIMEOUT_S, SealWorld
from rollstream.consumers import InlineExecutor
from rollstream.consumers.beside.threads import SealerThreads
from rollstream.consumers.retention.owner import READ_TIMEOUT_S
from rollstream.consumers.sealing.intake import Intake
from rollstream.consumers.sealing.score_files import EVERY_S
from rollstream.producers import ScoreProducer
from rollstream.runtime.deadline import Deadline
from rollstream.status import measure, stuck_stages
from rollstream.store import BlobInfo, Blobs, Bytes, LocalBlobs, Pieces
from rollstream.store.errors import StoreFull
from rollstream.streams.broker import IDLE_S, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.memory.member import MemoryGroupReader
from rollstream.streams.memory.reader import MemoryReader

TOLD_WITHIN_S = 10.0
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Hanging(InlineExecutor):
    """Jobs that never end, once ``hangs``; they begin, unless they are ``queued``."""

    hangs = queued = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        if not self.hangs:
            return super().submit(fn, *args, **kwargs)
        future: Future[_T] = Future()
        if not self.queued:
            future.set_running_or_notify_cancel()
        return future


class Stopped(BaseException):
    """The job of a thread that never ends: what is beside it goes on."""


class HangingIn(InlineExecutor):
    """Jobs never end that raise ``Stopped``: they are ``held``."""

    def __init__(self) -> None:
        self.held: list[Future[Any]] = []

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except Stopped:
            future: Future[_T] = Future()
            future.set_running_or_notify_cancel()
            self.held.append(future)
            return future


class SilentBroker(MemoryBroker):
    """Requests of consumer groups wait for all of their time, while it is ``silent``."""

    silent = False

    def __init__(self, world: SealWorld) -> None:
        super().__init__(world.logs)
        self.clock = world.clock

    def group_reader(
        self, group: str, topics: Sequence[str], *, on_revoked: Callable[[TopicPartition], None]
    ) -> MemoryGroupReader:
        reader = super().group_reader(group, topics, on_revoked=on_revoked)
        commit = reader.commit

        def slow_commit(where: TopicPartition, offset: int, note: str) -> Future[bool]:
            return Future() if self.silent else commit(where, offset, note)

        vars(reader).update(commit=slow_commit)
        return reader

    def reader(
        self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
    ) -> MemoryReader:
        reader = super().reader(starts, idle_s=idle_s)
        bounds = reader.bounds

        def no_bounds(where: TopicPartition, timeout_s: float) -> tuple[int, int]:
            if self.silent and ".rollouts." in where.topic:
                raise BrokerUnavailable("the test's broker does not answer")
            return bounds(where, timeout_s)

        vars(reader).update(bounds=no_bounds)
        return reader


def stuck(world: SealWorld) -> list[str]:
    figures = measure(world.broker, world.config, Deadline(TIMEOUT_S, world.clock))
    return [f"{one.stage}: {one.reason}" for one in stuck_stages(figures, world.config)]


def publish(world: SealWorld, name: str) -> None:
    for one in "ab":
        world.publish(f"{name}{one}", partition=0, example_id=name)


def copied(blobs: Blobs, root: Path) -> LocalBlobs:
    """The same blobs on a disk."""
    local = LocalBlobs(root)
    for blob in blobs.list(""):
        local.create(blob.path, blobs.read(blob.path))
    return local


@pytest.mark.proves("F24")
def test_a_full_disk_is_told_while_it_lasts() -> None:
    world = SealWorld()
    disk = FullBlobs(world.blobs)
    disk.refusing = False
    sealer = world.sealer(store=disk)
    publish(world, "first")
    world.run(sealer, seconds=5)
    disk.refusing = True
    publish(world, "second")
    world.run(sealer, seconds=30)
    (told,) = stuck(world)
    assert told.startswith("sealers: nothing of math[0] is sealed; sealer-1 says why: ")
    assert "the test's disk is full" in told
    disk.refusing = False
    world.run(sealer, seconds=30)
    assert stuck(world) == []
    assert len(world.groups()) == 2
    sealer.close()


@pytest.mark.proves("F24")
def test_a_successor_takes_back_what_a_dead_sealer_told() -> None:
    world = SealWorld()
    disk = FullBlobs(world.blobs)
    publish(world, "first")
    broker = world.new_broker()
    world.run(world.sealer(store=disk, broker=broker), seconds=30)
    assert "disk is full" in str(stuck(world))
    broker.close()
    world.logs.group(world.layout.sealer_group("math")).leave(0, world.logs.partition_counts())
    assert "disk is full" not in str(stuck(world))
    with world.sealer() as successor:
        world.run(successor, seconds=30)
        assert stuck(world) == []


@pytest.mark.proves("F24")
def test_a_hung_store_is_told() -> None:
    world = SealWorld()
    workers = Hanging()
    sealer = world.sealer(workers=workers)
    world.run(sealer, seconds=5)
    workers.hangs = True
    publish(world, "first")
    world.run(sealer, seconds=TOLD_WITHIN_S)
    assert "put_files has not ended since" in str(stuck(world))


@pytest.mark.proves("F24")
def test_a_store_that_hangs_while_a_log_is_claimed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SealWorld(partitions=1)
    store = SomeFail(world.blobs, "manifests/", Stopped())
    inline, claimers = InlineExecutor(), HangingIn()
    threads = SealerThreads(inline, claimers, inline, inline, inline, inline)
    monkeypatch.setattr(SealerThreads, "of", lambda workers, _: threads)
    sealer = world.sealer(store=store)
    world.run(sealer, seconds=TOLD_WITHIN_S)
    told = str(stuck(world))
    assert "the look for manifests has not ended since" in told
    assert "does the store hang" in told


@pytest.mark.proves("F24")
@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (errno.ENOSPC, "free some or move the root"),
        (errno.EMFILE, "LimitNOFILE= of its systemd unit"),
        (errno.ENFILE, "sysctl fs.file-max"),
    ],
)
def test_a_write_that_fails_is_told_with_its_remedy_and_since_when(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: int, remedy: str
) -> None:
    world = SealWorld()
    world.blobs = copied(world.blobs, tmp_path / "root")
    sealer = world.sealer()
    world.run(sealer, seconds=5)

    def refuse(file: int) -> None:
        raise OSError(error, os.strerror(error), str(file))

    monkeypatch.setattr(os, "fsync", refuse)
    publish(world, "first")
    world.run(sealer, seconds=TOLD_WITHIN_S)
    monkeypatch.undo()
    (told,) = stuck(world)
    assert remedy in told
    assert re.search(r"\(since \d\d:\d\d:\d\d UTC\)", told)


@pytest.mark.proves("F24")
def test_a_claim_that_reads_for_long_is_no_store_that_hangs() -> None:
    world = SealWorld()

    class Unread(MemoryBroker):
        """The seal log of partition 1 is never read to its end."""

        def reader(
            self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
        ) -> MemoryReader:
            reader = super().reader(starts, idle_s=idle_s)
            bounds = reader.bounds

            def no_bounds(where: TopicPartition, timeout_s: float) -> tuple[int, int]:
                if not starts and where == TopicPartition(world.layout.groups("math"), 1):
                    raise Stopped  # A reader that owners share.
                return bounds(where, timeout_s)

            vars(reader).update(bounds=no_bounds)
            return reader

    sealer = world.sealer(broker=Unread(world.logs), workers=HangingIn())
    publish(world, "first")
    world.run(sealer, seconds=90)
    (told,) = stuck(world)
    assert told.startswith("sealers: nothing of math[1] is sealed; ")
    assert "says why: the seal log is read since " in told


@pytest.mark.proves("F24")
def test_an_append_that_is_not_confirmed_is_no_store_that_hangs() -> None:
    world = SealWorld()

    def decide(append: Append) -> Fate:
        return Fate.LOSE_REPORT if append.topic == world.layout.groups("math") else Fate.PASS

    broker = FaultyBroker(world.new_broker(), clock=world.clock)
    sealer = world.sealer(broker=broker)
    world.run(sealer, seconds=5)
    broker.decide = decide
    publish(world, "first")
    world.run(sealer, seconds=15)
    (told,) = stuck(world)
    assert "the broker has not confirmed since" in told


@pytest.mark.proves("F24")
def test_a_step_that_waits_for_those_of_other_partitions_is_no_store_that_hangs() -> None:
    world = SealWorld()
    workers = Hanging()
    sealer = world.sealer(workers=workers)
    world.run(sealer, seconds=5)
    workers.hangs = workers.queued = True
    publish(world, "first")
    world.run(sealer, seconds=90)
    told = stuck(world)
    assert told
    assert all("until those of other partitions have ended" in one for one in told)


def test_a_sealer_whose_broker_is_away_waits_for_no_commit() -> None:
    world = SealWorld(partitions=4, seal_timeout_s=1.0)
    broker = SilentBroker(world)
    sealer = world.sealer(broker=broker)
    for partition in range(4):
        world.publish(f"one-{partition}", partition=partition)
    world.run(sealer, seconds=0.5)
    broker.silent = True
    longest_s, end_s = 0.0, world.clock.monotonic_s() + 60
    while (begun_s := world.clock.monotonic_s()) < end_s:
        sealer.step(Deadline(0.05, world.clock))
        longest_s = max(longest_s, world.clock.monotonic_s() - begun_s)
    assert longest_s < 1.0


class SomeFail(PassingBlobs):
    """Calls of the store about these paths raise what the test says."""

    def __init__(self, inner: Blobs, part: str, error: BaseException) -> None:
        super().__init__(inner)
        self.error: BaseException | None = error
        self._part = part

    def create(self, path: str, data: Bytes | Pieces) -> None:
        self._fail(path)
        self.inner.create(path, data)

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        self._fail(prefix)
        return self.inner.list(prefix, after=after, limit=limit)

    def _fail(self, path: str) -> None:
        if self.error is not None and path.startswith(self._part):
            raise self.error


@pytest.mark.proves("F24")
@pytest.mark.parametrize(("part", "job"), [("scores/", "scores"), ("retired/", "retired files")])
def test_a_job_that_fails_again_and_again_is_told_while_sealing_goes_on(
    part: str, job: str
) -> None:
    world = SealWorld()
    store = SomeFail(world.blobs, part, StoreFull("the test's disk is full"))
    with ScoreProducer(environment="math", scorer="test", broker=world.broker) as scorer:
        scorer.publish(rollout_uid="firsta", reward=1.0)
    with world.sealer(store=store) as sealer:
        world.run(sealer, seconds=10)
        publish(world, "first")
        world.run(sealer, seconds=2)
        assert len(world.groups()) == 1
        (told,) = stuck(world)
        assert told.startswith("sealers: math[0], math[1] is sealed; sealer-1 says what else fails")
        assert f"the job '{job}' fails since " in told
        assert told.endswith("the test's disk is full")
        store.error = None
        world.run(sealer, seconds=EVERY_S + 5)
        assert stuck(world) == []


@pytest.mark.proves("F24")
def test_a_job_that_hangs_beside_sealing_is_told_after_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = SealWorld(partitions=1)
    store = SomeFail(world.blobs, "retired/", Stopped())
    inline = InlineExecutor()
    threads = SealerThreads(inline, inline, inline, inline, inline, HangingIn())
    monkeypatch.setattr(SealerThreads, "of", lambda workers, _: threads)
    sealer = world.sealer(store=store)
    publish(world, "first")
    world.run_now_and_then(sealer, seconds=READ_TIMEOUT_S - 10)
    assert stuck(world) == []
    world.run_now_and_then(sealer, seconds=20)
    (told,) = stuck(world)
    assert "says what else fails: the job 'retired files' has not ended since" in told
    assert "does the store hang" in told


@pytest.mark.proves("F24")
def test_a_job_that_hangs_is_told_after_another_sealer_took_its_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = SealWorld()
    store = SomeFail(world.blobs, "retired/environment=math/generation=1/partition=1/", Stopped())
    inline = InlineExecutor()
    threads = SealerThreads(inline, inline, inline, inline, inline, HangingIn())
    monkeypatch.setattr(SealerThreads, "of", lambda workers, _: threads)
    sealer = world.sealer(store=store)
    publish(world, "first")
    world.run_now_and_then(sealer, seconds=READ_TIMEOUT_S + 10)
    assert "the job 'retired files' has not ended since" in str(stuck(world))
    monkeypatch.undo()
    other = world.sealer()
    world.run(sealer, other, seconds=20)
    assert [len(one.stats().partitions) for one in (sealer, other)] == [1, 1]
    (told,) = stuck(world)
    assert "sealer-1 says what else fails: the job 'retired files' has not ended since" in told


@pytest.mark.proves("I8")
def test_nothing_of_a_partition_stays_in_memory_once_its_abandoned_job_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = SealWorld()
    inline, turns = InlineExecutor(), HangingIn()
    threads = SealerThreads(inline, inline, inline, inline, inline, turns)
    monkeypatch.setattr(SealerThreads, "of", lambda workers, _: threads)
    store = SomeFail(world.blobs, "retired/environment=math/generation=1/partition=1/", Stopped())
    with world.sealer(store=store) as sealer:
        world.run(sealer, seconds=5)
        monkeypatch.undo()
        with world.sealer() as other:
            world.run(sealer, other, seconds=20)
            assert [len(one.stats().partitions) for one in (sealer, other)] == [1, 1]
            store.error = None  # Its traceback has what the job used.
            turns.held.pop().set_result(None)
            gc.collect()
            assert sum(isinstance(one, Intake) for one in gc.get_objects()) == 2


@pytest.mark.proves("F24")
def test_a_folder_for_payloads_that_takes_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SealWorld(partitions=1, seal_timeout_s=60.0, expire_after_s=60.0, target_group_size=3)
    sealers = world.config.sealers.model_copy(update={"memory_bytes": 1})
    world.config = world.config.model_copy(update={"sealers": sealers})
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with world.sealer() as sealer:
        publish(world, "first")
        world.run(sealer, seconds=10)
        (told,) = stuck(world)
        assert "math[0] is sealed; sealer-1 says what else fails: payloads stay in memory" in told
        assert "make room in TMPDIR (/nowhere)" in told
        world.run(sealer, seconds=70)
        assert stuck(world) == []
