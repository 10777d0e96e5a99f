"""Log time between two records."""

from __future__ import annotations

from rollstream.runtime.clock import Clock


class LogClock:
    """The newest LogAppendTime that was seen, and what passed since then on the monotonic clock. So
    no wall clock but the brokers' decides anything, and a takeover postpones no time-out: the
    claim has a LogAppendTime of its own.

    It may lag by what a record was on its way, and is never ahead of the brokers' clocks.

    Args:
        newest_us: the owner's claim has this LogAppendTime.
    """

    def __init__(self, clock: Clock, newest_us: int) -> None:
        self._clock = clock
        self._seen = newest_us, clock.monotonic_s()

    def saw(self, timestamp_us: int) -> None:
        """A record has this LogAppendTime."""
        if timestamp_us > self.now_us():
            self._seen = timestamp_us, self._clock.monotonic_s()

    def now_us(self) -> int:
        """Log time, in microseconds."""
        newest_us, seen_s = self._seen
        return newest_us + round((self._clock.monotonic_s() - seen_s) * 1e6)
