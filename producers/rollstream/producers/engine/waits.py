"""Calls that wait for the engine."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from rollstream.producers.engine.gather import Gatherer
from rollstream.producers.engine.outbox import Outgoing
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.deadline import LOG_WAITING_EVERY_S, Deadline
from rollstream.schemas.errors import RollstreamError
from rollstream.streams.errors import BrokerUnavailable, DeliveryUnknown

_AWAITED_MIN = 64  # From so many on, those that have ended are looked for.


def in_real_time(deadline: Deadline) -> Deadline:
    """The deadline, or, if it is by another clock than the system's, one that begins now."""
    is_real = deadline.clock.__class__ is SystemClock
    return deadline if is_real else Deadline(deadline.timeout_s)


class Wait:
    """One call that waits: until its topic is known, its entries have room, or all is delivered.

    The engine ends it once; whoever waits gives up at its deadline. A deadline by a clock of the
    caller's counts once the engine has ``looked`` since: a test's clock may move while it works.

    Args:
        timeout_s: how long the call may take, by ``clock``.
        outgoing: what is to be gathered; none where the topic, or the end of all, is waited for.
        delivered: whether it ends when all of ``outgoing`` is in the log or failed; else when it
            is gathered.

    Attributes:
        ended: an event, or the future of an awaited call.
        error: what ended it, if anything but what was waited for.
        failed: of ``outgoing``, what is not, or perhaps not, in the log, and why.
        late: whether its time was up before it ended.
        left: how many entries have no answer so far.
        last: of a flush: the number of the newest entry that it waits for.
        gathered: whether the engine has the entries.
        is_timed_by_system: whether ``clock`` is the system's.
    """

    def __init__(
        self,
        timeout_s: float,
        clock: Clock,
        outgoing: Sequence[Outgoing] = (),
        *,
        delivered: bool = False,
        ended: threading.Event | asyncio.Future[None] | None = None,
    ) -> None:
        self.deadline = Deadline(timeout_s, clock)
        self._real = in_real_time(self.deadline)
        self.is_timed_by_system = self._real is self.deadline
        self.outgoing = outgoing
        self.delivered = delivered
        self.ended = ended or threading.Event()
        self.done = self.looked = self.gathered = self.late = False
        self.error: RollstreamError | None = None
        self.failed: list[tuple[Outgoing, RollstreamError]] = []
        self.left, self.last = len(outgoing), 0

    def is_late(self) -> bool:
        """Whether its time is up."""
        if self.is_timed_by_system:
            return self.deadline.passed()
        return self.deadline.passed() and (self.looked or self._real.passed())

    def block(self, what: Callable[[], str]) -> bool:
        """Waits on the caller's thread until the engine ends it; False where the time is up."""
        assert isinstance(self.ended, threading.Event), "an awaited one"
        self.ended.wait(self._real.left_s())  # It was looked at, or ended.
        while True:
            self.ended.clear()  # Before it looks: what ends it sets it afterwards.
            if self.done:
                return not self.late
            if self.deadline.passed():
                self.late = True
                return False
            self.deadline.clock.wait(self.ended, self.deadline.slice_s(LOG_WAITING_EVERY_S))
            self.deadline.log_waiting(what)

    def look(self) -> None:
        """The engine has looked at it, in vain."""
        self.looked = True
        if isinstance(self.ended, threading.Event):
            self.ended.set()


class Waiting:
    """The calls that wait, but for those that ask for a topic. Whoever shares it holds a lock.

    Attributes:
        queue: calls that wait for room, in their order.
        flushes: calls that wait until all is delivered.
        awaited: calls that are ended when they are late: all have the same time, so that the first
            one is late first. Of those that have ended some are among them.
        tick: calls of a loop's tick that has not ended, of those that are to be looked at.
        new: calls that nobody has looked at so far.
    """

    def __init__(self, gatherer: Gatherer) -> None:
        self.queue: deque[Wait] = deque()
        self.flushes: list[Wait] = []
        self.awaited: deque[Wait] = deque()
        self.tick: list[Wait] = []
        self.new: list[Wait] = []
        self._gatherer = gatherer
        self._awaited_max = _AWAITED_MIN

    def await_end(self, wait: Wait) -> None:
        """The call is ended when it is late."""
        if len(self.awaited) >= self._awaited_max:  # Most may have ended behind one that waits.
            self.awaited = deque(one for one in self.awaited if not one.done)
            self._awaited_max = max(_AWAITED_MIN, 2 * len(self.awaited))
        self.awaited.append(wait)

    def queue_up(self, wait: Wait, *, is_awaited: bool = False) -> None:
        """The call waits for room."""
        self.queue.append(wait)
        self.new.append(wait)
        if wait.delivered and not is_awaited:
            self.await_end(wait)

    def topic_found(self, waits: Sequence[Wait]) -> list[Wait]:
        """Those of these calls that waited for a topic alone end, the others wait for room."""
        for wait in waits:
            if wait.outgoing:
                self.queue_up(wait, is_awaited=True)
        return self.end(one for one in waits if not one.outgoing)

    def gathered(self, wait: Wait) -> None:
        """The call waits for the delivery of what it gathered."""
        self.await_end(wait)
        if isinstance(wait.ended, threading.Event):
            self.new.append(wait)
        elif not wait.is_timed_by_system:
            self.tick.append(wait)  # The end of its caller's tick sends it.

    def first(self) -> Wait | None:
        """The call that waits for room for longest."""
        while self.queue and self.queue[0].done:
            self.queue.popleft()
        return self.queue[0] if self.queue else None

    def end_tick(self) -> None:
        """What the calls of a loop's tick gathered is to be sent."""
        self.new += self.tick
        self.tick.clear()

    def take_new(self) -> list[Wait]:
        """The calls that are to be looked at now."""
        new, self.new = self.new, []
        return new

    def looked(self, waits: Iterable[Wait], *, is_held: bool) -> None:
        """The engine has looked at these calls, in vain.

        Args:
            is_held: whether entries are held. Then other threads ask the broker, and a call whose
                clock may move meanwhile is looked at again.
        """
        for wait in waits:
            if is_held and not wait.is_timed_by_system:
                self.new.append(wait)
            else:
                wait.look()

    def end(self, waits: Iterable[Wait], error: RollstreamError | None = None) -> list[Wait]:
        """Ends those of these calls that have not ended, and returns them."""
        ended = [one for one in waits if not one.done]
        for one in ended:
            one.done, one.error = True, error
        return ended

    def answer(
        self, record: Sequence[Outgoing], error: RollstreamError | None
    ) -> tuple[list[tuple[Outgoing, RollstreamError]], list[Wait]]:
        """These entries are in the log, or why not: what failed and nobody waits for, and the calls
        that this ends."""
        self._count(record)
        kept, answered = list[tuple[Outgoing, RollstreamError]](), list[Wait]()
        if error is None and not self.awaited:  # Nobody waits for any.
            return kept, answered
        for one in record:
            wait, one.wait = one.wait, None
            one.answered = True
            if error is not None:
                (kept if wait is None else wait.failed).append((one, error))
            if wait is not None:
                wait.left -= 1
                if not wait.left:
                    answered.append(wait)
        return kept, self.end(answered)

    def end_flushes(self) -> list[Wait]:
        """Ends those that wait for nothing any more."""
        flushed = [one for one in self.flushes if not one.left]
        self.flushes = [one for one in self.flushes if one.left]
        return self.end(flushed)

    def _count(self, gone: Sequence[Outgoing]) -> None:
        """Flushes do not wait for these entries any more."""
        for flush in self.flushes:
            flush.left -= sum(one.number <= flush.last for one in gone)

    def end_all(self, error: RollstreamError, others: Iterable[Wait] = ()) -> list[Wait]:
        """Ends all of them, and others, with this; a call whose entries have left is told that it
        is in doubt, by their uids."""
        gathered = [one for one in self.awaited if one.gathered and not one.done]
        for one in gathered:
            self.withdraw(one, lambda _: error, f": {error}")
            one.done = True
        return gathered + self.end([*self.queue, *self.flushes, *self.awaited, *others], error)

    def expire(self, late: Callable[[Wait], RollstreamError]) -> list[Wait]:
        """Ends the calls that are late, and returns them; ``late`` makes the error of one of which
        nothing has left."""
        ended = [wait for wait in self.flushes if wait.is_late()]
        for wait in ended:
            self.flushes.remove(wait)
        while self.awaited and (self.awaited[0].done or self.awaited[0].is_late()):
            wait = self.awaited.popleft()
            if not wait.done:
                self.withdraw(wait, late)
                ended.append(wait)
        for wait in ended:
            wait.done = wait.late = True
        return ended

    def withdraw(
        self, wait: Wait, late: Callable[[Wait], RollstreamError] | None = None, why: str = ""
    ) -> None:
        """Nobody waits for this call any more: what of its entries has not left is not sent.

        Args:
            why: there is no answer to what has left; empty: none came in time.
        """
        if wait in self.flushes:
            self.flushes.remove(wait)
        waiting = [one for one in wait.outgoing if one.wait is wait]
        left = [one for one in waiting if one.left]
        for one in waiting:
            one.wait = None
            if not one.left:
                self._gatherer.take_out(one)
                self._count([one])
        if late is None:
            return
        if not wait.gathered or (len(waiting) == len(wait.outgoing) and not left):
            wait.error = late(wait)
            return
        why = why or f" within {wait.deadline.timeout_s:g} s"
        doubt = DeliveryUnknown(f"no answer{why}")
        unsent = BrokerUnavailable(f"it was not sent{why}")
        wait.failed += [(one, doubt if one.left else unsent) for one in waiting]
