"""How groups and trajectories publish several entries, whichever producer sends them.

They yield each entry and learn at that place whether it got on its way; the two functions here are
all that differs between ``with`` and ``async with``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Protocol, TypeVar

from rollstream.producers.outbox import Outgoing

T = TypeVar("T")
Steps = Generator[Outgoing, None, T]
Deliver = Callable[[Outgoing], Awaitable[None]]  # When it returns, the entry is in the log.


class Send(Protocol):
    """Queues an entry at once."""

    def __call__(self, outgoing: Outgoing, *, raise_earlier: bool = True) -> None:
        """``raise_earlier``: earlier failures are raised first, and then nothing is queued."""


def send_all(steps: Steps[T], send: Callable[[Outgoing], None]) -> T:
    """Sends what the steps yield and returns what they return; an error of sending is thrown into
    the steps, and what they raise is raised."""
    try:
        outgoing = next(steps)
        while True:
            try:
                send(outgoing)
            except BaseException as error:  # noqa: BLE001  The steps decide.
                outgoing = steps.throw(error)
            else:
                outgoing = next(steps)
    except StopIteration as done:
        result: T = done.value
        return result


async def deliver_all(steps: Steps[T], deliver: Deliver) -> T:
    """``send_all``, where sending is awaited."""
    try:
        outgoing = next(steps)
        while True:
            try:
                await deliver(outgoing)
            except BaseException as error:  # noqa: BLE001  The steps decide.
                outgoing = steps.throw(error)
            else:
                outgoing = next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
