"""Env workers, sealers and trainers under a seed, and the samplers that tell the workers how many
groups they may begin.

Workers, sealers, samplers and trainers die and are replaced; samplers go on as zombies; workers
sleep; clocks are wrong; the broker is away; a second trainer begins late; one trains nothing for a
while. One thread, a clock that goes on in ticks, all threads of shipped code stepped by it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

from harness.entropy import SeededEntropy
from harness.faults import Append, Fate, write_now
from rollstream.consumers import InlineExecutor, Sealer, create_deployment
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.decide.admission.capacity import Loads
from rollstream.schemas.events import Flushed
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.broker import TopicPartition
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import SHARES_PARTITIONS, Layout
from simulation.admission.stepped import Network, OwnClock, Stepped
from simulation.admission.trainers import Crash, Process, Restarted, Trainer
from simulation.admission.workers import Worker
from simulation.world import Violation

TICK_S = 0.25
TROUBLE_S = 65.0  # How long there are faults, each TICK_S.
CALM_S = 50.0
SEAL_S = 0.01  # How long a sealer's step in a tick may last.
HOUR_S = 3_600.0
# A trainer has its batch so long after it asked, or after whatever happened last: at most 22 s
# until the dead count no more, 15 s until it is the turn of a worker that can begin what is open,
# and what its groups take, some after the others, of which a part is filtered or fails.
WAIT_MAX_S = 45.0
SESSION_S = 10.0  # How long a sealer that was killed keeps its partitions.
READS_S = 2.0  # How long a sampler reads what was sealed before it began.
CALM_AFTER_S = 25.0  # From then on nobody dead counts, and everything is reported.
PARTITIONS = {"math": 2, "code": 1}


class Admitted(Network):
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        dice = self.dice = random.Random(seed)
        self.faults = 0
        self.reached: Counter[str] = Counter()
        self.entropy = SeededEntropy(seed)
        self.filters = dice.random() < 0.3
        self.saved: defaultdict[str, list[int]] = defaultdict(list)
        self._environments = dice.choice((("math",), ("code", "math")))
        self._mixes = self._drawn_mixes()
        self._late_s = dice.uniform(10.0, 40.0) if dice.random() < 0.4 else None
        self._groups = {"first": dice.choice((2, 4, 8)), "late": dice.choice((2, 4))}
        self._fault_rate = dice.choice((0.0, 0.02, 0.05))
        self._trouble = dice.choice((0.0, 0.0, 0.05))
        self._wrong = dice.random() < 0.5
        self._older_rate = dice.choice((0.0, 0.0, 0.3, 1.0))
        self._clock = ManualClock()
        self._logs = MemoryLogs(self._clock)
        self.store = MemoryBlobs()
        self.config = self._configured()
        self.layout = Layout.of(self.config.kafka)
        self._plain = MemoryBroker(self._logs)
        self._writer = self._plain.writer()
        entropy = SeededEntropy(10**9 + seed)
        create_deployment(
            self.config, broker=self._plain, store=self.store, clock=self._clock, entropy=entropy
        )
        self.stepped = Stepped(self._clock)
        self._names = 0
        self._workers: list[Worker] = []
        self._sealers: list[tuple[Sealer, MemoryBroker]] = []
        self._trainers: list[Trainer] = []
        self._zombies: list[tuple[float, Trainer]] = []
        # What is to begin, and when.
        self._to_come: list[tuple[float, Callable[[], object]]] = []
        self._disturbed_s = self._back_s = 0.0
        self._dead_sealers = 0  # That keep partitions still.
        self._in_flight: dict[str, dict[str, Worker]] = {n: {} for n in self._environments}
        # Groups of which no sampler knows before they are sealed.
        self._untold: dict[str, dict[str, Worker]] = {name: {} for name in self._environments}
        self._untold_sealed_s = -READS_S  # Samplers read it a moment later.
        # Of each sampler's loads, by environment.
        self._most: defaultdict[Loads, Counter[str]] = defaultdict(Counter)
        self._shares_read: dict[tuple[Worker, str], tuple[int, int]] = {}
        logs = {
            TopicPartition(self.layout.groups(name), number): 0
            for name in self._environments
            for number in range(PARTITIONS[name])
        }
        self._sealed = Follower(self._plain, logs)

    @property
    def now_s(self) -> float:
        return self._clock.monotonic_s()

    def run(self) -> None:
        """Faults, and then none for a while.

        Raises:
            Violation: with what did not hold.
        """
        with self.stepped.installed(), patch.object(Loads, "now", self._noting(Loads.now)):
            try:
                self._begin()
                while self.now_s < TROUBLE_S + CALM_S:
                    self._tick()
                self._check_restart()
            finally:
                self._close()

    def own_clock(self) -> OwnClock:
        """Of a new process; where clocks are wrong, mostly another than the broker's."""
        ahead_s = self.dice.choice((0.0, -HOUR_S, HOUR_S, 7.0)) if self._wrong else 0.0
        self.reached["wrong clocks"] += ahead_s != 0.0
        return OwnClock(self._clock, self.dice.uniform(0.0, HOUR_S), ahead_s)

    def new_broker(self) -> MemoryBroker:
        """Another handle on the same logs."""
        return MemoryBroker(self._logs)

    def publish(self, environment: str, partition: int, value: bytes) -> None:
        """What a worker sends."""
        self._writer.append(self.layout.rollouts(environment), value, partition=partition)

    def groups_of(self, trainer: str) -> int:
        """How many a step has."""
        return self._groups[trainer]

    def mix_of(self, step: int) -> Mapping[str, float] | None:
        """The same at each call for the step."""
        return self._mixes[step // 6 % len(self._mixes)]

    def begun(self, worker: Worker, uid: str, *, is_told: bool) -> None:
        """A worker began the group, and dispatched it, if ``is_told``."""
        (self._in_flight if is_told else self._untold)[worker.environment][uid] = worker

    def forgive(self, worker: Worker | None) -> None:
        """What this one, or any, has in flight counts no more."""
        for uids in [*self._in_flight.values(), *self._untold.values()]:
            for uid in [uid for uid, of in uids.items() if worker in (None, of)]:
                del uids[uid]

    def most_of(self, trainer: Process) -> Counter[str]:
        """By environment, the most groups for which its sampler ever had room."""
        return self._most[trainer.sampler._owner._granting._loads]

    def disturb(self, what: str) -> None:
        """Something went wrong."""
        self.faults += 1
        self.reached[what] += 1
        self._disturbed_s = self.now_s

    def lose(self, trainer: Trainer) -> None:
        """A trainer's process is no more; another takes its place."""
        if trainer in self._trainers:
            self._trainers.remove(trainer)
            self._later(self.dice.uniform(0.5, 5.0), lambda: self._new_trainer(trainer.name))
        self._zombies = [one for one in self._zombies if one[1] is not trainer]
        self._bury(trainer)
        for other in self._trainers:
            other.unbounded.clear()  # It has what the lost one needed.

    def fate(self, append: Append) -> Fate:
        announced = append.topic.startswith(f"{self.layout.namespace}.admission.")
        self.reached["grants"] += announced and (append.key or b"").startswith(b"share")
        if self.now_s > TROUBLE_S or self.dice.random() >= self._trouble:
            return Fate.PASS
        if self.dice.random() < 0.2:
            if self.dice.random() < 0.5:
                write_now(self._plain, append)
            raise Crash
        return Fate.PASS if not announced else self.dice.choice((Fate.DOUBT, Fate.DOUBT_AND_DROP))

    def _configured(self) -> RollstreamConfig:
        dice = self.dice
        environment = {
            "target_group_size": 2,
            "grouping": "mixed",
            "flush_interval_s": 0.5,
            "fresh_for": dice.choice(("", "first")),
        }
        sampler = {
            "environments": list(self._environments),
            "target_policy_lag": dice.choice((0, 1, 2)),
            "admission_idle_s": dice.choice((30.0, 600.0)),
        }
        names = ("first",) if self._late_s is None else ("first", "late")
        fixed = dice.random() < 0.7
        return RollstreamConfig.model_validate(
            {
                "kafka": {"bootstrap": "in-memory:0"},
                "store": {"root": "file:///unused"},
                "environments": {
                    name: {"partitions": PARTITIONS[name], **environment}
                    for name in self._environments
                },
                "samplers": {
                    name: {
                        **sampler,
                        **({"groups_per_step": self._groups[name]} if fixed else {}),
                        # Its own steps say nothing of the other's weights, by which all sample.
                        **({"max_policy_lag": -1, "off_branch": "keep"} if name == "late" else {}),
                    }
                    for name in names
                },
            }
        )

    def _drawn_mixes(self) -> list[dict[str, float] | None]:
        if len(self._environments) == 1 or self.dice.random() < 0.3:
            return [None]
        return [{"math": 0.75, "code": 0.25}, {"math": 0.25, "code": 0.75}, None]

    def _begin(self) -> None:
        for name in self._environments:
            for number in range(self.dice.choice((1, 2, 4))):
                # Others begin whatever is open.
                self._new_worker(name, self.dice.choice((1, 3)) if number == 1 else 1)
        for _ in range(self.dice.choice((1, 2))):
            self._new_sealer()
        self._later(self.dice.uniform(0.0, 3.0), lambda: self._new_trainer("first"))
        if self._late_s is not None:
            self._later(self._late_s, lambda: self._new_trainer("late"))
            self.reached["late trainers"] += 1

    def _tick(self) -> None:
        next_s = self.now_s + TICK_S
        if self.away and self.now_s >= self._back_s:
            self.away = False
            self._disturbed_s = self.now_s
        due = [] if self.away else [one for one in self._to_come if one[0] <= self.now_s]
        for due_s, begin in due:
            self._to_come.remove((due_s, begin))
            begin()
        if self.now_s < TROUBLE_S and self.dice.random() < self._fault_rate:
            (fault,) = self.dice.choices(list(FAULTS), list(FAULTS.values()))
            fault(self)
        actors: list[Callable[[], None]] = [one.turn for one in self._workers]
        actors += [one.turn for one in self._trainers]
        actors += [one.idle for _, one in self._zombies]
        if not self.away:
            actors += [partial(self._seal, sealer) for sealer, _ in self._sealers]
        self.dice.shuffle(actors)
        for act in actors:
            act()
        for until_s, zombie in list(self._zombies):
            if until_s <= self.now_s and not self.away:
                zombie.rewinds()
                self._awaken(zombie)
        self._check()
        self._clock.advance(max(0.0, next_s - self.now_s))

    def _seal(self, sealer: Sealer) -> None:
        sealer.step(Deadline(SEAL_S, self._clock))

    def _later(self, seconds: float, begin: Callable[[], object]) -> None:
        self._to_come.append((self.now_s + seconds, begin))

    def _new_worker(self, environment: str, together: int) -> None:
        self._names += 1
        is_older = self.dice.random() < self._older_rate
        self.reached["older workers"] += is_older
        name = f"worker-{self._names:02}"
        self._workers.append(Worker(self, environment, name, together, is_older))

    def _new_trainer(self, name: str) -> None:
        self._trainers.append(Trainer(self, name))

    def _new_sealer(self) -> None:
        broker = MemoryBroker(self._logs)
        self._names += 1
        sealer = Sealer(
            self.config,
            broker=broker,
            store=self.store,
            clock=self._clock,
            entropy=SeededEntropy(self._names),
            owner=f"sealer-{self._names}",
            workers=InlineExecutor(),
        )
        self._sealers.append((sealer, broker))

    # Faults.

    def _kill_worker(self) -> None:
        if not self._workers:
            return
        worker = self.dice.choice(self._workers)
        self.disturb("dead workers")
        self._workers.remove(worker)
        self.forgive(worker)
        worker.close()
        after_s, together = self.dice.uniform(0.0, 3.0), worker.together
        self._later(after_s, lambda: self._new_worker(worker.environment, together))

    def _put_to_sleep(self) -> None:
        if not self._workers:
            return
        worker = self.dice.choice(self._workers)
        self.disturb("workers that slept")
        worker.asleep_until_s = self.now_s + self.dice.uniform(15.0, 40.0)
        self._disturbed_s = worker.asleep_until_s
        self.forgive(worker)

    def _kill_sealer(self) -> None:
        if self._sealers:
            self.disturb("dead sealers")
            one = self.dice.choice(self._sealers)
            self._sealers.remove(one)
            self._dead_sealers += 1
            self._later(SESSION_S, partial(self._end_session, *one))
            self._later(self.dice.choice((1.0, 10.0)), self._new_sealer)

    def _end_session(self, sealer: Sealer, broker: MemoryBroker) -> None:
        """``sealer`` is held until now: while it is there its group knows it."""
        broker.close()
        self._disturbed_s = self.now_s
        self._dead_sealers -= 1
        for trainer in self._trainers:
            trainer.unbounded.clear()  # It learns only now what was begun there.

    def _kill_trainer(self) -> None:
        if self._trainers:
            self.disturb("dead samplers")
            self.lose(self.dice.choice(self._trainers))

    def _make_zombie(self) -> None:
        if self._trainers:
            self.disturb("zombies")
            zombie = self.dice.choice(self._trainers)
            self._trainers.remove(zombie)
            self._zombies.append((self.now_s + self.dice.uniform(5.0, 40.0), zombie))
            self._later(self.dice.uniform(0.0, 2.0), lambda: self._new_trainer(zombie.name))

    def _stop_trainer(self) -> None:
        if self._trainers:
            self.reached["trainers that stopped"] += 1
            one = self.dice.choice(self._trainers)
            one.stopped_until_s = self.now_s + self.dice.uniform(5.0, 60.0)

    def _rewind(self) -> None:
        if self._trainers:
            self.disturb("rewinds")
            self.dice.choice(self._trainers).rewinds()

    def _leave(self) -> None:
        self.disturb("outages")
        self.away = True
        self._back_s = self.now_s + self.dice.uniform(1.0, 40.0)

    def _compact(self) -> None:
        for name in self._environments:
            self._logs.compact(TopicPartition(self.layout.admission(name), 0))
            for number in range(SHARES_PARTITIONS):
                self._logs.compact(TopicPartition(self.layout.shares(name), number))
        self.reached["compactions"] += 1

    def _awaken(self, zombie: Trainer) -> None:
        """Its trainer goes on, and learns that it has a successor."""
        zombie.turn()
        self._zombies = [one for one in self._zombies if one[1] is not zombie]
        self._bury(zombie)

    def _bury(self, trainer: Process) -> None:
        trainer.broker.cut = True
        trainer.sampler.close()
        self.stepped.end(trainer)
        trainer.broker.close()

    # What holds.

    def _check(self) -> None:
        self._read_seals()
        for trainer in self._trainers:
            self.expect_soon(trainer)
        for environment in self._environments:
            self._expect_within(environment)
        for worker in self._workers:
            for name, one in worker.log.shares().items():
                now = one.shares.epoch, one.shares.number
                if now < self._shares_read.get((worker, name), now):
                    raise Violation(f"{worker.name} went back to shares {now} of {name}")
                self._shares_read[worker, name] = now

    def expect_soon(self, trainer: Trainer) -> None:
        """A trainer that waits has not waited for too long."""
        if trainer.asked_s is None or self.away:
            return
        since_s = max(trainer.asked_s, self._disturbed_s, trainer.stopped_until_s)
        waited_s = self.now_s - since_s
        if waited_s > WAIT_MAX_S:
            raise Violation(f"{trainer.name} has waited {waited_s:.0f} s for a batch")

    def _expect_within(self, environment: str) -> None:
        """What is begun, ready, or served and not acked is no more than some sampler has room for
        and requests lack; twice as much where something went wrong."""
        if self.away or not self._trainers:
            return
        # Until its successor is there, what a zombie grants, and needs, counts.
        names = {trainer.name for trainer in self._trainers}
        zombies = [one for _, one in self._zombies if one.name not in names]
        lacking = sum(self._groups[name] for name in names | {one.name for one in zombies})
        calm = self.now_s > self._disturbed_s + CALM_AFTER_S and not self._trouble
        problems = []
        for trainer in [*self._trainers, *zombies]:
            most = self.most_of(trainer)[environment]
            # What is begun where a dead sealer keeps the partition, no sampler knows.
            in_flight = 0 if self._dead_sealers else len(self._in_flight[environment])
            held = in_flight + trainer.ready(environment) + trainer.in_hand(environment)
            # What a rewind gives back, or was begun before a sampler began, that one did not grant.
            reads = self.now_s < max(trainer.resumed_s, self._untold_sealed_s) + READS_S
            held_ever = held + len(self._untold[environment])
            trainer.unbounded[environment] |= self._is_idle(trainer)
            trainer.unbounded[environment] &= reads or held_ever > most + lacking
            if trainer.unbounded[environment] or held <= (1 if calm else 2) * most + lacking:
                return
            problems.append(
                f"{trainer.name}: {held} of {environment}, {in_flight} of them in flight, where "
                f"{most} and {lacking} that requests lack may be"
            )
        raise Violation("; ".join(problems))

    def _is_idle(self, trainer: Trainer) -> bool:
        """Whether workers go on slowly though it takes nothing: no policy was published since its
        shares ran out, for as long once more."""
        state = trainer.sampler._owner._logs.state
        age_us = self._clock.now_us() - state.published.newest_ts
        return age_us >= 2e6 * self.config.samplers[trainer.name].admission_idle_s

    def _read_seals(self) -> None:
        for one in self._sealed.poll(1_000, 0.0):
            if isinstance(one.event, Flushed):
                ended = [group.example_id for group in one.event.groups]
                for part in one.event.unsealed:
                    ended += part.example_ids
                for name, uid in product(self._environments, ended):
                    self._in_flight[name].pop(uid, None)
                    if self._untold[name].pop(uid, None):
                        self._untold_sealed_s = self.now_s

    def _check_restart(self) -> None:
        """Who begins from the logs makes of them what those do who were there."""
        now_us = self._clock.now_us()
        for trainer in self._trainers:
            owner = Restarted(self, trainer.name)
            found = []
            for sampler in (trainer.sampler, owner.sampler):
                sampler.stats()
                state = sampler._owner._logs.state
                reported = sampler._owner._logs.reported()
                loads = Loads(self.config.samplers[trainer.name]).now(state, reported, now_us)
                # Of ended groups only counts how many more there are than before.
                loads = {name: load._replace(ended=0) for name, load in loads.items()}
                found.append((sampler._owner._logs.state.digest(), loads))
            self._bury(owner)
            if found[0] != found[1]:
                raise Violation(f"{trainer.name}: a restart changes {found[0]} to {found[1]}")

    def _noting(self, now: Callable[..., Any]) -> Callable[..., Any]:
        def noted(loads: Loads, *arguments: Any) -> Any:
            found = now(loads, *arguments)
            most = self._most[loads]
            for name, load in found.items():
                most[name] = max(most[name], load.most)
            return found

        return noted

    def _close(self) -> None:
        for trainer in [*self._trainers, *(one for _, one in self._zombies)]:
            self._bury(trainer)
        self._sealed.close()


FAULTS: dict[Callable[[Admitted], None], float] = {
    Admitted._kill_worker: 6,
    Admitted._put_to_sleep: 2,
    Admitted._kill_sealer: 2,
    Admitted._kill_trainer: 3,
    Admitted._make_zombie: 3,
    Admitted._stop_trainer: 2,
    Admitted._rewind: 2,
    Admitted._leave: 1,
    Admitted._compact: 2,
}
