"""Clocks. No other file asks the system for the time."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


def time_of_day(us: int) -> str:
    """Returns the time of the day of a wall clock's microseconds, in UTC."""
    return f"{datetime.fromtimestamp(us // 1_000_000, UTC):%H:%M:%S} UTC"


class Clock(Protocol):
    """The interface of a clock, so that tests can bring their own."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary origin; they never decrease."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Waits until ``event`` is set, at most ``timeout_s``; returns whether it is set."""


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


class ManualClock:
    """A clock for tests, which moves only by ``advance`` and by the time-outs of ``wait``."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        self._start_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def monotonic_s(self) -> float:
        return (self._now_us - self._start_us) / 1e6

    def advance(self, seconds: float) -> None:
        """Moves the clock forward."""
        self._now_us += round(seconds * 1e6)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            # At least its resolution: a deadline with less than that left must pass, too.
            self.advance(max(timeout_s, 1e-6))
        return event.is_set()
