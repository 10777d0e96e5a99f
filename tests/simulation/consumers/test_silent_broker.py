"""A broker that answers no question, and a store that hangs, hold neither the loop nor others."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

import pytest

from harness.failing_blobs import PassingBlobs
from harness.faults import Fate, FaultyBroker
from harness.held_workers import HeldWorkers
from harness.history import problems_of
from harness.sealing import TIMEOUT_S, SealWorld
from rollstream.consumers import InlineExecutor, Sealer
from rollstream.consumers.beside.context import ASK_S
from rollstream.consumers.beside.threads import CLAIMERS, SealerThreads
from rollstream.consumers.sealing.flush import Flush
from rollstream.consumers.sealing.partition import CHECK_EVERY_S, STEP_LASTS_S
from rollstream.runtime.clock import ManualClock
from rollstream.store.errors import StoreHangs
from rollstream.streams.broker import IDLE_S, Committed, Record, TopicPartition, TopicSpec
from rollstream.streams.damaged import next_readable
from rollstream.streams.errors import BrokerUnavailable, DamagedRecord
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.memory.broker import MemoryAdmin
from rollstream.streams.memory.member import MemoryGroupReader
from rollstream.streams.memory.reader import MemoryReader

P = ParamSpec("P")
T = TypeVar("T")
HANG_TIMEOUT_S = 300.0
LEAVES_WITHIN_S = 1.0  # Nothing is on its way any more but reports.


def sealer_with(
    world: SealWorld, monkeypatch: pytest.MonkeyPatch, *, askers: HeldWorkers, writers: HeldWorkers
) -> Sealer:
    """A sealer of which some threads stand still when the test says so."""

    def threads(cls: type[SealerThreads], workers: object, _: int) -> SealerThreads:
        return cls(writers, writers, writers, askers, InlineExecutor(), InlineExecutor())

    monkeypatch.setattr(SealerThreads, "of", classmethod(threads))
    return world.sealer()


def committed(world: SealWorld, partition: int) -> int:
    group, where = world.layout.sealer_group("math"), world.source(partition)
    found = world.broker.admin().committed(group, [where], TIMEOUT_S)
    return found[where].offset if found else 0


@pytest.mark.proves("F24")
def test_sealing_goes_on_while_the_broker_answers_no_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    askers = HeldWorkers()
    world = SealWorld(seal_timeout_s=5.0, min_group_size=1)
    sealer = sealer_with(world, monkeypatch, askers=askers, writers=HeldWorkers())
    world.run(sealer)
    askers.holding = True
    uids = ["a", "b", "c", "d", "alone"]
    for uid in uids[:4]:
        world.publish(uid, partition=0, example_id="one")
    world.publish("alone", partition=1)
    world.run(sealer, seconds=20)
    assert world.groups() == [("a", "b"), ("c", "d")], "nobody knows whether more was published"
    askers.go_on()
    world.run(sealer, seconds=5)
    assert ("alone",) in world.groups()
    assert (committed(world, 0), committed(world, 1)) == (4, 1)
    assert problems_of(world, uids) == []


def test_a_letter_that_is_not_delivered_holds_its_own_partition_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    askers = HeldWorkers()
    world = SealWorld()
    sealer = sealer_with(world, monkeypatch, askers=askers, writers=HeldWorkers())
    world.run(sealer)
    askers.holding = True
    world.put(b"no avro at all", partition=0)
    for uid in "ab":
        world.publish(uid, partition=1, example_id="one")
    world.run(sealer, seconds=20)
    assert (world.groups(), world.settled()) == ([("a", "b")], {})
    askers.go_on()
    world.run(sealer, seconds=5)
    assert world.settled() == {"unreadable": 1}


def test_a_sealer_leaves_at_once_though_no_report_arrives() -> None:
    world = SealWorld()
    reports = world.layout.reports("math")
    broker = FaultyBroker(
        world.new_broker(),
        lambda append: Fate.DROP if append.topic == reports else Fate.PASS,
        clock=world.clock,
    )
    sealer = world.sealer(broker=broker)
    for uid in "ab":
        world.publish(uid, partition=0, example_id="one")
    world.run(sealer, seconds=5)
    assert world.groups() == [("a", "b")]
    began_s = world.clock.monotonic_s()
    sealer.close()
    assert world.clock.monotonic_s() - began_s < LEAVES_WITHIN_S


@pytest.mark.proves("F24")
def test_a_sealer_whose_store_hangs_gives_its_partitions_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.consumers.sealing.sealer.ASK_S", 0.01)
    workers = HeldWorkers(begins=True)
    world = SealWorld()
    sealer = sealer_with(world, monkeypatch, askers=HeldWorkers(), writers=workers)
    world.run(sealer)
    workers.holding = True
    uids = ["a", "b"]
    for uid in uids:
        world.publish(uid, partition=0, example_id="one")
    with pytest.raises(StoreHangs, match=r"put_files has not ended since .* gives its partitions"):
        world.run(sealer, seconds=2 * HANG_TIMEOUT_S)
    sealer.close()
    assert re.search(r"put_files has not ended since .* does the store hang", sealer.left_behind)
    monkeypatch.undo()
    with world.sealer(store=PassingBlobs(world.blobs)) as successor:
        world.run(successor, seconds=5)
        assert world.groups() == [("a", "b")]
    workers.go_on()
    assert problems_of(world, uids) == []


def test_a_step_that_lasts_is_one_warning_with_its_partition(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workers = HeldWorkers(begins=True)
    world = SealWorld()
    sealer = sealer_with(world, monkeypatch, askers=HeldWorkers(), writers=workers)
    world.run(sealer)
    for part, seconds in ((0, STEP_LASTS_S - 2), (1, 3 * STEP_LASTS_S)):
        workers.holding = True
        for uid in "ab":
            world.publish(f"{part}{uid}", partition=part, example_id="one")
        world.run(sealer, seconds=seconds)
        workers.go_on()
        world.run(sealer)
    lasting = [line for line in caplog.messages if "has not ended" in line]
    (line,) = lasting
    assert line.startswith(f"{world.source(1)}: put_files has not ended since ")
    assert len(world.groups()) == 2


def test_a_flush_whose_files_are_written_one_by_one_is_no_trouble(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workers = HeldWorkers(begins=True)
    world = SealWorld()
    written = property(lambda _: int(world.clock.monotonic_s() / (STEP_LASTS_S - 2)))
    monkeypatch.setattr(Flush, "went_on", written)
    sealer = sealer_with(world, monkeypatch, askers=HeldWorkers(), writers=workers)
    world.run(sealer)
    workers.holding = True
    for uid in "ab":
        world.publish(uid, partition=0, example_id="one")
    world.run(sealer, seconds=2 * HANG_TIMEOUT_S)
    workers.go_on()
    world.run(sealer)
    assert world.groups() == [("a", "b")]
    assert not [line for line in caplog.messages if "has not ended" in line]


@pytest.mark.proves("F24")
def test_a_sealer_with_nothing_left_to_seal_leaves_a_store_that_hangs_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.consumers.sealing.sealer.ASK_S", 0.01)
    workers = HeldWorkers(begins=True)
    world = SealWorld()
    kafka = world.config.kafka.model_copy(update={"timeout_s": 0.2})
    world.config = world.config.model_copy(update={"kafka": kafka})
    sealer = sealer_with(world, monkeypatch, askers=HeldWorkers(), writers=workers)
    world.run(sealer)
    workers.holding = True
    sealer.close()
    assert sealer.left_behind == "the last write of scores of math: does the store hang?"


@pytest.mark.proves("F24")
def test_a_sealer_that_leaves_a_silent_leader_behind_blames_no_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.consumers.sealing.sealer.ASK_S", 0.01)
    world, claimers, inline = SealWorld(), HeldWorkers(begins=True), InlineExecutor()
    threads = SealerThreads(inline, claimers, inline, inline, inline, inline)
    monkeypatch.setattr(SealerThreads, "of", lambda workers, _: threads)
    claimers.holding = True
    sealer = world.sealer()
    world.run(sealer)
    sealer.close()
    for number in range(2):
        assert f"{world.source(number)}: the seal log is read since" in sealer.left_behind
    assert "store" not in sealer.left_behind


class HangingReads(MemoryBroker):
    """Who asks for a second time where the ``silent`` log ends waits until ``answers`` is set."""

    def __init__(self, world: SealWorld) -> None:
        super().__init__(world.logs)
        self.asked, self.answers = Event(), Event()
        self.silent: TopicPartition | None = None
        self._has_led = False

    def reader(
        self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
    ) -> MemoryReader:
        reader = super().reader(starts, idle_s=idle_s)
        all_bounds = reader.all_bounds

        def when_answered(
            logs: Collection[TopicPartition], timeout_s: float
        ) -> dict[TopicPartition, tuple[int, int]]:
            if self._has_led and self.silent in logs:
                self.asked.set()
                self.answers.wait(TIMEOUT_S)
            self._has_led |= self.silent in logs
            return all_bounds(logs, timeout_s)

        vars(reader).update(all_bounds=when_answered)
        return reader


@pytest.mark.proves("F24")
def test_a_log_that_is_not_read_to_compare_it_with_manifests_is_told_as_no_store_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.consumers.sealing.sealer.ASK_S", 0.01)
    world, inline = SealWorld(partitions=1), InlineExecutor()
    with world.sealer() as before:
        for uid in "ab":
            world.publish(uid, example_id="one")
        world.run(before, seconds=5)
    broker, claimers = HangingReads(world), ThreadPoolExecutor(1)
    threads = SealerThreads(inline, claimers, inline, inline, inline, inline)
    monkeypatch.setattr(SealerThreads, "of", lambda workers, _: threads)
    sealer = world.sealer(broker=broker)
    broker.silent = TopicPartition(world.layout.groups("math"), 0)
    world.run(sealer)
    assert broker.asked.wait(TIMEOUT_S)
    sealer.close()
    broker.answers.set()
    claimers.shutdown()
    assert f"{world.source(0)}: the seal log is read since" in sealer.left_behind
    assert "store" not in sealer.left_behind


class SilentLeader(MemoryBroker):
    """Nobody says where the ``silent`` log ends, and a question takes all of its time."""

    def __init__(self, world: SealWorld) -> None:
        super().__init__(world.logs)
        self.asked_s = list[float]()
        self._clock = world.clock
        self.silent: TopicPartition | None = None

    def reader(
        self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
    ) -> MemoryReader:
        reader = super().reader(starts, idle_s=idle_s)
        all_bounds = reader.all_bounds

        def unless_silent(
            logs: Collection[TopicPartition], timeout_s: float
        ) -> dict[TopicPartition, tuple[int, int]]:
            if self.silent not in logs:
                return all_bounds(logs, timeout_s)
            self.asked_s.append(timeout_s)
            self._clock.advance(timeout_s)
            raise BrokerUnavailable("the test's leader is silent")

        vars(reader).update(all_bounds=unless_silent)
        return reader


class SlowCoordinator(MemoryBroker):
    """A coordinator takes a second for each question, however many partitions it names."""

    def admin(self) -> MemoryAdmin:
        admin = super().admin()
        committed = admin.committed

        def in_a_second(*args: Any) -> dict[TopicPartition, Committed]:
            cast(ManualClock, self.logs.clock).advance(1.0)
            return committed(*args)

        vars(admin).update(committed=in_a_second)
        return admin


def test_a_sealer_adopts_many_partitions_with_one_answer_of_a_slow_coordinator() -> None:
    world = SealWorld(partitions=16)
    broker = SlowCoordinator(world.logs)
    sealer = world.sealer(broker=broker)
    for uid in "ab":
        world.publish(uid, partition=15, example_id="one")
    world.run(sealer, seconds=3)
    assert world.groups() == [("a", "b")]
    assert [one.position for one in sealer.stats().partitions] == [0] * 15 + [2]


@pytest.mark.proves("F24")
def test_a_claim_without_an_answer_is_given_up_soon_and_tried_again_where_no_other_claim_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, lookers, inline = SealWorld(partitions=2), HeldWorkers(), InlineExecutor()
    lookers.holding = True
    threads = SealerThreads(inline, inline, lookers, inline, inline, inline)
    monkeypatch.setattr(SealerThreads, "of", lambda workers, _: threads)
    broker = SilentLeader(world)
    sealer = world.sealer(broker=broker)
    broker.silent = TopicPartition(world.layout.groups("math"), 0)
    for uid in "ab":
        world.publish(uid, partition=1, example_id="one")
    world.run(sealer, seconds=10)
    assert world.groups() == [("a", "b")]
    assert sum(broker.asked_s) < 3.1, "of the first claim; the next one is held"
    lookers.go_on()
    world.run(sealer, seconds=1)
    assert sum(broker.asked_s) > 6.0, "a leader that is slow has longer"


@pytest.mark.proves("F24")
def test_a_look_that_waits_behind_silent_leaders_holds_up_no_flush_of_its_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, lookers, inline = SealWorld(partitions=1), HeldWorkers(), InlineExecutor()
    threads = SealerThreads(inline, inline, lookers, inline, inline, inline)
    monkeypatch.setattr(SealerThreads, "of", lambda workers, _: threads)
    sealer = world.sealer()
    world.run(sealer)
    lookers.holding = True
    world.run(sealer, seconds=2 * CHECK_EVERY_S)
    for uid in "ab":
        world.publish(uid, partition=0, example_id="one")
    world.run(sealer, seconds=5)
    assert world.groups() == [("a", "b")]
    lookers.go_on()
    world.run(sealer, seconds=2 * CHECK_EVERY_S)
    assert problems_of(world, ["a", "b"]) == []


@pytest.mark.proves("F24")
def test_a_claim_that_waits_behind_silent_leaders_does_not_begin_once_its_sealer_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.consumers.sealing.sealer.ASK_S", 0.01)
    world, inline = SealWorld(partitions=1), InlineExecutor()
    kafka = world.config.kafka.model_copy(update={"timeout_s": 0.2})
    world.config = world.config.model_copy(update={"kafka": kafka})
    go_on, lookers = Event(), ThreadPoolExecutor(1)
    lookers.submit(go_on.wait)  # For another leader.
    threads = SealerThreads(inline, inline, lookers, inline, inline, inline)
    monkeypatch.setattr(SealerThreads, "of", lambda workers, _: threads)
    broker = SilentLeader(world)
    sealer = world.sealer(broker=broker)
    broker.silent = where = TopicPartition(world.layout.groups("math"), 0)
    try:
        world.run(sealer, seconds=10)
        broker.silent = None
        sealer.close()
        end = world.logs.bounds(where)[1]
    finally:
        go_on.set()
        lookers.shutdown()
    assert world.logs.bounds(where)[1] == end


class Damaged(MemoryBroker):
    """Members read a damaged record of each of these partitions once."""

    def __init__(self, world: SealWorld) -> None:
        super().__init__(world.logs)
        self.damaged: list[TopicPartition] = []

    def group_reader(
        self, group: str, topics: Sequence[str], *, on_revoked: Callable[[TopicPartition], None]
    ) -> MemoryGroupReader:
        reader = super().group_reader(group, topics, on_revoked=on_revoked)
        poll = reader.poll

        def damaged_poll(records_max: int, timeout_s: float) -> list[Record]:
            if self.damaged:
                raise DamagedRecord(self.damaged.pop(), 0, "the test's checksum")
            return poll(records_max, timeout_s)

        vars(reader).update(poll=damaged_poll)
        return reader


class SearchesHang(InlineExecutor):
    """A search in a damaged log keeps its thread; of no thread that is left, no job is run."""

    def __init__(self, threads: int) -> None:
        self._left = threads

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if fn is next_readable and self._left:
            self._left -= 1
            hanging: Future[T] = Future()
            hanging.set_running_or_notify_cancel()
            return hanging
        return super().submit(fn, *args, **kwargs) if self._left else Future()


def test_searches_in_damaged_logs_whose_leaders_are_silent_hold_up_no_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, inline = SealWorld(partitions=4), InlineExecutor()
    claimers, beside = SearchesHang(CLAIMERS), SearchesHang(1)
    threads = SealerThreads(inline, claimers, inline, inline, inline, beside)
    monkeypatch.setattr(SealerThreads, "of", lambda workers, _: threads)
    broker = Damaged(world)
    sealer = world.sealer(broker=broker)
    monkeypatch.undo()
    with world.sealer() as other:
        world.run(sealer, other, seconds=20)
        mine = [one.partition for one in sealer.stats().partitions]
        assert len(mine) == 2
        broker.damaged = [world.source(number) for number in mine]
        world.run(sealer, other, seconds=5)
    (first, *_) = {*range(4)} - {*mine}
    for uid in "ab":
        world.publish(uid, partition=first, example_id="one")
    world.run(sealer, seconds=20)
    assert world.groups() == [("a", "b")]


def test_a_sealer_that_ends_while_the_broker_is_away_blames_no_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = SealWorld()
    asked_s = list[float]()

    def no_answer(admin: MemoryAdmin, names: object, timeout_s: float) -> NoReturn:
        asked_s.append(timeout_s)
        world.clock.advance(timeout_s)
        raise BrokerUnavailable("the test's broker is away")

    sealer = world.sealer()
    world.run(sealer, seconds=5)
    monkeypatch.setattr(MemoryAdmin, "describe", no_answer)
    sealer.close()
    assert asked_s == [ASK_S]
    assert sealer.left_behind == ""


@pytest.mark.proves("F24")
def test_a_sealer_that_leaves_a_silent_broker_behind_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.consumers.sealing.sealer.ASK_S", 0.01)
    world, answers = SealWorld(), Event()
    kafka = world.config.kafka.model_copy(update={"timeout_s": 0.2})
    world.config = world.config.model_copy(update={"kafka": kafka})
    inline, workers = InlineExecutor(), ThreadPoolExecutor(1)
    threads = SealerThreads(workers, inline, inline, inline, inline, inline)
    monkeypatch.setattr(SealerThreads, "of", lambda workers, _: threads)
    sealer = world.sealer()
    world.run(sealer)

    def no_answer(admin: MemoryAdmin, names: object, timeout_s: float) -> dict[str, TopicSpec]:
        answers.wait(TIMEOUT_S)
        return {}

    monkeypatch.setattr(MemoryAdmin, "describe", no_answer)
    sealer.close()
    answers.set()
    workers.shutdown()
    assert sealer.left_behind == "the last write of scores of math: the broker does not answer"
