"""The thread of a ``RolloutProducer``: it ends the linger, and serves delivery reports."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from rollstream.runtime.clock import SystemClock

# Records of many rollouts cost the broker, the sealer and this process least; nobody waits for one
# rollout, and ``flush`` does not wait for it either.
LINGER_S = 0.05
REPORT_POLL_S = 0.005  # How late a report may be seen while nothing is published.
_IDLE_S = 60.0  # A thread with nothing to do looks once in this time; ``wake`` ends the wait.


class Lingering(Protocol):
    """What such a thread works for."""

    def tick(self, linger_over: bool) -> float | None:
        """Does what is due; returns how many seconds it may sleep: 0 until it is woken, None that
        it is closed. ``linger_over``: what waits for others has waited long enough."""


class LingerThread:
    """Calls ``tick`` whenever it is due. It does not keep the producer alive.

    It is started by the first ``wake``, and never in a forked child. It sleeps by the system's
    clock, whatever clock the producer was given.
    """

    def __init__(self, producer: Lingering) -> None:
        self._producer = weakref.ref(producer)
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Something was gathered; the caller holds the producer's lock."""
        if self._thread is None:
            arguments = self._producer, self._woken
            name = "rollstream-linger"
            self._thread = threading.Thread(target=_run, args=arguments, name=name, daemon=True)
            self._thread.start()
        self._woken.set()

    def join(self) -> None:
        """Returns once no tick runs any more; ``tick`` must return None by now."""
        if self._thread is not None:
            self._woken.set()
            self._thread.join()


def _run(of: weakref.ref[Lingering], woken: threading.Event) -> None:
    clock = SystemClock()
    ends_s = clock.monotonic_s() + LINGER_S
    while True:
        producer = of()
        over = clock.monotonic_s() >= ends_s
        sleep_s = None if producer is None else producer.tick(over)
        del producer
        if sleep_s is None:
            return
        if over:
            ends_s = clock.monotonic_s() + LINGER_S
        if sleep_s:
            woken.wait(min(sleep_s, max(0.0, ends_s - clock.monotonic_s())))
        elif woken.wait(_IDLE_S):
            ends_s = clock.monotonic_s() + LINGER_S
        woken.clear()
