"""What becomes of a process's producers when it is forked, and when it ends."""

from __future__ import annotations

import atexit
import os
import weakref
from functools import cache
from typing import TYPE_CHECKING

from rollstream.runtime.deadline import Deadline

if TYPE_CHECKING:
    from rollstream.producers.engine.producer import Connected

EXIT_S = 5.0  # How long the end of a process waits for what its producers published.


def watch(producer: Connected) -> None:
    """Tells the producer, as long as it is there."""
    _watch_process()
    _ALIVE.add(producer)


_ALIVE: weakref.WeakSet[Connected] = weakref.WeakSet()


@cache
def _watch_process() -> None:
    """From now on a forked child refuses its parent's producers: it has their memory, and none of
    the threads behind them, so a call would hang. Told at the fork, no call has to look. And the
    end of a process ends its producers."""
    os.register_at_fork(after_in_child=_after_fork)
    atexit.register(_at_exit)


def _after_fork() -> None:
    for producer in list(_ALIVE):
        producer._after_fork()


def _at_exit() -> None:
    deadline = Deadline(EXIT_S)
    for producer in list(_ALIVE):
        producer._at_exit(deadline.left_s())
