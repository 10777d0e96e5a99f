"""How long calls take, from their begin to their answer."""

from __future__ import annotations

from collections import deque

from rollstream.runtime.clock import Clock
from rollstream.runtime.metrics import catalogue
from rollstream.runtime.metrics.timings import Observe

KEPT = 512  # The newest calls.


class Latencies:
    """Of the newest calls that were answered; one that failed, or was given up, is none of them.
    May be shared between threads.

    Args:
        sampler: its name.
        observe: takes each of them.
    """

    def __init__(self, sampler: str, clock: Clock, observe: Observe) -> None:
        self._sampler = sampler
        self._clock = clock
        self._observe = observe
        self._took_ms: deque[float] = deque(maxlen=KEPT)

    def end(self, begun_s: float) -> None:
        """A call that was begun at this time of the clock is answered now."""
        took_s = self._clock.monotonic_s() - begun_s
        self._took_ms.append(1e3 * took_s)
        self._observe(catalogue.SAMPLER_BATCH, took_s, self._sampler)

    def took_ms(self) -> tuple[float, ...]:
        """Milliseconds a call, in the order of their ends."""
        return tuple(self._took_ms.copy())
