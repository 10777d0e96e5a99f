"""Scores that no group takes end no sampler: their log is read on when they waited in vain."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from harness.groups import GroupSpec
from harness.newer_records import NEWER_PREFIX
from harness.sampler_worlds import LocalWorld, config_of, new_name
from rollstream.folds.scores import early_scores
from rollstream.producers import ScoreProducer
from rollstream.runtime.clock import Clock, ManualClock
from rollstream.sampler import NotEnoughGroups, Sampler
from rollstream.sampler.engine import logs, score_pressure, snapshots
from rollstream.sampler.history import replay_step
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.broker import Record, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout

LATE = GroupSpec(rewards=(None,))
HOUR_S = 3_600.0
WAIT_S = 30.0
pytestmark = pytest.mark.proves("A18", "I5", "I8")


class DamagedLogs(MemoryLogs):
    """Of the records ``damaged`` nobody can read more than that one of ours stands there."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.damaged: set[tuple[TopicPartition, int]] = set()
        self.newer: set[tuple[TopicPartition, int]] = set()  # A newer version wrote them.

    def read_on(
        self, where: TopicPartition, offset: int, records_max: int
    ) -> tuple[list[Record], int]:
        records, end = super().read_on(where, offset, records_max)
        return [self._as_read(where, one) for one in records], end

    def _as_read(self, where: TopicPartition, record: Record) -> Record:
        at = where, record.offset
        if at in self.newer:
            return record._replace(value=NEWER_PREFIX)
        return record._replace(value=record.value[:-1]) if at in self.damaged else record


class World:
    """Four records of a partition may wait for a group."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(early_scores, "EARLY_MAX", 4)
        monkeypatch.setattr(score_pressure, "ASK_EVERY_S", 0.0)  # The broker's time stands still.
        self.clock = ManualClock()  # The broker's.
        self.logs = DamagedLogs(self.clock)
        broker = MemoryBroker(self.logs)
        self.local = LocalWorld(broker, MemoryBlobs(), config_of("file:///unused", new_name()))
        # Without admission no thread of the sampler reads: a call folds what the test wrote before.
        self.local.configure(score_timeout_s=4e9, admission=False)
        self.scores = ScoreProducer(
            environment="math",
            scorer="tests",
            namespace=self.local.config.kafka.namespace,
            broker=broker,
        )
        self.scores_topic = Layout.of(self.local.config.kafka).scores("math")
        self.writers = [self.local.writer("math", partition) for partition in range(2)]

    @contextmanager
    def sampler(self, clock: Clock | None = None) -> Iterator[Sampler]:
        world = self.local
        parts: dict[str, Any] = {"broker": world.broker(), "store": world.store, "clock": clock}
        with Sampler(world.name, config=world.config, **parts) as made:
            yield made

    def damage(self, partition: int) -> TopicPartition:
        """What is sealed there next cannot be read."""
        where = TopicPartition(Layout.of(self.local.config.kafka).groups("math"), partition)
        self.logs.damaged.add((where, self.logs.bounds(where)[1]))
        return where

    def useless(self, count: int, what: str) -> None:
        """Scores of rollouts that nobody ever publishes."""
        for number in range(count):
            self.scores.publish(rollout_uid=f"{what}-{number}", reward=0.0)
        self.scores.flush()

    def scored(self, partition: int = 0) -> None:
        """A group, and its score behind all others."""
        flushed = self.writers[partition].flush(LATE)
        self.scores.publish(rollout_uid=flushed.segments.uids[0], reward=1.0)
        self.scores.flush()

    def replays(self, *steps: int) -> bool:
        """Whether each step, decided again, is the one that was served."""
        name, config, broker = self.local.name, self.local.config, self.local.broker()
        found = [replay_step(name, step, config=config, broker=broker) for step in steps]
        return all(replayed.same for (replayed,) in found)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(monkeypatch)
    yield made
    made.scores.close()
    made.local.close()


def ready(sampler: Sampler) -> int:
    """How many groups can be served; folds what has arrived, some polls each time."""
    for _ in range(4):
        with pytest.raises(NotEnoughGroups):
            sampler.next_batch(sampler.stats().next_step, 99, timeout_s=0)
    return sum(sampler.stats().ready.values())


def test_a_log_of_which_too_much_waits_is_read_on_when_that_waited_for_too_long(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rollstream.sampler"), world.sampler() as sampler:
        sampler.resume(None)
        world.useless(20, "nobody")
        assert ready(sampler) == 0
        assert 4 < sampler.stats().scores_early <= 20  # Of two partitions; a poll is taken whole.
        for partition in range(8):
            world.scored(partition % 2)
        assert ready(sampler) == 0
        assert len([one for one in caplog.messages if "are read on once" in one]) == 2
        world.clock.advance(HOUR_S + 180.0)
        assert ready(sampler) == 0  # Nothing says that the hour is over.
        world.writers[1].flush(GroupSpec(rewards=(0.0,)))
        assert ready(sampler) == 9
        stats = sampler.stats()
        assert (stats.scores_early, stats.scores_unused) == (0, {"no_group": 20})


def test_a_log_that_is_read_no_further_for_now_is_not_being_folded(world: World) -> None:
    world.useless(1_000, "nobody")  # More than one poll returns.
    with world.sampler() as sampler:
        sampler.resume(None)
        assert sampler.stats().scores_behind == ("math",)
        assert sampler._owner.folding() == ""


def test_no_time_out_runs_where_a_score_may_be_in_the_log_and_it_is_said(world: World) -> None:
    world.local.configure(score_timeout_s=60.0, admission=False)
    with world.sampler(world.clock) as sampler:
        sampler.resume(None)
        world.useless(20, "nobody")
        assert ready(sampler) == 0
        assert sampler.stats().scores_behind == ("math",)
        for partition in range(8):
            world.scored(partition % 2)
        with pytest.raises(
            NotEnoughGroups, match=r"8 wait: .* scores of math are read no"
        ) as short:
            sampler.next_batch(0, 9, timeout_s=0)
        assert (short.value.waiting, short.value.dropped) == ({"reward": 8}, {})
        world.clock.advance(HOUR_S + 180.0)
        world.writers[1].flush(GroupSpec(rewards=(0.0,)))
        assert ready(sampler) == 9
        assert sampler.stats().scores_behind == ()
        world.writers[0].flush(LATE)
        assert ready(sampler) == 9
        world.clock.advance(61.0)
        assert sampler.stats().outcomes == {"unscored": 1}


def test_a_broker_that_does_not_answer_is_asked_within_one_bound_and_then_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def unanswered(self: Follower, where: TopicPartition, ts: int, timeout_s: float) -> bool:
        asked.append(timeout_s)
        raise BrokerUnavailable("no answer")

    with world.sampler() as sampler:
        sampler.resume(None)
        world.useless(20, "nobody")
        assert ready(sampler) == 0
        world.clock.advance(HOUR_S + 180.0)
        monkeypatch.setattr(Follower, "has_read", unanswered)
        for number in range(3):
            world.writers[1].flush(GroupSpec(rewards=(0.0,)))
            assert ready(sampler) == number + 1
        assert len(asked) == 1
        assert asked[0] <= score_pressure.ANSWERS_S


def test_a_broker_that_is_slow_to_answer_keeps_nobody_from_deciding(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(self: Follower, where: TopicPartition, ts: int, timeout_s: float) -> bool:
        asked.set()
        return answer.wait(WAIT_S)

    with world.sampler() as sampler, ThreadPoolExecutor(1) as other:
        sampler.resume(None)
        world.useless(20, "nobody")
        assert ready(sampler) == 0
        for partition in range(8):
            world.scored(partition % 2)
        world.clock.advance(HOUR_S + 180.0)
        world.writers[1].flush(GroupSpec(rewards=(0.0,)), GroupSpec(rewards=(0.0,)))
        monkeypatch.setattr(Follower, "has_read", slow)
        waits = other.submit(sampler.next_batch, 0, 10, timeout_s=WAIT_S)
        try:
            assert asked.wait(WAIT_S)
            with ThreadPoolExecutor(1) as deciding:
                deciding.submit(sampler.set_current_step, 0).result(WAIT_S / 2)
        finally:
            answer.set()
        assert waits.result().num_groups == 10  # The answer is acted on.


def test_who_only_looks_reads_on_too(world: World) -> None:
    with world.sampler() as looking:
        world.useless(20, "nobody")
        assert looking.stats().ready == {}
        for partition in range(8):
            world.scored(partition % 2)
        assert looking.stats().ready == {}
        world.clock.advance(HOUR_S + 180.0)
        world.writers[1].flush(GroupSpec(rewards=(0.0,)))
        assert looking.stats().ready == {"math": 9}
        assert looking.stats().owner == ""


@pytest.mark.proves("F24")
def test_a_seal_log_that_is_put_aside_stops_no_scores_of_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "TRY_AGAIN_S", 0.0)
    monkeypatch.setattr(snapshots, "EVENTS_BETWEEN", 1)
    monkeypatch.setattr(snapshots, "SECONDS_BETWEEN", 0.0)
    with world.sampler() as sampler:
        sampler.resume(None)
        where = world.damage(0)
        hidden = world.writers[0].flush(LATE)  # At a log time at which its score is in time.
        world.useless(20, "nobody")
        world.scores.publish(rollout_uid=hidden.segments.uids[0], reward=1.0)
        world.scores.flush()
        assert ready(sampler) == 0
        for _ in range(4):
            world.scored(1)
        assert ready(sampler) == 0
        world.clock.advance(HOUR_S + 180.0)
        world.writers[1].flush(GroupSpec(rewards=(0.0,)))
        assert ready(sampler) == 5
        stats = sampler.stats()
        assert (stats.scores_early, stats.scores_unused) == (0, {"no_group": 21})
        assert "start the sampler again once the log can be read" in stats.aside[str(where)]
        sampler.next_batch(0, 5)
        world.logs.damaged.clear()
        assert ready(sampler) == 0
        assert sampler.stats().aside  # The group there would lack its score.
    with world.sampler() as again:
        assert ready(again) == 1
        assert again.stats().aside == {}
        again.next_batch(1, 1)
    assert world.replays(0, 1)


@pytest.mark.proves("F24")
@pytest.mark.parametrize("paused_before", [False, True])
@pytest.mark.parametrize("is_cut_back", [False, True])
def test_no_group_is_dropped_as_unscored_while_a_log_of_scores_is_put_aside(
    world: World, *, paused_before: bool, is_cut_back: bool
) -> None:
    world.local.configure(score_timeout_s=60.0, admission=False)
    of_scores = [TopicPartition(world.scores_topic, partition) for partition in range(2)]
    with world.sampler(world.clock) as sampler:
        sampler.resume(None)
        world.scored(0)
        world.useless(20 if paused_before else 4, "nobody")
        assert ready(sampler) == 1
        if paused_before:
            assert sampler.stats().scores_behind == ("math",)
            world.clock.advance(HOUR_S + 180.0)
            world.writers[1].flush(GroupSpec(rewards=(0.0,)))
            assert ready(sampler) == 2
            assert sampler.stats().scores_behind == ()
        for where in of_scores:
            if is_cut_back:
                world.logs.cut_back(where, 0)
            else:
                world.logs.append(where, None, NEWER_PREFIX)
        ready(sampler)
        world.writers[0].flush(LATE)
        world.clock.advance(HOUR_S)
        ready(sampler)
        stats = sampler.stats()
        assert {*stats.aside} == {str(where) for where in of_scores}
        assert (stats.outcomes, stats.scores_behind) == ({}, ("math",))


@pytest.mark.proves("F24")
def test_a_log_of_scores_that_is_read_again_is_behind_until_it_is_read_to_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_scores, "EARLY_MAX", 10_000)
    monkeypatch.setattr(logs, "TRY_AGAIN_S", 1.0)
    world.local.configure(score_timeout_s=60.0, admission=False)
    with world.sampler(world.clock) as sampler:
        sampler.resume(None)
        for partition in range(2):
            where = TopicPartition(world.scores_topic, partition)
            world.logs.newer.add((where, world.logs.bounds(where)[1]))
        world.useless(6, "before")
        ready(sampler)
        late = [world.writers[number % 2].flush(LATE) for number in range(4)]
        world.useless(6_000, "behind")  # More than four polls return.
        for flushed in late:
            world.scores.publish(rollout_uid=flushed.segments.uids[0], reward=1.0)
        world.scores.flush()
        world.clock.advance(61.0)
        assert ready(sampler) == 0
        world.logs.newer.clear()
        world.clock.advance(2.0)
        while sampler.stats().scores_behind:
            ready(sampler)
        assert ready(sampler) == 4
        assert sampler.stats().outcomes == {}


@pytest.mark.proves("F24")
def test_a_step_is_replayed_whatever_a_newer_version_writes_later(world: World) -> None:
    with world.sampler() as sampler:
        sampler.resume(None)
        world.scored()
        assert ready(sampler) == 1
        sampler.next_batch(0, 1)
    for partition in range(2):
        where = TopicPartition(world.scores_topic, partition)
        world.logs.append(where, None, NEWER_PREFIX)
    assert world.replays(0)


def test_a_restart_and_a_replay_read_scores_as_the_sampler_before_them(world: World) -> None:
    world.useless(30, "old")
    with world.sampler() as sampler:
        sampler.resume(None)
        world.clock.advance(HOUR_S + 180.0)
        for partition in range(8):
            world.scored(partition % 2)
        assert ready(sampler) == 8
        assert sampler.stats().scores_unused == {"no_group": 30}
        sampler.next_batch(0, 5)
    with world.sampler() as again:
        assert ready(again) == 3
        assert again.stats().scores_unused == {"no_group": 30}
        again.next_batch(1, 3)
    assert world.replays(0, 1)


def test_scores_of_groups_that_take_none_hold_nothing_up(world: World) -> None:
    with world.sampler() as sampler:
        sampler.resume(None)
        for _ in range(20):
            flushed = world.writers[0].flush(GroupSpec(rewards=(0.5,)))
            world.scores.publish(rollout_uid=flushed.segments.uids[0], reward=1.0)
            world.scores.publish(group_id=flushed.groups[0].group_id, reward=1.0)
        world.scored()
        assert ready(sampler) == 21
        stats = sampler.stats()
        assert (stats.scores_early, stats.scores_unused) == (0, {"not_taken": 40})
