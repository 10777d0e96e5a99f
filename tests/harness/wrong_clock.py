"""A clock that goes wrong."""

from __future__ import annotations

import threading

from rollstream.runtime.clock import Clock

HOUR_US = 3_600_000_000


class WrongClock:
    """Another machine's clock, which is ahead of the brokers', or behind.

    Attributes:
        ahead_us: by how much; whoever sets the machine's clock changes it.
    """

    def __init__(self, inner: Clock, ahead_us: int) -> None:
        self._inner = inner
        self.ahead_us = ahead_us

    def now_us(self) -> int:
        return self._inner.now_us() + self.ahead_us

    def monotonic_s(self) -> float:
        return self._inner.monotonic_s()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return self._inner.wait(event, timeout_s)
