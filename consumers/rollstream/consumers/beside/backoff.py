"""How long to wait before the next attempt, and what is logged meanwhile."""

from __future__ import annotations

import logging

from rollstream.runtime.clock import Clock, time_of_day
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import RollstreamError

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 5.0
TROUBLE_AFTER_S = 8.0  # What passes sooner is nobody's concern.
_log = logging.getLogger("rollstream.sealer")


def described(error: Exception) -> tuple[str, Exception | None]:
    """Returns an error as text, and the error itself if nobody foresaw it, to log its place."""
    return (str(error), None) if isinstance(error, RollstreamError) else (repr(error), error)


class Backoff:
    """Attempts at growing intervals, without end; failures are logged at first and now and then.

    Attributes:
        why: the newest attempt failed; empty: it succeeded.
        error: of that attempt; None: it succeeded.
        since: the time of the day of the first failure since the newest success.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.since = ""
        self.reset()

    def reset(self) -> None:
        """An attempt succeeded: the next failure counts as the first."""
        self._failing: Deadline | None = None
        self.why = ""
        self.error: Exception | None = None
        self._wait_s = FIRST_WAIT_S
        self._until_s = 0.0

    def record_failure(self, what: str, error: Exception) -> None:
        """An attempt failed: the next one waits."""
        text, unforeseen = described(error)
        if self._failing is None:
            self._failing = Deadline(TROUBLE_AFTER_S, self._clock)
            self.since = time_of_day(self._clock.now_us())
            _log.warning("%s: %s; trying again", what, text, exc_info=unforeseen)
        self.why, self.error = f"{what}: {text}", error
        self._failing.log_waiting(lambda: self.why)
        self._until_s = self._clock.monotonic_s() + self._wait_s
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)

    def is_trouble(self) -> bool:
        """Whether no attempt has succeeded for ``TROUBLE_AFTER_S``."""
        return self._failing is not None and self._failing.passed()

    def active(self) -> bool:
        """Whether it is too early for the next attempt."""
        return self._clock.monotonic_s() < self._until_s
