"""Since when a loop, or the holder of a lock, makes no progress."""

from __future__ import annotations

import threading

from rollstream.runtime.clock import Clock


class Heartbeat:
    """When a loop came round last. Any thread may look at it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_s = clock.monotonic_s()

    def beat(self) -> None:
        """The loop comes round now."""
        self._at_s = self._clock.monotonic_s()

    def age_s(self) -> float:
        """Seconds since then."""
        return self._clock.monotonic_s() - self._at_s


class HeldLock:
    """A lock that knows since when it is held. ``threading.Condition`` takes it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since_s: float | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As ``threading.Lock``."""
        acquired = self._lock.acquire(blocking, timeout)
        if acquired:
            self._since_s = self._clock.monotonic_s()
        return acquired

    def release(self) -> None:
        """As ``threading.Lock``."""
        self._since_s = None
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def held_s(self) -> float:
        """For how many seconds its holder has it; 0: nobody has."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._clock.monotonic_s() - since_s
