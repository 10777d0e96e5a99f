"""How long a wait may still last."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rollstream.runtime.clock import Clock, SystemClock

SAY_EVERY_S = 30.0  # Every wait says this often what it waits for.
_log = logging.getLogger("rollstream.wait")


class Deadline:
    """A point in monotonic time; made once at the door and handed down, so waits never add up."""

    def __init__(self, timeout_s: float, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._begun_s = self._clock.monotonic_s()
        self._said_s = self._begun_s
        self.timeout_s = timeout_s

    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._begun_s + self.timeout_s - self._clock.monotonic_s())

    def passed(self) -> bool:
        return self.left_s() == 0.0

    def slice_s(self, longest_s: float) -> float:
        """How long one step of a polling wait may take."""
        return min(longest_s, self.left_s())

    def say(self, what: Callable[[], str]) -> None:
        """Logs what is waited for, each 30 s; call it in every turn of a waiting loop."""
        now_s = self._clock.monotonic_s()
        if now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            _log.warning("waiting since %.0f s for %s", now_s - self._begun_s, what())
