"""How long the job of a partition lasts."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from rollstream.runtime.clock import Clock


class Lasting:
    """Since when the same job runs, or waits to be run.

    Attributes:
        runs: whether it runs.
    """

    def __init__(self, clock: Clock) -> None:
        self.runs = False
        self._clock = clock
        self._job: Future[Any] | None = None
        self._from_s, self._from_us = 0.0, 0

    def look(self, job: Future[Any] | None) -> None:
        """This is the job now, if there is any."""
        runs = job is not None and job.running()
        if (job, runs) != (self._job, self.runs):
            self._job, self.runs = job, runs
            self._from_s, self._from_us = self._clock.monotonic_s(), self._clock.now_us()

    def is_long(self, seconds: float) -> bool:
        """Whether there is a job, and this was so for so long."""
        return self._job is not None and self._clock.monotonic_s() >= self._from_s + seconds

    @property
    def since(self) -> str:
        """The time of the day when it began."""
        return f"{datetime.fromtimestamp(self._from_us // 1_000_000, UTC):%H:%M:%S} UTC"
