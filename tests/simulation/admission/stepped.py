"""Processes whose threads and clocks belong to the world: one thread runs all of them in turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from harness.faults import Append, Fate, FaultyBroker
from rollstream.producers.admission import waiting
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.stepping import StepThread
from rollstream.sampler.engine.outbox import announcing
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerUnavailable

JOIN_STEPS_MAX = 8  # Until a thread that is to end has ended.


class OwnClock:
    """A process's: as fast as the world's, from another origin, and wrong."""

    def __init__(self, world: ManualClock, origin_s: float, ahead_s: float) -> None:
        self.ahead_s = ahead_s
        self._world = world
        self._origin_s = origin_s

    def now_us(self) -> int:
        return self._world.now_us() + round(self.ahead_s * 1e6)

    def monotonic_s(self) -> float:
        return self._world.monotonic_s() + self._origin_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return self._world.wait(event, timeout_s)


class Network:
    """Whether processes reach the broker, and what becomes of what they append."""

    def __init__(self) -> None:
        self.away = False

    def fate(self, append: Append) -> Fate:
        """Decides about an append that reaches the broker."""
        return Fate.PASS


class ReachedBroker(FaultyBroker):
    """A process's way to the broker.

    Attributes:
        cut: nothing that the process does reaches it any more.
    """

    def __init__(self, inner: Broker, network: Network) -> None:
        super().__init__(inner, self._decide)
        self.cut = False
        self._network = network

    def before_read(self) -> None:
        self._reach()

    def _decide(self, append: Append) -> Fate:
        self._reach()
        return self._network.fate(append)

    def _reach(self) -> None:
        if self.cut or self._network.away:
            raise BrokerUnavailable("the world's broker is away")


class Stepped:
    """Runs the steps of every ``StepThread`` when its process has its turn, and is due by the
    world's clock; no thread is ever started."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._process: object = None
        self._due: dict[StepThread, tuple[object, float]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Takes the threads' place. What announces then goes by the world's clock, too."""

        def wake(thread: StepThread) -> None:
            self._wake(thread)

        def join(thread: StepThread, timeout_s: float | None = None) -> None:
            self._join(thread)

        with ExitStack() as stack:
            patched: list[tuple[Any, str, Any]] = [
                (StepThread, "wake", wake),
                (StepThread, "join", join),
                (announcing, "SystemClock", lambda: self._clock),
                # Whoever waits for admission is served by the worker's own turns.
                (waiting, "threading", SimpleNamespace(Lock=threading.Lock, Thread=_NoThread)),
            ]
            for target, name, stand_in in patched:
                stack.enter_context(patch.object(target, name, stand_in))
            yield

    @contextmanager
    def turn(self, process: object) -> Iterator[None]:
        """What is begun within belongs to the process; what of it is due is run first."""
        before, self._process = self._process, process
        try:
            for thread, (owner, due_s) in list(self._due.items()):
                if owner is process and due_s <= self._clock.monotonic_s():
                    self._step(thread)
            yield
        finally:
            self._process = before

    def end(self, process: object) -> None:
        """The process is no more."""
        self._due = {thread: due for thread, due in self._due.items() if due[0] is not process}

    def _wake(self, thread: StepThread) -> None:
        owner, _ = self._due.get(thread, (self._process, 0.0))
        self._due[thread] = owner, self._clock.monotonic_s()

    def _step(self, thread: StepThread) -> None:
        step = thread._step()
        sleep_s = None if step is None else step()
        if sleep_s is None:
            self._due.pop(thread, None)
        elif thread in self._due:
            self._due[thread] = self._due[thread][0], self._clock.monotonic_s() + sleep_s

    def _join(self, thread: StepThread) -> None:
        for _ in range(JOIN_STEPS_MAX):
            if thread in self._due:
                self._step(thread)


class _NoThread:
    def __init__(self, **of_thread: Any) -> None:
        pass

    def start(self) -> None:
        pass
