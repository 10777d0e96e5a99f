"""What every simulated world has in common: a seed, what it met, and what did not hold."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from harness.faults import Append, Fate, FaultyBroker
from rollstream.runtime.clock import Clock
from rollstream.streams.broker import Broker


class Violation(AssertionError):
    """An invariant that did not hold."""


class World(Protocol):
    """One seed.

    Attributes:
        faults: how many appends, reads, writes or processes were disturbed.
        reached: the states that the world came to, and how often.
    """

    faults: int
    reached: Counter[str]

    def run(self) -> None:
        """From its beginning to its end; whatever it raises, ``Violation`` or not, did not hold."""


class TurningBroker(FaultyBroker):
    """Calls ``turn`` before each append and each read, so that others act in between; then ``fate``
    is asked about the append. Others act on the thread that made it alone: any other one may hold
    what they wait for."""

    def __init__(
        self,
        inner: Broker,
        turn: Callable[[], None],
        fate: Callable[[Append], Fate],
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(inner, self._turn_and_decide, clock=clock)
        self._turn = turn
        self._thread = threading.get_ident()
        self.fate = fate

    def before_read(self) -> None:
        self._let_others_act()

    def _turn_and_decide(self, append: Append) -> Fate:
        self._let_others_act()
        return self.fate(append)

    def _let_others_act(self) -> None:
        if threading.get_ident() == self._thread:
            self._turn()
