"""How groups and trajectories publish several records, whichever producer sends them.

They yield each record and learn at that place whether it got on its way; the two functions here are
all that differs between ``with`` and ``async with``.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Generator
from typing import Protocol, TypeVar

from rollstream.producers.errors import DeliveryFailed
from rollstream.producers.outbox import Outgoing

T = TypeVar("T")
Steps = Generator[Outgoing, None, T]
Deliver = Callable[[Outgoing], Awaitable[None]]  # When it returns, the record is in the log.


class Send(Protocol):
    """Queues a record at once."""

    def __call__(self, record: Outgoing, *, raise_earlier: bool = True) -> None:
        """``raise_earlier``: earlier failures are raised first, and then nothing is queued."""


def send_all(steps: Steps[T], send: Callable[[Outgoing], None]) -> T:
    """Sends what the steps yield and returns what they return; an error of sending is thrown into
    the steps, and what they raise is raised."""
    try:
        record = next(steps)
        while True:
            try:
                send(record)
            except BaseException as error:  # noqa: BLE001  The steps decide.
                record = steps.throw(error)
            else:
                record = next(steps)
    except StopIteration as done:
        result: T = done.value
        return result


async def deliver_all(steps: Steps[T], deliver: Deliver) -> T:
    """``send_all``, where sending is awaited."""
    try:
        record = next(steps)
        while True:
            try:
                await deliver(record)
            except BaseException as error:  # noqa: BLE001  The steps decide.
                record = steps.throw(error)
            else:
                record = next(steps)
    except StopIteration as done:
        result: T = done.value
        return result


def in_doubt(error: BaseException) -> bool:
    """Whether the record that sending raised this for may be in the log all the same."""
    if isinstance(error, DeliveryFailed):
        return not error.nothing_queued
    return isinstance(error, CancelledError)
