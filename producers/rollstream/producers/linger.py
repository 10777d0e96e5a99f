"""The thread of a ``RolloutProducer``: it ends the linger, and serves delivery reports."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

# Records of many rollouts cost the broker, the sealer and this process least; nobody waits for one
# rollout, and ``flush`` does not wait for it either.
LINGER_S = 0.05
BEHIND_S = 0.005  # The same while a record that is due waits for the report of one before it.
IDLE_S = 60.0  # A thread with nothing to do looks once in this time; ``wake`` ends the wait.

Tick = Callable[[], float | None]
"""Sends what was gathered and serves reports; returns how many seconds the thread may sleep, unless
it is woken, None that its producer is closed."""


class LingerThread:
    """Calls a producer's method at the end of each linger. It does not keep the producer alive.

    It is started by the first ``wake``, and never in a forked child. It sleeps by the system's
    clock, whatever clock the producer was given.
    """

    def __init__(self, tick: Tick) -> None:
        self._tick = weakref.WeakMethod(tick)
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Something was gathered; the caller holds the producer's lock."""
        if self._thread is None:
            arguments = self._tick, self._woken
            name = "rollstream-linger"
            self._thread = threading.Thread(target=_run, args=arguments, name=name, daemon=True)
            self._thread.start()
        self._woken.set()

    def join(self) -> None:
        """Returns once no tick runs any more; the next one must return None."""
        if self._thread is not None:
            self._woken.set()
            self._thread.join()


def _run(of: weakref.WeakMethod[Tick], woken: threading.Event) -> None:
    sleep_s: float | None = IDLE_S
    while sleep_s is not None:
        if woken.wait(sleep_s):
            woken.clear()
            woken.wait(LINGER_S)  # Only ``join`` ends it early.
        tick = of()
        sleep_s = None if tick is None else tick()
        del tick
