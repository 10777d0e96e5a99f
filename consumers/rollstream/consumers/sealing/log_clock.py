"""Log time between two records."""

from __future__ import annotations

from rollstream.runtime.clock import Clock


class LogClock:
    """The newest LogAppendTime that was seen, and what passed since then on the monotonic clock. So
    no wall clock but the brokers' decides anything, and a takeover postpones no time-out: the
    claim has a LogAppendTime of its own.

    It may lag by what a record was on its way, and is never ahead of the brokers' clocks.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: tuple[int, float] | None = None  # Microseconds, and when.

    def saw(self, timestamp_us: int) -> None:
        """A record has this LogAppendTime."""
        now_us = self.now_us()
        if now_us is None or timestamp_us > now_us:
            self._seen = timestamp_us, self._clock.monotonic_s()

    def now_us(self) -> int | None:
        """Log time, in microseconds; None: no record was seen so far."""
        if self._seen is None:
            return None
        newest_us, seen_s = self._seen
        return newest_us + round((self._clock.monotonic_s() - seen_s) * 1e6)
