"""Calls that coroutines await and other threads end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollstream.sampler.deciding.command import R, Reply, Unread
from rollstream.sampler.serving.calls import Call


@dataclass(slots=True, eq=False)
class _Awaited:
    call: Call[Any]
    wait_s: float
    ended: asyncio.Future[None]
    timer: asyncio.TimerHandle | None = None


class AwaitedCalls:
    """Hands what became of calls to the event loop.

    Waking the loop from another thread costs more than most answers do, and takes turns with the
    thread that answers. So threads answer all the calls that they can first, and wake it then, once
    (``hand_over``).

    Args:
        give_up: called in the event loop with a call whose time is up.
    """

    def __init__(self, give_up: Callable[[Call[Any]], None]) -> None:
        self._give_up = give_up
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: deque[_Awaited] = deque()  # Ended, or decided; added to by any thread.
        self._woken = False

    async def reply(
        self, call: Call[R], wait_s: float, decide: Callable[[Callable[[], None]], object]
    ) -> Reply[R | Unread[R]]:
        """The call's reply, or its error. One that is cancelled is forgotten.

        Args:
            wait_s: how long it may wait for groups, from when it was decided that it has to.
            decide: has the call decided by another thread, which then calls what it is given.
        """
        self._loop = asyncio.get_running_loop()
        awaited = _Awaited(call, wait_s, self._loop.create_future())
        call.answered.add_done_callback(lambda _: self._changed.append(awaited))
        decide(lambda: self._changed.append(awaited))
        try:
            await awaited.ended
        finally:
            call.answered.cancel()
            if awaited.timer is not None:
                awaited.timer.cancel()
        return call.answered.result()

    def hand_over(self) -> None:
        """What became of calls since the last time reaches those that await them. For any thread,
        after it decided, answered or gave up calls."""
        if self._changed and not self._woken and self._loop is not None:
            self._woken = True
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._woken = False  # Before the look: what is added after it wakes the loop again.
        while self._changed:
            awaited = self._changed.popleft()
            if awaited.ended.done():
                continue
            if awaited.call.ended:
                awaited.ended.set_result(None)
            elif awaited.timer is None:
                assert self._loop is not None
                awaited.timer = self._loop.call_later(awaited.wait_s, self._give_up, awaited.call)
