"""Deadlines of waits, which log what they wait for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rollstream.runtime.clock import Clock, SystemClock

LOG_WAITING_EVERY_S = 30.0  # How often a wait logs what it waits for.
_log = logging.getLogger("rollstream.wait")


class Deadline:
    """A point in monotonic time. A public call makes one and hands it to all that it calls, so that
    their waits share the time-out instead of adding up."""

    def __init__(self, timeout_s: float, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._begun_s = self.clock.monotonic_s()
        self._logged_s = self._waits_from_s = self._begun_s
        self.timeout_s = timeout_s

    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._begun_s + self.timeout_s - self.clock.monotonic_s())

    def passed(self) -> bool:
        return self.left_s() == 0.0

    def slice_s(self, longest_s: float) -> float:
        """The time left, or ``longest_s`` where that is less: the time-out of one poll."""
        return min(longest_s, self.left_s())

    def wait(self, longest_s: float) -> None:
        """Waits ``longest_s``, or the time left where that is less."""
        self.clock.wait(threading.Event(), self.slice_s(longest_s))

    def restart(self) -> None:
        """What was waited for moved on: the whole time-out is left again. For reads of any length,
        whose time-out is for one answer."""
        self._begun_s = self.clock.monotonic_s()

    def end(self) -> None:
        """It has passed from now on, for all that were given it, in whatever thread."""
        self.timeout_s = 0.0

    def log_waiting(self, what: Callable[[], str]) -> None:
        """Logs a warning that names what is waited for, at most every 30 s.

        Waiting loops call it in every iteration; ``what`` is called only when a line is due.
        """
        now_s = self.clock.monotonic_s()
        if now_s - self._logged_s >= LOG_WAITING_EVERY_S:
            self._logged_s = now_s
            _log.warning("waited %.0f s so far for %s", now_s - self._waits_from_s, what())
