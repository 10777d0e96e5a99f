"""A thread that does something again and again, for an object that it does not keep alive."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

StepCall = Callable[[], float | None]
"""Does what is due; returns how many seconds the thread may sleep then, None that it ends."""


class StepThread:
    """Calls a method of an object whenever it was woken, and after the sleep that the call before
    returned.

    The first ``wake`` starts it. It is a daemon, is not there in a forked child, ends where the
    object is collected, and sleeps by the system's clock. The method handles its own errors.

    Args:
        linger_s: how long a wake-up waits for others; only ``join`` ends it early.
    """

    def __init__(self, step: StepCall, name: str, linger_s: float = 0.0) -> None:
        self.name = name
        self._step = weakref.WeakMethod(step)
        self._linger_s = linger_s
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """The next step begins after the linger; callers hold a lock of theirs."""
        if self._thread is None:
            arguments = self._step, self._woken, self._linger_s
            self._thread = threading.Thread(
                target=_run, args=arguments, name=self.name, daemon=True
            )
            self._thread.start()
        self._woken.set()

    def join(self, timeout_s: float | None = None) -> None:
        """Returns once it has ended, which the next step must see to; where it never began, and
        after ``timeout_s``, at once."""
        if self._thread is not None:
            self._woken.set()
            self._thread.join(timeout_s)


def _run(of: weakref.WeakMethod[StepCall], woken: threading.Event, linger_s: float) -> None:
    sleep_s: float | None = threading.TIMEOUT_MAX  # What starts it wakes it.
    while sleep_s is not None:
        if woken.wait(sleep_s):
            woken.clear()
            if linger_s:
                woken.wait(linger_s)
        step = of()
        sleep_s = None if step is None else step()
        del step
