"""Calls ``after_fork`` of every producer in a forked child, which has their memory but not the
threads behind them: a call there raises at once instead of hanging, and no call checks the pid.
"""

from __future__ import annotations

import os
import weakref
from functools import cache
from typing import Protocol


class Forkable(Protocol):
    """An object that a forked child must not use as its parent does."""

    def after_fork(self) -> None:
        """Runs in the child."""


_alive: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(producer: Forkable) -> None:
    """Calls ``producer.after_fork`` in every child forked from now on."""
    _register()
    _alive.add(producer)


@cache
def _register() -> None:
    os.register_at_fork(after_in_child=_call_all)


def _call_all() -> None:
    for producer in list(_alive):
        producer.after_fork()
