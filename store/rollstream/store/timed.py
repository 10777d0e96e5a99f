"""A store whose calls are timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rollstream.runtime.clock import Clock
from rollstream.runtime.metrics import catalogue
from rollstream.runtime.metrics.timings import Timings
from rollstream.store.blobs import Blobs
from rollstream.store.calls import CalledBlobs
from rollstream.store.errors import BlobExists, BlobMissing

T = TypeVar("T")


class TimedBlobs(CalledBlobs):
    """Another store, each of whose calls is timed, and counted where it fails. That a blob exists,
    or is missing, is no failure."""

    def __init__(self, inner: Blobs, timings: Timings, clock: Clock) -> None:
        super().__init__(inner)
        self._timings = timings
        self._clock = clock

    def _call(self, name: str, path: str, run: Callable[[], T]) -> T:
        begun_s, failed = self._clock.monotonic_s(), 1
        try:
            result = run()
            failed = 0
            return result
        except (BlobExists, BlobMissing):
            failed = 0
            raise
        finally:
            self._timings.count(catalogue.STORE_FAILURES, name, times=failed)
            took_s = self._clock.monotonic_s() - begun_s
            self._timings.observe(catalogue.STORE_CALL, took_s, name)
