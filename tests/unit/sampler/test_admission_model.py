"""Many producers, sealers that report late, a trainer, and the shares between them: a slow model.

Nothing is ever stuck, and what is in flight and ready exceeds the limit by little.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from rollstream.producers.admission.standing import ALIVE_S
from rollstream.sampler.decide.admission.shares import Shares
from rollstream.schemas.events import ProducerColumns, ProducerInFlight
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.in_flight import InFlightGroups

LOOK_S = 0.25
REPORT_S = 1.0  # How often a sealer reports what changed.
READ_S = 0.25  # How late a producer reads its total.
GROUPS = 16  # A step's.
MOST = 3 * GROUPS
START_US = 10**15


@dataclass(eq=False)
class Producer:
    """A process that begins groups as fast as it may.

    Attributes:
        groups: when each of its groups ends, and on which partition it is.
        total: what it read that it may have begun.
        wants: how many groups it would have open at one time.
    """

    name: str
    wants: int
    begun: int = 0
    total: int = 0
    said_s: float = -ALIVE_S
    groups: list[tuple[float, int]] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        return max(0, self.wants - len(self.groups))


class Model:
    """One environment, with ``partitions``; time goes by in looks of the sampler."""

    def __init__(self, seed: int, *, producers: int, partitions: int, group_s: float) -> None:
        self.dice = random.Random(seed)
        self.group_s = group_s
        self.now_s = 0.0
        self.logs = [PartitionAddress("math", 1, number) for number in range(partitions)]
        self.phases = [self.dice.random() * REPORT_S for _ in self.logs]
        # What each sealer read: by producer its open groups, and what it said last.
        self.seen: list[dict[str, ProducerInFlight]] = [{} for _ in self.logs]
        self.in_flight = InFlightGroups()
        self.shares = Shares()
        self.ready = 0
        self.unacked = 0
        self.ended = self.steps = 0
        self.names = 0
        self.read: list[tuple[float, dict[str, int]]] = []
        self.producers = [self._new() for _ in range(producers)]
        self.exceeded = 0

    def run(self, seconds: float, *, step_s: float = 10.0, kill_every_s: float = 0.0) -> None:
        until_s, next_step_s, killed_s = self.now_s + seconds, self.now_s, self.now_s
        while self.now_s < until_s:
            self.now_s += LOOK_S
            if kill_every_s and self.now_s - killed_s >= kill_every_s:
                killed_s = self.now_s
                self.producers[self.dice.randrange(len(self.producers))] = self._new()
            self._produce()
            self._report()
            if self.now_s >= next_step_s:
                self.unacked = 0
                if self.ready >= GROUPS:
                    self.unacked = GROUPS
                    self.ready -= GROUPS
                    self.steps += 1
                    next_step_s = self.now_s + step_s
            self._grant()
            in_flight = sum(len(one.groups) for one in self.producers)
            self.exceeded = max(self.exceeded, in_flight + self.ready + self.unacked - MOST)

    def _new(self) -> Producer:
        self.names += 1
        return Producer(f"p{self.names:04}", wants=self.dice.choice((2, 8, 40)))

    def _produce(self) -> None:
        while self.read and self.read[0][0] <= self.now_s:
            _, totals = self.read.pop(0)
            for one in self.producers:
                one.total = totals.get(one.name, 0)
        for one in self.producers:
            ended = [group for group in one.groups if group[0] <= self.now_s]
            one.groups = [group for group in one.groups if group[0] > self.now_s]
            for _, partition in ended:
                self._say(one, partition, -1)
                self.ready += 1
                self.ended += 1
            while one.waiting and one.begun < one.total:
                partition = self.dice.randrange(len(self.logs))
                ends_s = self.now_s + self.dice.uniform(0.2, 1.8) * self.group_s
                one.groups.append((ends_s, partition))
                one.begun += 1
                self._say(one, partition, 1)
            if self.now_s >= one.said_s + ALIVE_S and (one.groups or one.waiting):
                self._say(one, self.dice.randrange(len(self.logs)), 0)

    def _say(self, one: Producer, partition: int, more: int) -> None:
        one.said_s = self.now_s
        known = self.seen[partition].get(one.name)
        is_open = more + (known.open if known else 0)
        self.seen[partition][one.name] = ProducerInFlight(
            one.name, one.begun, is_open, one.waiting, self._log_us()
        )

    def _report(self) -> None:
        for log, phase, seen in zip(self.logs, self.phases, self.seen, strict=True):
            if int((self.now_s + phase) / REPORT_S) != int(
                (self.now_s + phase - LOOK_S) / REPORT_S
            ):
                reported = tuple(seen.values())
                self.in_flight.apply(log, ProducerColumns.of(reported), self._log_us())

    def _grant(self) -> None:
        living = self.in_flight.living("math", self._log_us())
        taken = sum(one.open for one in living) + self.ready + self.unacked
        free = max(0, MOST - taken)
        self.shares.share(living, free, self.ended, self._log_us(), self.now_s)
        totals = dict(zip(self.shares.ids, self.shares.totals.tolist(), strict=True))
        self.read.append((self.now_s + READ_S, totals))

    def _log_us(self) -> int:
        return START_US + round(self.now_s * 1e6)


@pytest.mark.proves("F5")
@pytest.mark.parametrize("kill_every_s", [0.0, 10.0])
@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize(("producers", "group_s"), [(10, 0.5), (10, 4.0), (60, 10.0)])
def test_a_trainer_never_waits_for_workers_that_wait_and_the_limit_holds(
    producers: int, group_s: float, partitions: int, kill_every_s: float
) -> None:
    model = Model(1, producers=producers, partitions=partitions, group_s=group_s)
    model.run(60.0, kill_every_s=kill_every_s)
    before = model.steps
    model.run(200.0, kill_every_s=kill_every_s)
    assert model.steps - before >= 19  # Of twenty, were each there at once.
    assert model.exceeded <= 0


@pytest.mark.proves("F5")
@pytest.mark.parametrize("seed", range(3))
def test_a_sampler_that_begins_anew_again_and_again_exceeds_the_limit_at_most_once_more(
    seed: int,
) -> None:
    model = Model(seed, producers=20, partitions=4, group_s=8.0)
    for _ in range(40):
        model.run(model.dice.uniform(0.3, 8.0))
        model.shares = Shares()
    assert model.exceeded <= MOST
    assert model.steps >= 15


@pytest.mark.proves("F5")
def test_all_go_on_where_every_producer_was_killed_at_one_time() -> None:
    model = Model(5, producers=12, partitions=2, group_s=20.0)
    model.run(100.0)
    model.producers = [model._new() for _ in model.producers]
    before = model.steps
    model.run(100.0)  # Twenty seconds pass until those that are gone hold nothing any more.
    assert model.steps - before >= 5
    assert sum(one.begun > 0 for one in model.producers) == len(model.producers)
