"""Trainers and their samplers under one name and a seed: lost reports, late appends, crashes of
either, rewinds to any saved step, drops, replacements, and a rival who takes the name over.

One thread, a clock that only waits move; at every call to the broker another trainer may get its
turn. What trainers were given is compared with what the log says afterwards.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple
from unittest import mock

from harness.entropy import SeededEntropy
from harness.faults import Append, Fate, FaultyBroker, always_pass, write_now
from harness.groups import GroupSpec, GroupWriter
from harness.sampler_worlds import ENVIRONMENTS, SecondClient, config_of
from harness.serving_history import bytes_held, groups_of, serving_problems
from rollstream.consumers import create_deployment
from rollstream.folds import state
from rollstream.folds.choosing import choosing_of
from rollstream.folds.group.eligible import Accept
from rollstream.folds.state import SamplerState
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Batch, Fenced, NotEnoughGroups, Sampler
from rollstream.sampler.decide.trainer.commands import AckStatus, Later
from rollstream.sampler.errors import RequestDiffers, TooManyOpenBatches, UnknownStep
from rollstream.sampler.history import replay_step
from rollstream.sampler.rows.recorded import RecordedBatches
from rollstream.schemas.events import BatchServed, Dropped, Resumed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.broker import Broker, TopicPartition, Writer
from rollstream.streams.errors import BrokerError
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from rollstream.streams.topics.layout import Layout
from simulation.world import TurningBroker, Violation

NAME = "trainer-a"
WAIT_S = 5.0
GROUPS_WAIT_S = 0.02
TURNS = 60
BATCH_GROUPS = 2
FINAL_KEPT = 2
REPLAYED_MAX = 2  # Steps that are decided once more in the end.
BAD_FATES = [fate for fate in Fate if fate is not Fate.PASS]

Wrap = Callable[[Broker], Broker]


class Crash(BaseException):
    """The end of a simulated process: no code of its own runs any more."""


class Given(NamedTuple):
    """A batch as a trainer has it."""

    digest: bytes
    tokens: bytes
    uids: tuple[str, ...]

    @classmethod
    def of(cls, batch: Batch) -> Given:
        return cls(batch.digest, batch.tokens.tobytes(), tuple(batch.uids))


class Trainer:
    """A trainer's process and its sampler's. Either may end at any moment; what a new one knows is
    what the world saved.

    Attributes:
        step: to do next; None: it has to resume first.
        busy: whether it is at work further up the stack.
    """

    def __init__(self, world: Trainers) -> None:
        self._world = world
        self.busy = False
        self.step: int | None = None
        self._policy_epoch = 0
        self.client = SecondClient(world.sampler())

    def begin_anew(self) -> None:
        """Another process of the same trainer, with another sampler."""
        self.step = None
        self.client = SecondClient(self._world.sampler())

    def turn(self, act: Callable[[Trainer], None]) -> None:
        """Resumes where it is new, else acts; it may end in it."""
        reached = self._world.reached
        self.busy = True
        try:
            if self.step is None:
                self.resume(max(self._world.checkpoints(), default=None))
            else:
                act(self)
        except Crash:
            reached["crashes"] += 1
            if self._world.dice.random() < 0.5:
                self.begin_anew()
            else:  # The sampler's process alone; its trainer calls again.
                self.client.sampler = self._world.sampler()
        except Fenced:
            reached["fenced"] += 1
            self.begin_anew()
        except (NotEnoughGroups, RequestDiffers) as refused:
            reached[type(refused).__name__] += 1
        except BrokerError:
            reached["in doubt"] += 1
        finally:
            self.busy = False

    def resume(self, saved: int | None) -> None:
        """From a checkpoint that is saved."""
        world = self._world
        world.resumes += 1
        mine = world.resumes
        later: Later = "replay" if world.dice.random() < 0.5 else "release"
        self.step = None
        try:
            step = self.client.resume(saved, later=later)
        except UnknownStep:
            if world.resumes == mine:
                raise
            return  # A rival went back further meanwhile.
        self._policy_epoch = self.client.publish_policy(step, policy_version=f"v{step}").epoch
        self.step = step

    def train(self) -> None:
        """One step of the trainer's loop; it asks again now and then, and filters a group."""
        world, step = self._world, self._step()
        try:
            batch = self._next_batch(step)
        except TooManyOpenBatches:
            return self.checkpoint(step - 1)
        if world.dice.random() < 0.4:
            self._next_batch(max(0, step - world.dice.choice((0, 0, 1))))
        if world.dice.random() < 0.15:
            world.forget(
                self.client, batch
            )  # Whether another is recorded is known when it is back.
            batch = self.client.replace(batch, [0], "odd", timeout_s=GROUPS_WAIT_S)
            world.record_given(self.client, batch)
            world.reached["replacements"] += 1
        status: AckStatus = "failed" if step % 7 == 3 else "trained"
        skipped = [1] if step % 5 == 2 and status == "trained" else []
        self.client.ack(batch, status, skipped=skipped)
        world.reached["partial acks"] += len(skipped)
        self.client.publish_policy(step + 1, policy_version=f"v{step + 1}")
        if world.dice.random() < 0.4:
            self.checkpoint(step)
        self.step = step + 1

    def checkpoint(self, step: int) -> None:
        """Saved first, then told."""
        epoch = self.client.trainer_epoch
        assert epoch is not None
        self._world.saved[step] = max(epoch, self._world.saved.get(step, 0))
        self.client.checkpointed(step)

    def rewind(self) -> None:
        """To any step that was saved, or to the beginning."""
        self.resume(self._world.dice.choice([None, *self._world.checkpoints()]))
        self._world.reached["rewinds"] += 1

    def drop(self) -> None:
        """Any group that was ever sealed."""
        if self._world.sealed:
            self.client.drop([self._world.dice.choice(self._world.sealed)], "not wanted")

    def look(self) -> None:
        """Figures agree with one another."""
        if self.client.stats().next_step != self.client.progress().next_step:
            raise Violation("stats() and progress() have different next steps")

    def sampled_with(self) -> tuple[int, int]:
        """Policy epoch and step of weights that some env worker has now."""
        dice = self._world.dice
        epoch = self._policy_epoch if dice.random() < 0.8 else dice.randint(0, self._policy_epoch)
        return epoch, max(0, (self.step or 0) - dice.choice((0, 0, 0, 1, 3)))

    def _next_batch(self, step: int) -> Batch:
        # Part of the request, so the same at each call for the step.
        accept: Accept | None = "nonzero_std" if step % 3 == 1 else None
        batch = self.client.next_batch(step, BATCH_GROUPS, timeout_s=GROUPS_WAIT_S, accept=accept)
        self._world.record_given(self.client, batch)
        return batch

    def _step(self) -> int:
        assert self.step is not None, "resume first"
        return self.step


class DecidingBroker(TurningBroker):
    """What env workers are told is written by a thread, which has no part in the dice."""

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> Writer:
        writer = self.inner.writer if retries else super().writer
        return writer(linger_ms=linger_ms, retries=retries)


class Trainers:
    """The world of one seed.

    Args:
        wrap: around each sampler's broker: a defect.
        trouble: how likely an append is disturbed; None: the seed decides.
    """

    def __init__(
        self,
        seed: int,
        *,
        wrap: Wrap = lambda broker: broker,
        trouble: float | None = None,
    ) -> None:
        self.dice = random.Random(seed)
        self.faults = 0
        self.reached: Counter[str] = Counter()
        self.saved: dict[int, int] = {}  # Steps of checkpoints, and the epochs of their trainers.
        self.resumes = 0
        self.sealed: list[str] = []
        self._wrap = wrap
        self._entropy = SeededEntropy(seed)
        self._trouble = self.dice.choice((0.0, 0.05, 0.15)) if trouble is None else trouble
        self._turn_rate = self.dice.choice((0.0, 0.02, 0.1))
        self._clock = ManualClock()
        self._config = config_of("file:///unused", NAME, **self._settings())
        self._logs = MemoryLogs(self._clock)
        self._store = MemoryBlobs()
        self._plain = MemoryBroker(self._logs)
        self._layout = Layout(self._config.kafka.namespace)
        create_deployment(
            self._config,
            broker=self._plain,
            store=self._store,
            clock=self._clock,
            entropy=SeededEntropy(10**9 + seed),
        )
        self._broker = DecidingBroker(self._plain, self._maybe_turn, self._fate, clock=self._clock)
        self._writers = [self._writer(e, p) for e, n in ENVIRONMENTS.items() for p in range(n)]
        self._given: dict[tuple[int, int], Given] = {}  # By trainer epoch and step.
        self._bytes: dict[bytes, Given] = {}  # By digest.
        self._samplers: list[Sampler] = []
        self.trainers: list[Trainer] = []
        self._onlooker = self._start(FaultyBroker(self._plain, never_appends, clock=self._clock))
        self.trainers += [self._trainer() for _ in range(self.dice.choice((1, 2)))]

    def run(self) -> None:
        """Actions of trainers and of sealers; then the logs are read.

        Raises:
            Violation: with what did not hold.
        """
        try:
            # So few that a trainer which goes back is given batches from the record.
            with (
                mock.patch.object(state, "FINAL_BATCHES_KEPT", FINAL_KEPT),
                mock.patch.object(RecordedBatches, "batch", self._counted(RecordedBatches.batch)),
            ):
                for _ in range(TURNS):
                    self.act()
                self.check()
        finally:
            self.close()

    def _counted(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def batch(recorded: RecordedBatches, step: int, trainer_epoch: int) -> Any:
            self.reached["batches from the record"] += 1
            return read(recorded, step, trainer_epoch)

        return batch

    def close(self) -> None:
        """Ends every sampler's process."""
        for sampler in self._samplers:
            sampler.close()

    def act(self) -> None:
        """One action, whoever's it is."""
        if self.dice.random() < 0.1:
            self._onlooker.progress()
        (action,) = self.dice.choices(list(ACTIONS), list(ACTIONS.values()))
        action(self)

    def sampler(self) -> Sampler:
        """A sampler in a process of its own."""
        return self._start(self._wrap(self._broker))

    def checkpoints(self) -> list[int]:
        """Those that a trainer may load, rising: on the branch that it goes on with."""
        events = [confirmed.event for confirmed in self.decisions()]
        for event in events:
            if isinstance(event, Resumed) and event.later == "release":
                kept = -1 if event.checkpointed_step is None else event.checkpointed_step
                for step in [at for at, epoch in self.saved.items() if at > kept]:
                    if self.saved[step] < event.trainer_epoch:
                        del self.saved[step]
        return sorted(self.saved)

    def record_given(self, client: SecondClient, batch: Batch) -> None:
        """A trainer was given this batch: within its epoch always the same for the step, and of a
        digest always the same bytes."""
        given = Given.of(batch)
        known = [
            self._given.setdefault(_key(client, batch), given),
            self._bytes.setdefault(given.digest, given),
        ]
        if known != [given, given]:
            raise Violation(f"step {batch.step} was given with other bytes than before")
        self.reached["batches"] += 1

    def forget(self, client: SecondClient, batch: Batch) -> None:
        """The batch may be another one from now on."""
        self._given.pop(_key(client, batch), None)

    def seal(self) -> None:
        """Groups of policies that some env worker has."""
        dice = self.dice
        specs = []
        for _ in range(dice.randint(1, 4)):
            specs.append(self._group(*dice.choice(self.trainers).sampled_with()))
        event = dice.choice(self._writers).flush(*specs)
        self.sealed += [group.group_id for group in event.groups]

    def turn(self, act: Callable[[Trainer], None]) -> None:
        """The turn of a trainer: mostly of the first, else two would only ever fence each other."""
        index = 0 if self.dice.random() < 0.8 else len(self.trainers) - 1
        self.trainers[index].turn(act)

    def crash(self) -> None:
        """A trainer and its sampler end together, between two calls."""
        self.reached["crashes"] += 1
        self.dice.choice(self.trainers).begin_anew()

    def land(self) -> None:
        """What was held reaches the log, late."""
        self.reached["landed late"] += self._broker.land()

    def check(self) -> None:
        """What the logs say, read by others than who wrote them, in another interleaving."""
        self._broker.fate, self._trouble, self._turn_rate = always_pass, 0.0, 0.0
        events = [confirmed.event for confirmed in self.decisions()]
        state, sealed = self._refolded()
        problems = serving_problems(events, sealed, state)
        held = bytes_held(events)
        problems += [
            f"step {step} was given in epoch {epoch}, and the log has another batch or none"
            for (epoch, step), given in self._given.items()
            if given.digest not in held[epoch, step]
        ]
        readers = (self._onlooker, self.sampler())
        for reader in readers:
            reader.stats()
        digest = self._refolded()[0].digest()
        for reader in readers:
            if reader._owner._logs.state.digest() != digest:
                problems.append("a reader's state is not the one that the logs make")
        served = sorted({event.step for event in events if isinstance(event, BatchServed)})
        for step in self.dice.sample(served, min(REPLAYED_MAX, len(served))):
            again = replay_step(
                NAME, step, config=self._config, broker=self._plain, clock=self._clock
            )
            problems += [f"step {step} is decided otherwise now" for one in again if not one.same]
        self.reached["drops"] += sum(
            len(event.groups) for event in events if isinstance(event, Dropped)
        )
        if problems:
            raise Violation("; ".join(problems[:5]))

    def decisions(self) -> list[ConfirmedEvent]:
        """What counts in the decision log."""
        log = TopicPartition(self._layout.sampler(NAME), 0)
        with closing(Follower(self._plain, {log: 0})) as follower:
            return list(follower.read_to_end(Deadline(WAIT_S)))

    def _trainer(self) -> Trainer:
        return Trainer(self)

    def _group(self, epoch: int, step: int) -> GroupSpec:
        """A group that these weights sampled."""
        return GroupSpec(
            example_id=f"ex-{self.dice.randrange(9)}",
            weight_step=step,
            policy_epoch=epoch,
            rewards=(0.0, self.dice.choice((1.0, 1.0, 1.0, 0.0))),
        )

    def _settings(self) -> dict[str, Any]:
        return {
            "max_policy_lag": self.dice.choice((-1, 2, 6)),
            "capacity_groups": self.dice.choice((12, 65_536)),
            "max_open_batches": self.dice.choice((3, 8)),
            "recency": self.dice.choice(("uniform", "linear", "exp")),
            "admission": False,  # It has a thread, and this world has one of its own.
        }

    def _writer(self, environment: str, partition: int) -> GroupWriter:
        where = TopicPartition(self._layout.groups(environment), partition)
        return GroupWriter(self._plain, where, self._store, environment=environment)

    def _start(self, broker: Broker) -> Sampler:
        sampler = Sampler(
            NAME,
            config=self._config,
            broker=broker,
            store=self._store,
            clock=self._clock,
            entropy=self._entropy,
        )
        self._samplers.append(sampler)
        return sampler

    def _fate(self, append: Append) -> Fate:
        if self.dice.random() >= self._trouble:
            return Fate.PASS
        self.faults += 1
        if self.dice.random() < 0.4:
            if self.dice.random() < 0.5:
                write_now(self._plain, append)
            raise Crash
        return self.dice.choice(BAD_FATES)

    def _maybe_turn(self) -> None:
        idle = [trainer for trainer in self.trainers if not trainer.busy]
        if idle and len(idle) < len(self.trainers) and self.dice.random() < self._turn_rate:
            self.reached["turns within a call"] += 1
            self.dice.choice(idle).turn(Trainer.train)

    def _refolded(self) -> tuple[SamplerState, list[GroupRef]]:
        """The state from the logs alone, decisions first, and the groups that were sealed."""
        logs = {
            TopicPartition(self._layout.groups(name), partition): PartitionAddress(
                name, 1, partition
            )
            for name, partitions in ENVIRONMENTS.items()
            for partition in range(partitions)
        }
        config = self._config
        choosing = choosing_of(config.samplers[NAME], config.environments)
        state = SamplerState(NAME, choosing, list(logs.values()))
        for confirmed in self.decisions():
            state.apply(confirmed.offset, confirmed.timestamp_us, confirmed.event)
        sealed: list[GroupRef] = []
        with closing(Follower(self._plain, dict.fromkeys(logs, 0))) as follower:
            for confirmed in follower.read_to_end(Deadline(WAIT_S)):
                log, offset, event = logs[confirmed.where], confirmed.offset, confirmed.event
                state.apply_groups(log, offset, event, confirmed.timestamp_us)
                sealed += groups_of(log, offset, event)
        return state, sealed


def by_trainer(act: Callable[[Trainer], None]) -> Callable[[Trainers], None]:
    """An action of whoever's turn it is."""
    return lambda world: world.turn(act)


# What happens, and how often beside the rest. A new kind of action is a line here.
ACTIONS: dict[Callable[[Trainers], None], float] = {
    Trainers.seal: 40,
    by_trainer(Trainer.train): 40,
    by_trainer(Trainer.rewind): 6,
    by_trainer(Trainer.drop): 4,
    by_trainer(Trainer.look): 5,
    Trainers.crash: 4,
    Trainers.land: 5,
}


def never_appends(append: Append) -> Fate:
    """The fate of whatever an onlooker writes."""
    raise Violation(f"looking appended {append}")


def _key(client: SecondClient, batch: Batch) -> tuple[int, int]:
    assert client.trainer_epoch is not None
    return client.trainer_epoch, batch.step
