"""Producers that a fork leaves behind: the child has their memory and none of their threads.

The child is told right after the fork, so that using them costs no check and never hangs.
"""

from __future__ import annotations

import os
import weakref
from functools import cache
from typing import Protocol


class Forkable(Protocol):
    """Whatever must know that it now lives in a child."""

    def after_fork(self) -> None:
        """Runs in the child."""


_alive: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(producer: Forkable) -> None:
    """From now on the producer hears of forks."""
    _listen()
    _alive.add(producer)


@cache
def _listen() -> None:
    os.register_at_fork(after_in_child=_tell)


def _tell() -> None:
    for producer in list(_alive):
        producer.after_fork()
