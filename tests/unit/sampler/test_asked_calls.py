"""What the broker is asked for calls that append nothing, while others decide."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from queue import Queue
from typing import NoReturn

import pytest

from harness.faults import FaultyBroker
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of, new_name
from rollstream.runtime.clock import Clock, ManualClock, SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler import Sampler
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.command import Command
from rollstream.sampler.decide.queries.looks import AskStats, Flush
from rollstream.sampler.decide.trainer.commands import Resume
from rollstream.sampler.engine.in_process import OwnerInProcess
from rollstream.sampler.engine.logs import SamplerLogs
from rollstream.sampler.errors import SamplerUnavailable
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import Fenced
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.memory.reader import MemoryReader
from rollstream.streams.owned.follow import Follower
from rollstream.streams.owned.lending import SERVE_S

WAIT_S = 30.0


class HeldLogs(MemoryLogs):
    """Does not say where logs of ``held`` in their name end until it is released, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.held = "no log"
        self.asked, self.released = threading.Event(), threading.Event()
        self.questions = Counter[str]()

    @property
    def watched(self) -> int:
        """By how many readers."""
        return len(self._waiters)

    def bounds(self, where: TopicPartition) -> tuple[int, int]:
        self.questions[where.topic] += 1
        if self.held in where.topic:
            self.asked.set()
            assert self.released.wait(WAIT_S)
        return super().bounds(where)


class World(LocalWorld):
    """Eight groups, of which two are served."""

    def __init__(self) -> None:
        self.logs = HeldLogs()
        self.faulty = FaultyBroker(MemoryBroker(self.logs))
        super().__init__(self.faulty, MemoryBlobs(), config_of("file:///unused", new_name()))
        self.sealer = self.writer()
        self.seal(8)

    def seal(self, count: int) -> None:
        self.sealer.flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(count)))

    def owner(self, clock: Clock | None = None) -> OwnerInProcess:
        return OwnerInProcess(
            self.name,
            self.config,
            broker=self.faulty,
            store=self.store,
            clock=clock or SystemClock(),
            entropy=SystemEntropy(),
        )


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.logs.released.set()
    made.close()


@pytest.mark.parametrize(
    ("held", "call"),
    [
        ("sampler", Sampler.stats),
        ("sampler", Sampler.progress),
        ("sampler", Sampler.evaluations),
        ("sampler", Sampler.flush),
        ("groups", Sampler.flush),
        ("sampler", partial(Sampler.next_batch, step=0, num_groups=2)),
    ],
)
def test_a_decision_does_not_wait_for_the_end_of_a_log_that_a_call_beside_it_asks_for(
    held: str, call: Callable[[Sampler], object], world: World
) -> None:
    sampler = world.successor()
    sampler.resume(None)
    batch = sampler.next_batch(0, num_groups=2)
    world.logs.held = held
    with ThreadPoolExecutor(2) as threads:
        look = threads.submit(call, sampler)
        assert world.logs.asked.wait(WAIT_S)
        try:
            threads.submit(sampler.ack, batch).result(WAIT_S / 3)
            assert not look.done()
        finally:
            world.logs.released.set()
        look.result(WAIT_S)
    sampler.close()


def test_flush_beside_a_thread_that_reads_reads_no_event_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = world.owner()
    owner.execute(Resume(checkpointed_step=None), 0.0)
    reading = threading.Event()
    monkeypatch.setattr(world.faulty, "before_read", reading.set)
    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(owner.follow, WAIT_S)
        assert reading.wait(WAIT_S)
        before = world.faulty.records_read
        owner.execute(Flush(), 0.0)
        assert (world.faulty.records_read - before, following.done()) == (0, False)
        world.seal(3)
        owner.execute(Flush(), 0.0)
        assert sum(owner.execute(AskStats(), 0.0).value.ready.values()) == 11
    owner.close()


@pytest.mark.proves("I4")
@pytest.mark.parametrize(
    "command",
    [AskStats(), Flush(), NextBatch(step=0, num_groups=2), NextBatch(step=7, num_groups=2)],
)
def test_no_call_that_begins_after_a_takeover_is_answered_by_what_was_asked_before_it(
    command: Command[object], world: World
) -> None:
    first, successor = world.owner(), world.owner()
    first.execute(NextBatch(step=0, num_groups=2), 0.0)
    first.execute(AskStats(), 0.0)
    first.execute(Flush(), 0.0)
    successor.execute(Resume(checkpointed_step=None), 0.0)
    with pytest.raises(Fenced, match="taken over"):
        first.execute(command, 0.0)
    for owner in (first, successor):
        owner.close()


def test_calls_that_come_together_ask_once_who_owns_the_log(world: World) -> None:
    owner = world.owner()
    owner.execute(Resume(checkpointed_step=None), 0.0)
    calls = [owner.begin(AskStats()) for _ in range(8)]
    world.logs.questions.clear()
    for call in calls:
        owner.decide(call)
    asked = {topic for topic in world.logs.questions if "sampler" in topic}
    assert [world.logs.questions[topic] for topic in asked] == [1]
    owner.close()


def test_a_close_waits_for_what_the_broker_is_asked_and_leaves_no_reader(world: World) -> None:
    before = world.logs.watched
    owner = world.owner()
    owner.execute(Resume(checkpointed_step=None), 0.0)
    world.logs.held = "sampler"
    with ThreadPoolExecutor(2) as threads:
        look = threads.submit(owner.execute, AskStats(), 0.0)
        assert world.logs.asked.wait(WAIT_S)
        closing = threads.submit(owner.close)
        try:
            assert wait([closing], 0.3).not_done, "the broker would be closed beside who asks it"
        finally:
            world.logs.released.set()
        closing.result(WAIT_S)
        with pytest.raises(SamplerUnavailable, match="is closed"):
            look.result(WAIT_S)
    assert world.logs.watched == before


@pytest.mark.parametrize("command", [AskStats(), Flush()])
def test_nothing_is_asked_for_a_call_whose_sampler_was_closed_meanwhile(
    command: Command[object], world: World
) -> None:
    before = world.logs.watched
    owner = world.owner()
    owner.execute(Resume(checkpointed_step=None), 0.0)
    call = owner.begin(command)
    assert owner.decide_all([call], lambda: None) == [call]
    owner.close()
    with pytest.raises(SamplerUnavailable, match="is closed"):
        owner.asked.ask(call, reads=True)
    assert world.logs.watched == before


def test_a_question_that_had_to_wait_for_another_has_all_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked, attempts = ManualClock(), Queue[float](), Queue[None]()
    owner = world.owner(clock)
    owner.execute(Resume(checkpointed_step=None), 0.0)
    world.logs.held = "sampler"
    bounds, attempt = MemoryReader.bounds, SamplerLogs.attempt

    def ask(reader: MemoryReader, where: TopicPartition, timeout_s: float) -> tuple[int, int]:
        asked.put(timeout_s)
        return bounds(reader, where, timeout_s)

    def begin(logs: SamplerLogs) -> Deadline:
        begun = attempt(logs)
        attempts.put(None)
        return begun

    monkeypatch.setattr(MemoryReader, "bounds", ask)
    monkeypatch.setattr(SamplerLogs, "attempt", begin)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(owner.asked.ask, owner.begin(AskStats()), reads=True)
        first_s = asked.get(timeout=WAIT_S)
        attempts.get(timeout=WAIT_S)
        second = threads.submit(owner.asked.ask, owner.begin(AskStats()), reads=True)
        attempts.get(timeout=WAIT_S)
        clock.advance(first_s - 0.1)
        world.logs.released.set()
        first.result(WAIT_S)
        second.result(WAIT_S)
    assert asked.get_nowait() == pytest.approx(first_s)
    owner.close()


def test_an_interrupt_before_a_thread_reads_leaves_the_seal_logs_to_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    owner = world.owner(clock)
    owner.execute(Resume(checkpointed_step=None), 0.0)
    owner.execute(AskStats(), 0.0)
    clock.advance(2 * SERVE_S)

    def interrupt(reader: MemoryReader, records_max: int, timeout_s: float) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(MemoryReader, "poll", interrupt)
    monkeypatch.setattr(Follower, "poll", lambda *_: [])
    with pytest.raises(KeyboardInterrupt):
        owner.follow(0.0)
    monkeypatch.undo()
    assert owner.follow(0.0), "a thread reads for ever"
    owner.close()
