"""Log time between two records, and whether this machine's clock agrees with it."""

from __future__ import annotations

from rollstream.runtime.clock import Clock
from rollstream.streams.troubles import CLOCK_OFF_S

BACK_US = 300_000_000  # No event is confirmed so long after its LogAppendTime.


class LogClock:
    """The newest LogAppendTime that was seen, and what passed since then on the monotonic clock. So
    no wall clock but the brokers' decides anything, and a takeover postpones no time-out: the
    claim has a LogAppendTime of its own.

    It may lag by what a record was on its way, and is never ahead of the brokers' clocks.

    Attributes:
        ahead_us: this machine's clock was as far ahead when an event was last confirmed.

    Args:
        may_go_back: a confirmed event that is ``BACK_US`` older than log time sets it back: a
            broker's clock was ahead.
        confirmed_us: the owner's claim has this LogAppendTime. None: there is no claim yet, and
            this machine's clock is all there is.
    """

    def __init__(
        self, clock: Clock, confirmed_us: int | None = None, *, may_go_back: bool = False
    ) -> None:
        self._clock = clock
        self._may_go_back = may_go_back
        self._seen: tuple[int, float] | None = None
        self._confirmed_us: int | None = None
        self.ahead_us = 0
        if confirmed_us is not None:
            self.confirmed(confirmed_us)

    def saw(self, timestamp_us: int) -> None:
        """A record has this LogAppendTime."""
        if self._seen is None or timestamp_us > self.now_us():
            self._seen = timestamp_us, self._clock.monotonic_s()

    def confirmed(self, timestamp_us: int) -> None:
        """The owner's newest event has this LogAppendTime. Idempotent."""
        if timestamp_us != self._confirmed_us:
            self._confirmed_us = timestamp_us
            if self._may_go_back and timestamp_us <= self.now_us() - BACK_US:
                self._seen = None
            self.saw(timestamp_us)
            self.ahead_us = self._clock.now_us() - self.now_us()

    def now_us(self) -> int:
        """Log time, in microseconds."""
        if self._seen is None:
            return self._clock.now_us()
        newest_us, seen_s = self._seen
        return newest_us + round((self._clock.monotonic_s() - seen_s) * 1e6)

    @property
    def jumped(self) -> bool:
        """Whether one of both clocks was set, or the machine slept, since an event was last
        confirmed. The next one shows which clock is right now."""
        return self.is_off(self.ahead_us)

    def is_off(self, ahead_us: int) -> bool:
        """Returns whether this machine's clock is not as far ahead as that, or right again."""
        off_us, now_us = CLOCK_OFF_S * 1e6, self._clock.now_us() - self.now_us()
        return abs(now_us - ahead_us) >= off_us or abs(ahead_us) >= off_us > 2 * abs(now_us)
