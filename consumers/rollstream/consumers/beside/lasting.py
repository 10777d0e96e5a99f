"""How long the job of a partition lasts."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from rollstream.runtime.clock import Clock, time_of_day

HANGS = "{} has not ended since {}: does the store hang (an NFS mount, a dying disk)?"
CLAIMS = "the seal log is read since {} to be claimed: it is long, or the broker is slow"
APPENDS = "the broker has not confirmed since {} what is appended to the seal log: it is slow"
WAITS = "a step waits since {} until those of other partitions have ended: what hinders them?"


class Lasting:
    """Since when the same job runs and does not go on, or waits to be run.

    Attributes:
        runs: whether it runs.
    """

    def __init__(self, clock: Clock) -> None:
        self.runs = False
        self._clock = clock
        self._job: Future[Any] | None = None
        self._went_on = 0
        self._from_s, self._from_us = 0.0, 0

    def look(self, job: Future[Any] | None, went_on: int = 0) -> None:
        """This is the job now, if there is any.

        Args:
            went_on: another number than before where the same job got further.
        """
        runs = job is not None and job.running()
        if (job, runs, went_on) != (self._job, self.runs, self._went_on):
            self._job, self.runs, self._went_on = job, runs, went_on
            self._from_s, self._from_us = self._clock.monotonic_s(), self._clock.now_us()

    def is_long(self, seconds: float) -> bool:
        """Whether there is a job, and this was so for so long."""
        return self._job is not None and self._clock.monotonic_s() >= self._from_s + seconds

    def told(self, store_step: str, *, claims: bool = False) -> str:
        """Returns in words what has not ended for so long.

        Args:
            store_step: the step of the job that calls the store; empty: none does.
            claims: whether the job claims the seal log.
        """
        if not self.runs:
            return WAITS.format(self.since)
        if store_step:
            return HANGS.format(store_step, self.since)
        return (CLAIMS if claims else APPENDS).format(self.since)

    @property
    def since(self) -> str:
        """The time of the day when it began."""
        return time_of_day(self._from_us)
