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
    or is missing, is no failure. Any thread may call ``hangs``."""

    def __init__(self, inner: Blobs, timings: Timings, clock: Clock) -> None:
        super().__init__(inner)
        self._timings = timings
        self._clock = clock
        self._unended: dict[object, tuple[float, str]] = {}  # Since when, and which call.

    def hangs(self, seconds: float) -> str:
        """Which call has not ended for so many seconds, in words; empty: none."""
        oldest = min(self._unended.copy().values(), default=None)
        lasts_s = 0.0 if oldest is None else self._clock.monotonic_s() - oldest[0]
        if oldest is None or lasts_s <= seconds:
            return ""
        return f"{oldest[1]} has not ended for {lasts_s:.0f} s: does the store hang?"

    def _call(self, name: str, path: str, run: Callable[[], T]) -> T:
        begun_s, failed, this = self._clock.monotonic_s(), 1, object()
        self._unended[this] = begun_s, f"{name} {path}"
        try:
            result = run()
            failed = 0
            return result
        except (BlobExists, BlobMissing):
            failed = 0
            raise
        finally:
            del self._unended[this]
            self._timings.count(catalogue.STORE_FAILURES, name, times=failed)
            took_s = self._clock.monotonic_s() - begun_s
            self._timings.observe(catalogue.STORE_CALL, took_s, name)
