"""Calls to a sampler that are under way, and those of them that wait for groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Hashable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Generic, TypeVar

from rollstream.runtime.deadline import Deadline
from rollstream.sampler.decide.command import Command, R, Reply, Unread
from rollstream.sampler.decide.shortages import Shortage
from rollstream.sampler.errors import BatchUnsettled, GroupsUnreadable, SamplerUnavailable
from rollstream.store.errors import StoreAway, StoreHangs
from rollstream.streams.broker import Offsets
from rollstream.streams.errors import BrokerUnavailable, ClaimFailed

WAITING_MAX = 8_192  # Calls that wait at once; further ones are refused.
PASSING = (BrokerUnavailable, ClaimFailed, StoreAway, StoreHangs)  # Worth another attempt,
AGAIN_S = 0.2  # after that, where the call has time left.
T = TypeVar("T")


class Call(Generic[R]):
    """A command that is being executed.

    Attributes:
        command: what is executed.
        number: greater than that of whatever was begun before it.
        answered: its reply, or the error that it raises; whoever made the call may cancel it.
        decision_key: that of its command.
        shortage: what it waited for when it was looked at last.
        ends: of the seal logs, at some time after it was begun; None: the broker was not asked.
        asked: whether the broker was asked who owns the decision log.
        begun_s: when it was begun, of calls that are timed.
        woken: set when it ends, and when it is its thread's turn to read the seal logs; None: no
            thread waits for it.
    """

    def __init__(self, command: Command[R], number: int, begun_s: float | None = None) -> None:
        self.command = command
        self.number = number
        self.answered: Future[Reply[R | Unread[R]]] = Future()
        self.decision_key: Hashable = command.decision_key()
        self.shortage: Shortage | None = None
        self.ends: Offsets | None = None
        self.asked = False
        self.begun_s = begun_s
        self.woken: threading.Event | None = None

    @property
    def ended(self) -> bool:
        """Whether it was answered, or cancelled."""
        return self.answered.done()

    def wake_thread(self) -> threading.Event:
        """Returns ``woken``, for a thread that waits for it."""
        woken = self.woken = threading.Event()
        # Without the call: in a circle its answer would stay until a collection.
        self.answered.add_done_callback(lambda _: woken.set())
        return woken

    def answer(self, reply: Reply[R | Unread[R]]) -> bool:
        """Ends it, unless it has ended; returns whether it did."""
        try:
            self.answered.set_result(reply)
        except InvalidStateError:
            return False
        return True

    def fail(self, error: BaseException) -> None:
        """Ends it with an error, unless it has ended."""
        with suppress(InvalidStateError):
            self.answered.set_exception(error)

    def attempt(self, decide: Callable[[Call[R]], T]) -> T | None:
        """Returns what ``decide`` returns; ends the call with what that raises, and returns None.
        The error keeps this frame, and not the one that has other calls."""
        try:
            return decide(self)
        except BaseException as error:  # noqa: BLE001 - whatever it is, its caller gets it
            self.fail(error)
            return None


async def attempted(
    command: Command[R],
    attempt: Callable[[Command[R]], Coroutine[Any, Any, T]],
    repair: Callable[[Command[R], GroupsUnreadable], Coroutine[Any, Any, Command[R]]],
    pause: Callable[[Exception], Coroutine[Any, Any, None]],
    deadline: Deadline,
) -> T:
    """Returns the answer to a command, which is attempted until there is one.

    Args:
        attempt: answers a command once.
        repair: returns the command that goes on without groups that cannot be read.
        pause: waits ``AGAIN_S`` after an error that passes.
        deadline: after it such an error is raised.
    """
    asked = command
    while True:
        try:
            try:
                return await attempt(command)
            except GroupsUnreadable as error:
                command = await repair(command, error)
        except PASSING as error:
            if deadline.passed():
                raise
            if isinstance(error, BatchUnsettled):
                command = asked
            await pause(error)


class WaitingCalls:
    """The calls that wait for groups, in the order of their arrival.

    A call leaves when it ends, however it ends. Its methods may be called by any thread: a call
    that is cancelled ends in the thread that cancels it.
    """

    def __init__(self) -> None:
        # Each operation on it is one of a dict, so none needs a lock that others would wait for.
        self._calls: dict[Future[Any], Call[Any]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call[Any]]:
        return iter(list(self._calls.values()))

    def add(self, call: Call[Any], shortage: Shortage) -> None:
        """Adds a call that has not ended.

        Raises:
            SamplerUnavailable: ``WAITING_MAX`` calls wait.
        """
        if len(self._calls) >= WAITING_MAX:
            raise SamplerUnavailable(
                f"{WAITING_MAX} calls wait for groups already; ask with fewer at a time, or cancel "
                "those that nobody needs any more"
            )
        call.shortage = shortage
        self._calls[call.answered] = call
        call.answered.add_done_callback(lambda answered: self._calls.pop(answered, None))

    def fail_all(self, error: BaseException) -> None:
        """Ends every call with this error."""
        for call in self:
            call.fail(error)

    def wake_first(self) -> None:
        """Wakes the thread of the call that has waited longest."""
        for call in self:
            if call.woken is not None:
                call.woken.set()
                return
