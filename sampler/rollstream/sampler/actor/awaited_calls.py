"""Calls that coroutines await and other threads end."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any

from rollstream.sampler.actor.pickled import JOINED_BYTES_MAX, Pickled, StoredBatch
from rollstream.sampler.decide.command import R, Reply, Unread
from rollstream.sampler.engine.calls import Call


@dataclass(slots=True, eq=False)
class _Awaited:
    call: Call[Any]
    wait_s: float
    ended: asyncio.Future[None]
    stored: StoredBatch | None = None  # What its reply is made of, where it was made before,
    reading: Future[Pickled] | None = None  # and where it is read.
    finished: bool = False  # Nothing is left to be done for its reply.
    timer: asyncio.TimerHandle | None = None


class AwaitedCalls:
    """Hands what became of calls to the event loop, their rows read.

    Waking the loop from another thread costs more than most answers do, and takes turns with the
    thread that answers. So threads answer all the calls that they can first, and wake it then, once
    (``hand_over``). Rows are read from the moment on at which a call is answered, by the reader;
    what callers get that ask for the same while it is read is read and pickled once.

    Args:
        give_up: called in the event loop with a call whose time is up.
        reader: reads rows, one after the other.
        stored: what crosses for a result that was made before, where it was stored then.
    """

    def __init__(
        self,
        give_up: Callable[[Call[Any]], None],
        reader: Executor,
        stored: Callable[[Any], StoredBatch | None],
    ) -> None:
        self._give_up = give_up
        self._reader = reader
        self._stored = stored
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: deque[_Awaited] = deque()  # Ended, or decided; added to by any thread.
        self._woken = False
        self._lock = threading.Lock()  # Guards those below.
        self._reads: dict[Hashable, Future[Pickled]] = {}  # Under way.

    async def reply(
        self, call: Call[R], wait_s: float, decide: Callable[[Callable[[], None]], object]
    ) -> Reply[R | Pickled | StoredBatch]:
        """The call's reply, or its error; what was read is pickled. One that is cancelled is
        forgotten.

        Args:
            wait_s: how long it may wait for groups, from when it was decided that it has to.
            decide: has the call decided by another thread, which then calls what it is given.
        """
        self._loop = asyncio.get_running_loop()
        awaited = _Awaited(call, wait_s, self._loop.create_future())
        call.answered.add_done_callback(lambda _: self._end(awaited))
        decide(lambda: self._changed.append(awaited))
        try:
            await awaited.ended
        finally:
            call.answered.cancel()
            if awaited.timer is not None:
                awaited.timer.cancel()
            # Callbacks refer to it: in a cycle the rows would stay until they are collected.
            reading, awaited.reading = awaited.reading, None
            stored, awaited.stored = awaited.stored, None
        reply = call.answered.result()
        if stored is not None:
            return Reply(reply.trainer_epoch, stored)
        if reading is not None:
            return Reply(reply.trainer_epoch, reading.result())
        assert not isinstance(reply.value, Unread), "what is to be read is read"
        return Reply(reply.trainer_epoch, reply.value)

    def hand_over(self) -> None:
        """What became of calls since the last time reaches those that await them. For any thread,
        after it decided, answered or gave up calls."""
        if self._changed and not self._woken and self._loop is not None:
            self._woken = True
            self._loop.call_soon_threadsafe(self._look)

    def _end(self, awaited: _Awaited) -> None:
        """Its call was answered, or ended otherwise."""
        answered = awaited.call.answered
        if answered.cancelled() or answered.exception() is not None:
            self._finish(awaited)
            return
        value = answered.result().value
        if not isinstance(value, Unread):
            self._finish(awaited)
            return
        try:
            self._begin_result(awaited, value)
        except BaseException as error:  # noqa: BLE001 - whatever it is, its caller gets it:
            awaited.reading = Future()  # it would be logged, since this is a Future's callback,
            awaited.reading.set_exception(error)  # and the call not end.
            self._finish(awaited)
            self.hand_over()

    def _begin_result(self, awaited: _Awaited, value: Unread[Any]) -> None:
        made = value.made()
        if made is not None and (stored := self._stored(made)) is not None:
            awaited.stored = stored
            self._finish(awaited)
        else:
            value = value if made is None else replace(value, read=lambda: made)
            awaited.reading = self._begin_reading(value)
            awaited.reading.add_done_callback(lambda _: self._finish(awaited))

    def _finish(self, awaited: _Awaited) -> None:
        awaited.finished = True
        self._changed.append(awaited)

    def _begin_reading(self, unread: Unread[Any]) -> Future[Pickled]:
        with self._lock:
            reading = self._reads.get(unread.key)
            if reading is None:
                reading = self._reads[unread.key] = Future()
                self._reader.submit(self._read, unread, reading)
        return reading

    def _read(self, unread: Unread[Any], reading: Future[Pickled]) -> None:
        outcome: Pickled | BaseException
        try:
            outcome = Pickled.of(unread.read())
        except BaseException as error:  # noqa: BLE001 - whatever it is, its callers get it
            outcome = error
        with self._lock:
            del self._reads[unread.key]
            last = not self._reads
        if isinstance(outcome, BaseException):
            reading.set_exception(outcome)
        else:
            reading.set_result(outcome)
            last = last or outcome.nbytes > JOINED_BYTES_MAX
        if last:  # What is small waits for what is read right after it.
            self.hand_over()

    def _look(self) -> None:
        self._woken = False  # Before the look: what is added after it wakes the loop again.
        while self._changed:
            awaited = self._changed.popleft()
            if awaited.ended.done():
                continue
            if awaited.finished:
                awaited.ended.set_result(None)
            elif awaited.timer is None and not awaited.call.ended:
                assert self._loop is not None
                awaited.timer = self._loop.call_later(awaited.wait_s, self._give_up, awaited.call)
