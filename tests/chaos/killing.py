"""Kills and stops processes under a seed, and counts what each of them was at."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from chaos.fleet import Fleet
from chaos.phases import Process, order_file, read_phase, state_of, take_back
from chaos.settings import STOP_S
from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline

# Who is hit, how often beside the others, and what it is best at then: one of these is aimed at.
VICTIMS = {
    "producer": (4, ("",)),
    "sealer": (7, ("flush: put", "flush: append", "flush: project", "flush", "claim", "")),
    "sampler": (5, ("decision", "decision", "claim", "snapshot", "")),
    "verifier": (3, ("score: publish", "score: flush", "score: commit", "")),
    "trainer": (3, ("batch asked", "ack", "checkpoint", "")),
    "broker": (2, ("",)),
    "store": (3, ("",)),
}
SERVERS = ("broker", "store")
STOPPED = 0.3  # Of the hits are a stop and a continuation, the others are kill -9.
BETWEEN_S = (0.2, 1.5)
AIM_S = 2.0
ASLEEP_S = 60.0  # It falls asleep once it took an order, and has a core.
SUCCESSOR_S = 15.0  # For one to start, and to get its partitions.
AIM_EVERY_S = 0.001


class Target(NamedTuple):
    """One process and its successors; None while there is none."""

    look: Callable[[], Process | None]
    phases: Path | None


class Server(NamedTuple):
    """A process that all others need: its id, and what starts it once it was killed."""

    pid: Callable[[], int]
    restart: Callable[[], object]


class Killer:
    """Hits one process after the other.

    Args:
        servers: those of the victims that are servers and part of this run.
        only: the kind that is hit; empty: all of them.

    Attributes:
        hits: by victim and what it was at.
    """

    def __init__(
        self,
        seed: int,
        fleet: Fleet,
        servers: Mapping[str, Server],
        sampler_phases: Path,
        clock: Clock,
        only: str = "",
    ) -> None:
        self.hits: Counter[str] = Counter()
        others = VICTIMS.keys() - SERVERS
        self._victims = [only] if only else [v for v in VICTIMS if v in others or v in servers]
        self._dice = random.Random(seed)
        self._fleet = fleet
        self._servers = servers
        self._sampler_phases = sampler_phases
        self._clock = clock
        self._never = threading.Event()
        self._sleepers: list[threading.Timer] = []
        self._killed: set[int] = set()

    def run(self, kills: int, report: Callable[[str], None]) -> None:
        """So many hits; every process that was stopped goes on when it returns."""
        while self.hits.total() < kills:
            self._clock.wait(self._never, self._dice.uniform(*BETWEEN_S))
            weights = [VICTIMS[victim][0] for victim in self._victims]
            (victim,) = self._dice.choices(self._victims, weights)
            target = self._target(victim)
            aims = [(self._dice.choice(VICTIMS[victim][1]), self._dice.random() < STOPPED)]
            if aims[0][0] == "claim":
                aims.insert(0, ("", False))  # What loses its owner is claimed anew.
            for aim, stop in aims:
                how = self._hit(victim, target, aim, stop=stop)
                report(f"{self.hits.total()}: {how}")
        for sleeper in self._sleepers:
            sleeper.join()

    def _hit(self, victim: str, target: Target, aim: str, *, stop: bool) -> str:
        process = self._stopped(target, aim)
        what = f"{victim} at {process.phase}" if process.phase else victim
        self.hits[what] += 1
        if stop:
            seconds = self._dice.uniform(0.1, STOP_S)
            self._sleepers.append(threading.Timer(seconds, _send, (process.pid, signal.SIGCONT)))
            self._sleepers[-1].start()
            return f"{what}: asleep for {seconds:.1f} s"
        _send(process.pid, signal.SIGKILL)
        self._killed.add(process.pid)
        if victim in self._servers:
            self._servers[victim].restart()
        return f"{what}: killed"

    def _stopped(self, target: Target, aim: str) -> Process:
        """The process, which cannot go on, once it is at what is aimed at, or the time is up."""
        if aim and target.phases is not None:
            order = order_file(target.phases)
            written = order.with_suffix(".written")
            written.write_text(f"{aim}|{self._dice.choice(('begin', 'end'))}")
            written.rename(order)  # Whoever reads it reads all of it.
            aimed = Deadline(
                SUCCESSOR_S if aim.startswith(("claim", "score")) else AIM_S, self._clock
            )
            while order.exists() and not aimed.passed():
                self._clock.wait(self._never, AIM_EVERY_S)
            pid = take_back(order)
            if pid is not None:
                self._wait_until_asleep(pid)
                found = target.look()
                return found if found is not None and found.pid == pid else Process(pid, aim)
        while True:
            process = target.look()
            if process is not None and process.pid not in self._killed:
                stopped = _send(process.pid, signal.SIGSTOP)
                if stopped:
                    return target.look() or process
            self._clock.wait(self._never, AIM_EVERY_S)

    def _wait_until_asleep(self, pid: int) -> None:
        """A process that took an order; woken before it falls asleep, it would do so for ever."""
        asleep = Deadline(ASLEEP_S, self._clock)
        while state_of(pid) != "T":
            assert not asleep.passed(), f"process {pid} took an order and is {state_of(pid)}"
            self._clock.wait(self._never, AIM_EVERY_S)

    def _target(self, victim: str) -> Target:
        if victim in self._servers:
            server = self._servers[victim]
            return Target(lambda: Process(server.pid(), ""), None)
        if victim == "sampler":
            return Target(lambda: read_phase(self._sampler_phases), self._sampler_phases)
        name = self._dice.choice(self._fleet.names(victim))
        return Target(lambda: self._fleet.process(name), self._fleet.phases(name))


def _send(pid: int, number: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
