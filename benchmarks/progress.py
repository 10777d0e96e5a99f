"""The progress of a round, in a shared file of a few integers that all its processes read.

Reading one costs much less than a rollout, and it paces all systems in the same way.
"""

from __future__ import annotations

import mmap
from pathlib import Path

SETTING_UP, WARMING_UP, MEASURING, DRAINING = range(4)
NO_LIMIT = 1 << 62
_CONSUMED, _LIMIT, _PHASE, _SENT = range(4)
_CELLS = 4


class Progress:
    """A view of the shared file. The trainer writes all but ``sent_ns``, which a replica writes."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._cells = memoryview(mmap.mmap(file.fileno(), 8 * _CELLS)).cast("q")

    @classmethod
    def create(cls, path: Path) -> Progress:
        path.write_bytes(bytes(8 * _CELLS))
        progress = cls(path)
        progress.limit = NO_LIMIT
        return progress

    @property
    def consumed(self) -> int:
        """Number of rollouts that the trainer has taken."""
        return self._cells[_CONSUMED]

    @consumed.setter
    def consumed(self, count: int) -> None:
        self._cells[_CONSUMED] = count

    @property
    def limit(self) -> int:
        """Rollouts from this number on are not sent."""
        return self._cells[_LIMIT]

    @limit.setter
    def limit(self, number: int) -> None:
        self._cells[_LIMIT] = number

    @property
    def phase(self) -> int:
        return self._cells[_PHASE]

    @phase.setter
    def phase(self, phase: int) -> None:
        self._cells[_PHASE] = phase

    @property
    def sent_ns(self) -> int:
        """Where rollouts go one at a time: when the newest was sent, by ``time.monotonic_ns``."""
        return self._cells[_SENT]

    @sent_ns.setter
    def sent_ns(self, nanoseconds: int) -> None:
        self._cells[_SENT] = nanoseconds
