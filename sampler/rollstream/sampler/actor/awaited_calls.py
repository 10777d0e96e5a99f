"""Calls that coroutines await and other threads end."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, NamedTuple

from rollstream.sampler.actor.pickled import JOINED_BYTES_MAX, Pickled
from rollstream.sampler.decide.command import Computed, Lane, R, Reply, Unread
from rollstream.sampler.engine.calls import Call

_Outcome = Reply[Any] | BaseException
_Ended = asyncio.Future[_Outcome]


class _Read(NamedTuple):
    """A result that is to be read, and for whom, with the trainer epoch that each was told."""

    unread: Unread[Any]
    awaiting: list[tuple[_Ended, int]]


class AwaitedCalls:
    """Hands what became of calls to the event loop, their rows read.

    Waking the loop from another thread costs more than most answers do, and takes turns with the
    thread that answers. So threads answer all the calls that they can first, and wake it then, once
    (``hand_over``). Rows are read from the moment on at which a call is answered, in the lane of
    the result; what callers get that ask for the same while it is read is read and pickled once.

    Args:
        give_up: called in the event loop with a call whose time is up.
        lanes: each makes results one after the other.
        pickled: what crosses for a result.
    """

    def __init__(
        self,
        give_up: Callable[[Call[Any]], None],
        lanes: Mapping[Lane, Executor],
        pickled: Callable[[Any], Pickled],
    ) -> None:
        self._give_up = give_up
        self._lanes = lanes
        self._pickled = pickled
        self._loop: asyncio.AbstractEventLoop | None = None
        self._to_do: deque[Callable[[], None]] = deque()  # In the loop; added to by any thread.
        self._woken = False
        self._lock = threading.Lock()  # Guards what is to be read; the first of a lane is read now.
        self._reads: dict[Lane, dict[Hashable, _Read]] = {lane: {} for lane in lanes}

    async def reply(
        self, call: Call[R], wait_s: float, decide: Callable[[Callable[[], None]], object]
    ) -> Reply[R | Pickled]:
        """The call's reply, or its error; what was read is pickled. One that is cancelled is
        forgotten.

        Args:
            wait_s: how long it may wait for groups, from when it was decided that it has to.
            decide: has the call decided by another thread, which then calls what it is given.
        """
        loop = self._loop = asyncio.get_running_loop()
        ended: _Ended = loop.create_future()
        timers: list[asyncio.TimerHandle] = []
        # Without the call: in a circle the rows would stay until a collection.
        call.answered.add_done_callback(partial(self._begin_result, ended))

        def wait_for_groups() -> None:
            if not call.ended:
                timers.append(loop.call_later(wait_s, self._give_up, call))

        decide(lambda: self._to_do.append(wait_for_groups))
        try:
            outcome = await ended
        finally:
            call.answered.cancel()
            for timer in timers:
                timer.cancel()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def hand_over(self) -> None:
        """What became of calls since the last time reaches those that await them. For any thread,
        after it decided, answered or gave up calls."""
        if self._to_do and not self._woken and self._loop is not None:
            self._woken = True
            self._loop.call_soon_threadsafe(self._look)

    def _begin_result(self, ended: _Ended, answered: Future[Reply[Any]]) -> None:
        """The call was answered, or ended otherwise."""
        try:
            reply = answered.result()
            if isinstance(reply.value, Unread):
                self._begin_reading(reply.value, (ended, reply.trainer_epoch))
            else:
                self._to_do.append(partial(_end, ended, reply))
        except BaseException as error:  # noqa: BLE001 - whatever it is, its caller gets it
            self._to_do.append(partial(_end, ended, error))

    def _begin_reading(self, unread: Unread[Any], awaits: tuple[_Ended, int]) -> None:
        reads = self._reads[unread.lane]
        with self._lock:
            read = reads.get(unread.key)
            if read is not None:
                read.awaiting.append(awaits)
                return
            if not reads:  # Else the lane's thread goes on to this one.
                self._lanes[unread.lane].submit(self._read_all, reads)
            reads[unread.key] = _Read(unread, [awaits])

    def _read_all(self, reads: dict[Hashable, _Read]) -> None:
        while True:
            with self._lock:
                if not reads:
                    return
                read = next(iter(reads.values()))
            self._read(reads, read)

    def _read(self, reads: dict[Hashable, _Read], read: _Read) -> None:
        unread, awaiting = read
        outcome: Pickled | BaseException
        try:
            outcome = self._pickled(unread if isinstance(unread, Computed) else unread.read())
        except BaseException as error:  # noqa: BLE001 - whatever it is, its callers get it
            outcome = error
        with self._lock:
            del reads[unread.key]
            last = not reads
        if isinstance(outcome, BaseException):
            self._to_do.extend([partial(_end, ended, outcome) for ended, _ in awaiting])
        else:
            for ended, epoch in awaiting:
                self._to_do.append(partial(_end, ended, Reply(epoch, outcome)))
            last = last or outcome.nbytes > JOINED_BYTES_MAX
        if last:  # What is small waits for what is read right after it.
            self.hand_over()

    def _look(self) -> None:
        self._woken = False  # Before the look: what is added after it wakes the loop again.
        while self._to_do:
            self._to_do.popleft()()


def _end(ended: _Ended, outcome: _Outcome) -> None:
    if not ended.done():
        ended.set_result(outcome)
