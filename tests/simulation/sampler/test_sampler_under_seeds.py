"""A sampler and its trainer under seeds: lost reports, late appends, crashes, zombies.

One thread, a clock that only waits move. A failure is a seed.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import pytest

from harness.entropy import SeededEntropy
from harness.faults import Append, Fate, FaultyBroker
from harness.groups import GroupSpec, GroupWriter
from harness.sampler_worlds import ENVIRONMENTS, config_of
from harness.serving_history import groups_of, serving_problems
from rollstream.consumers import create_deployment
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Batch, Fenced, NotEnoughGroups, Sampler
from rollstream.sampler.deciding.trainer import Later
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.events import BatchServed, Checkpointed, Resumed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.errors import BrokerError
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.sampler.choosing import choosing_of
from rollstream.streams.folds.sampler.state import SamplerState
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from rollstream.streams.topics.layout import Layout

NAME = "trainer-a"
WAIT_S = 5.0
ACTIONS = 40
TROUBLE = (Fate.LOSE_REPORT, Fate.DOUBT, Fate.DROP, Fate.DOUBT_AND_DROP, Fate.HOLD)


class Crash(BaseException):
    """The end of a simulated process: no code of its own runs any more."""


class Simulation:
    """One sampler name, its trainer, and what the trainer was given."""

    def __init__(self, seed: int, trouble: float) -> None:
        self.random = random.Random(seed)
        self.entropy = SeededEntropy(seed)
        self.trouble = trouble
        self.clock = ManualClock()
        self.config = config_of("file:///unused", NAME, max_policy_lag=6, max_open_batches=8)
        self.logs = MemoryLogs(self.clock)
        self.store = MemoryBlobs()
        self.layout = Layout(self.config.kafka.namespace)
        self.plain = MemoryBroker(self.logs)
        create_deployment(
            self.config,
            broker=self.plain,
            store=self.store,
            clock=self.clock,
            entropy=SeededEntropy(10**9 + seed),
        )
        self.broker = FaultyBroker(self.plain, self._fate, clock=self.clock)
        self.writers = [self._writer("code", 0), self._writer("math", 0), self._writer("math", 1)]
        self.policy_epoch = 0
        self.given: dict[int, Batch] = {}
        self.checkpoint: int | None = None
        self.crashes = 0
        self.looks = random.Random(seed)
        self.onlooker = self._start(FaultyBroker(self.plain, never_appends, clock=self.clock))
        self.sampler = self._start(self.broker)
        self.step = 0
        self.resume()

    def _writer(self, environment: str, partition: int) -> GroupWriter:
        where = TopicPartition(self.layout.groups(environment), partition)
        return GroupWriter(self.plain, where, self.store, environment=environment)

    def _fate(self, append: Append) -> Fate:
        if self.random.random() >= self.trouble:
            return Fate.PASS
        if self.random.random() < 0.4:
            if self.random.random() < 0.5:
                self._write_now(append)
            raise Crash
        return self.random.choice(TROUBLE)

    def _write_now(self, append: Append) -> None:
        writer = self.plain.writer()
        writer.append(append.topic, append.value, partition=append.partition)
        assert writer.flush(WAIT_S) == 0

    def _start(self, broker: Broker) -> Sampler:
        return Sampler(
            NAME,
            config=self.config,
            broker=broker,
            store=self.store,
            clock=self.clock,
            entropy=self.entropy,
        )

    def restart(self) -> None:
        """The trainer and its sampler die together and come back from the checkpoint."""
        self.crashes += 1
        self.sampler = self._start(self.broker)
        self.resume()

    def resume(self) -> None:
        """The first call that decides, so it claims; it may crash there, again and again."""
        later: Later = "replay" if self.random.random() < 0.5 else "release"
        while True:
            try:
                self.step = self.sampler.resume(self.checkpoint, later=later)
                policy = self.sampler.publish_policy(self.step, policy_version=f"v{self.step}")
                break
            except (Crash, Fenced):
                self.sampler = self._start(self.broker)
            except BrokerError:
                continue
        self.policy_epoch = policy.epoch
        if later == "release":
            self.given = {s: b for s, b in self.given.items() if s < self.step}

    def seal(self) -> None:
        specs = [
            GroupSpec(
                example_id=f"ex-{self.random.randrange(9)}",
                weight_step=self.step,
                policy_epoch=self.policy_epoch,
            )
            for _ in range(self.random.randint(1, 3))
        ]
        self.random.choice(self.writers).flush(*specs)

    def train(self) -> None:
        """One step of the trainer's loop; it asks twice now and then."""
        batch = self.sampler.next_batch(self.step, 2, timeout_s=0.02)
        if self.step in self.given:
            assert_same(self.given[self.step], batch)
        self.given[self.step] = batch
        if self.random.random() < 0.4:
            assert_same(batch, self.sampler.next_batch(self.step, 2, timeout_s=0.02))
        self.sampler.ack(batch)
        self.sampler.publish_policy(self.step + 1, policy_version=f"v{self.step + 1}")
        if self.random.random() < 0.4:
            self.sampler.checkpointed(self.step)
            self.checkpoint = self.step
        self.step += 1

    def zombie(self) -> None:
        """The old process was only asleep: it must not decide anything any more."""
        old, self.sampler = self.sampler, self._start(self.broker)
        self.resume()
        for _ in range(2):
            with pytest.raises(Fenced, match="taken over"):
                old.publish_policy(99, policy_version="asleep")
        assert "asleep" not in str(self.confirmed_events())

    def act(self) -> None:
        choice = self.random.random()
        if self.looks.random() < 0.2:
            self.onlooker.progress()
        try:
            if self.looks.random() < 0.2:
                assert self.sampler.stats().next_step == self.sampler.progress().next_step
            if choice < 0.45:
                self.seal()
            elif choice < 0.9:
                self.train()
            elif choice < 0.95:
                self.restart()
            else:
                self.broker.land()
        except (Crash, Fenced):
            self.restart()  # Fenced: a claim of a process that died before landed late.
        except (NotEnoughGroups, BrokerError):
            self.seal()

    def confirmed_events(self) -> list[ConfirmedEvent]:
        follower = Follower(self.plain, {TopicPartition(self.layout.sampler(NAME), 0): 0})
        return list(follower.read_to_end(Deadline(WAIT_S)))


def never_appends(append: Append) -> Fate:
    """The fate of whatever an onlooker writes."""
    raise AssertionError(f"looking appended {append}")


def assert_same(left: Batch, right: Batch) -> None:
    assert left.digest == right.digest
    assert left.tokens.tobytes() == right.tokens.tobytes()
    assert left.uids == right.uids


def refolded(simulation: Simulation) -> tuple[SamplerState, list[GroupRef]]:
    """The state from the logs alone, in another interleaving (decisions first), and the groups that
    were sealed."""
    logs = {
        TopicPartition(simulation.layout.groups(name), partition): PartitionAddress(
            name, 1, partition
        )
        for name, partitions in ENVIRONMENTS.items()
        for partition in range(partitions)
    }
    config = simulation.config
    choosing = choosing_of(config.samplers[NAME], config.environments)
    state = SamplerState(NAME, choosing, list(logs.values()))
    for confirmed in simulation.confirmed_events():
        state.apply(confirmed.offset, confirmed.timestamp_us, confirmed.event)
    sealed: list[GroupRef] = []
    follower = Follower(simulation.plain, dict.fromkeys(logs, 0))
    for confirmed in follower.read_to_end(Deadline(WAIT_S)):
        log, offset, event = logs[confirmed.where], confirmed.offset, confirmed.event
        state.apply_groups(log, offset, event)
        sealed += groups_of(log, offset, event)
    return state, sealed


def check(simulation: Simulation) -> None:
    events = [confirmed.event for confirmed in simulation.confirmed_events()]
    final: dict[int, BatchServed] = {}
    newest: dict[int, BatchServed] = {}
    for event in events:
        if isinstance(event, BatchServed):
            newest[event.step] = event
        elif isinstance(event, Checkpointed | Resumed):
            done = event.step if isinstance(event, Checkpointed) else event.checkpointed_step
            final.update({s: e for s, e in newest.items() if done is not None and s <= done})
    uses = Counter(group.group_id for event in final.values() for group in event.groups)
    assert set(uses.values()) <= {1}, "a group of a final batch was served for another step"
    state, sealed = refolded(simulation)
    assert serving_problems(events, sealed, state) == []
    for step, batch in simulation.given.items():
        assert batch.digest == newest[step].digest, f"step {step} was given and is not in the log"
    simulation.broker.decide = lambda append: Fate.PASS
    for sampler in (simulation.onlooker, simulation._start(simulation.broker)):
        sampler.stats()
        assert sampler._owner.state_digest() == refolded(simulation)[0].digest()


@pytest.mark.proves("F1", "I4", "I5", "I6", "I7")
@pytest.mark.parametrize("seed", range(40))
def test_whatever_fails_steps_keep_their_bytes_and_final_groups_stay_final(seed: int) -> None:
    simulation = Simulation(seed, trouble=0.15)
    for _ in range(ACTIONS):
        simulation.act()
    check(simulation)


@pytest.mark.proves("I4")
@pytest.mark.parametrize("seed", range(10))
def test_a_sampler_that_was_only_asleep_decides_nothing_any_more(seed: int) -> None:
    simulation = Simulation(seed, trouble=0.0)
    for _ in range(ACTIONS // 2):
        simulation.act()
    assert simulation.given
    simulation.zombie()
    simulation.zombie()
    for _ in range(ACTIONS // 2):
        simulation.act()
    check(simulation)


def test_simulations_with_trouble_do_meet_it() -> None:
    crashes = 0
    for seed in range(6):
        simulation = Simulation(seed, trouble=0.15)
        for _ in range(ACTIONS):
            with contextlib.suppress(RollstreamError):
                simulation.act()
        crashes += simulation.crashes
    assert crashes > 5
