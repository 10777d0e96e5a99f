"""Workers beside the loop that stand still when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

from rollstream.consumers import InlineExecutor

P = ParamSpec("P")
T = TypeVar("T")


class HeldWorkers(InlineExecutor):
    """Workers that stand still while ``holding``: a stalled fsync, a mount that hangs.

    Args:
        begins: whether jobs count as begun meanwhile.
    """

    def __init__(self, *, begins: bool = False) -> None:
        self.holding = False
        self._begins = begins
        self._held: list[Callable[[], None]] = []

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if not self.holding:
            return super().submit(fn, *args, **kwargs)
        future: Future[T] = Future()
        if self._begins:
            future.set_running_or_notify_cancel()

        def run() -> None:
            if future.cancelled():
                return
            done = super(HeldWorkers, self).submit(fn, *args, **kwargs)
            error = done.exception()
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)

        self._held.append(run)
        return future

    def go_on(self) -> None:
        self.holding = False
        while self._held:
            self._held.pop(0)()
