"""How long a broker that was killed may take to read its logs again."""

from __future__ import annotations

from pathlib import Path

from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline

TIMES_IN_ALL = 20  # So many times the time-out in all, for a broker that writes without an end.


class RecoveryDeadline:
    """Passes once the broker wrote nothing to its log for ``timeout_s``, or after 20 times that.

    After a kill -9 Kafka checks what was not synced, which takes as long as there is much, and
    begins anew at each start: one that is killed in the middle of it would never be done.

    Args:
        log: the file that the broker writes to; may be missing.
        timeout_s: for its next line.
        clock: for tests.
    """

    def __init__(self, log: Path, timeout_s: float, clock: Clock | None = None) -> None:
        self.whole = Deadline(timeout_s * TIMES_IN_ALL, clock)
        self._next_line = Deadline(timeout_s, clock)
        self._log = log
        self._seen = self._state()

    def passed(self) -> bool:
        if (state := self._state()) != self._seen:
            self._seen = state
            self._next_line.restart()
        return self._next_line.passed() or self.whole.passed()

    def _state(self) -> tuple[int, int]:
        """Which file it is, and how long: a log that was rolled over is shorter."""
        try:
            found = self._log.stat()
        except FileNotFoundError:
            return (0, 0)
        return (found.st_ino, found.st_size)
