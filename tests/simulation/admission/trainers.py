"""Trainers whose samplers, in their processes, tell env workers how many groups they may begin."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from rollstream.folds.group.eligible import Accept
from rollstream.sampler import Batch, Fenced, Sampler
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.command import Command, R, Reply, read
from rollstream.sampler.decide.trainer.commands import Later
from rollstream.sampler.engine.calls import Call
from rollstream.streams.errors import BrokerError
from simulation.admission.stepped import ReachedBroker

if TYPE_CHECKING:
    from simulation.admission.admitted import Admitted


class Crash(BaseException):
    """The end of a simulated process: no code of its own runs any more."""


class Waits(Exception):
    """The call waits for groups; make it again."""


class SteppedSampler(Sampler):
    """Whose calls for a batch wait while others act, as those to the actor do."""

    _parked: Call[Any] | None = None

    def _execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        if command.claims:
            self._owner.tell_workers(follow=True)
        call = self._parked if isinstance(command, NextBatch) else None
        self._parked = None
        if call is None:
            call = self._owner.begin(command)
            self._owner.decide(call)
        if not call.ended:
            self._parked = call
            raise Waits
        reply = call.answered.result()
        return Reply(reply.trainer_epoch, read(reply.value))


class Process:
    """One that has a sampler.

    Attributes:
        name: the sampler's.
    """

    def __init__(self, world: Admitted, name: str) -> None:
        self.name = name
        self.world = world
        self.broker = ReachedBroker(world.new_broker(), world)
        with world.stepped.turn(self):
            self.sampler = SteppedSampler(
                name,
                config=world.config,
                broker=self.broker,
                store=world.store,
                clock=world.own_clock(),
                entropy=world.entropy,
            )


class Restarted(Process):
    """One that looks at what the logs hold."""


class Trainer(Process):
    """A trainer's process and its sampler in it; what a new one knows is what the world saved.

    Attributes:
        asked_s: since when it waits for a batch, by the world's clock; None: it does not.
        stopped_until_s: while it trains nothing; its sampler goes on.
        resumed_s: when it began, or went back.
        unbounded: environments of which it has more groups than were granted, as after a rewind.
    """

    def __init__(self, world: Admitted, name: str) -> None:
        super().__init__(world, name)
        self.asked_s: float | None = None
        self.stopped_until_s = self.resumed_s = 0.0
        self.unbounded = defaultdict[str, bool](lambda: True)
        self._step: int | None = None
        self._batch: Batch | None = None
        self._is_given_again = False
        self._trained_s = 0.0

    def turn(self) -> None:
        """Its sampler does what is due; then it does what comes next, if anything does."""
        world = self.world
        try:
            with world.stepped.turn(self):
                if not world.away and world.now_s >= self.stopped_until_s:
                    self._act()
        except Waits:
            pass
        except Fenced:
            world.reached["fenced"] += 1
            world.lose(self)
        except Crash:
            world.disturb("dead samplers")
            world.lose(self)
        except BrokerError:
            world.reached["in doubt"] += 1

    def idle(self) -> None:
        """Its sampler alone does what is due, as where the trainer hangs."""
        try:
            with self.world.stepped.turn(self):
                pass
        except Crash:
            self.world.lose(self)

    def ready(self, environment: str) -> int:
        """Groups that its sampler may serve."""
        counts: dict[str, int] = self.sampler._owner._logs.state.ready.counts()
        return counts.get(environment, 0)

    def in_hand(self, environment: str) -> int:
        """Groups of the batch that it has and did not ack; none of one that it was given before it
        went back: these were trained, or others were begun in their place."""
        if self._batch is None or self._is_given_again:
            return 0
        refs = self.sampler._owner._logs.state.batches[self._batch.step].refs
        return sum(ref.environment == environment for ref in refs)

    def rewinds(self) -> None:
        """It is to go back to what was saved."""
        self._step = self._batch = self.asked_s = None

    def _act(self) -> None:
        if self._step is None:
            self._resume()
        elif self._batch is None:
            self._ask(self._step)
        elif self.world.now_s >= self._trained_s:
            self._finish(self._step, self._batch)

    def _resume(self) -> None:
        world = self.world
        saved = world.saved[self.name]
        if saved and world.dice.random() < 0.3:
            del saved[world.dice.randrange(len(saved)) :]
        newest = saved[-1] if saved else None
        later: Later = "replay" if world.dice.random() < 0.5 else "release"
        step = self.sampler.resume(newest, later=later)
        self.sampler.publish_policy(step, policy_version=f"{self.name}-{step}")
        self._step = step
        self.resumed_s = world.now_s
        self.unbounded.clear()
        world.forgive(None)

    def _ask(self, step: int) -> None:
        world = self.world
        if self.asked_s is None:
            self.asked_s = world.now_s
        accept: Accept | None = "nonzero_std" if world.filters and step % 4 == 1 else None
        self._is_given_again = step in self.sampler._owner._logs.state.batches
        self._batch = self.sampler.next_batch(
            step, world.groups_of(self.name), mix=world.mix_of(step), accept=accept
        )
        world.expect_soon(self)
        self.asked_s = None
        self._trained_s = world.now_s + world.dice.choice((0.0, 1.0, 3.0))

    def _finish(self, step: int, batch: Batch) -> None:
        world = self.world
        self.sampler.ack(batch)
        self.sampler.publish_policy(step + 1, policy_version=f"{self.name}-{step + 1}")
        if world.dice.random() < 0.4:
            self.sampler.checkpointed(step)
            world.saved[self.name].append(step)
        self._step, self._batch = step + 1, None
        world.reached["steps"] += 1
