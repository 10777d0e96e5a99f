"""Groups of a producer's share, as blocks: they wait for admission, and give back."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Self

from rollstream.producers.admission.standing import Request
from rollstream.producers.admission.waiting import AdmissionQueue
from rollstream.producers.rollouts.blocks import Sends
from rollstream.runtime.at_once import at_once
from rollstream.runtime.deadline import Deadline

# A trainer that evaluates or restarts takes minutes, and where none is left some groups are still
# admitted every ten minutes.
ADMISSION_TIMEOUT_S = 3_600.0
_WAIT_S_MAX = 60.0  # A thread that waits looks at its deadline so often, whatever wakes it.


@dataclass(eq=False, repr=False)
class AdmittedBlock(ABC):
    """A block that waits for admission, and gives back what it did not begin.

    Args:
        groups: how many it asks for.
        group: one that is dispatched, in words.
        timeout_s: how long it waits for admission.
        published: how many entries the producer has published in the environment, those apart that
            say that it lives.
        read: asks whether the topic exists, and reads what was granted so far, unless that was
            done; within the time of the block, where it has any. From then on the producer says
            that it lives, while anything is open or waits.
        tell: publishes that the producer waits in the environment, where it is to tell so now.
    """

    _admission: AdmissionQueue
    _groups: int
    _group: str
    _timeout_s: float
    _published: Callable[[], int]
    _read: Callable[[float], Sends[None]]
    _tell: Callable[[], None]
    _request: Request | None = None
    _before: int = 0  # What was published before its groups were admitted.

    async def enter(self) -> None:
        """Waits until the groups are admitted; ``end`` gives them back."""
        deadline = Deadline(self._timeout_s)
        await self._read(self._timeout_s)
        self._before = self._published()
        woken = Future[None]()
        wake = partial(woken.set_result, None)
        request = self._request = self._admission.ask(self._groups, self._group, wake)
        if not request.waits:
            return
        try:
            self._tell()  # Nobody grants anything to a producer that never told of itself.
            await self._wait(woken, deadline)
            self._admission.conclude(request, self._timeout_s)
            self._before = self._published()  # While it waited, others began groups.
        except BaseException:
            self.end(0)
            raise

    def end(self, begun: int) -> None:
        """The block has ended, with so many groups begun; the others are given back."""
        request, self._request = self._request, None
        if request is not None:
            self._admission.end(request, begun)

    def _end_by_what_was_published(self) -> None:
        """The block has ended. At most as many groups were begun as entries were published
        meanwhile, by whatever call; what counts too much comes back with the next shares."""
        self.end(self._published() - self._before)

    @abstractmethod
    async def _wait(self, woken: Future[None], deadline: Deadline) -> None:
        """Waits until any thread sets this, up to the deadline."""


class Admitted(AdmittedBlock):
    """Groups that may be begun until the block ends; ``RolloutProducer.admit`` makes it."""

    def __enter__(self) -> Self:
        at_once(self.enter())
        return self

    def __exit__(self, *_: object) -> None:
        self._end_by_what_was_published()

    async def _wait(self, woken: Future[None], deadline: Deadline) -> None:
        while not woken.done() and not deadline.passed():
            wait([woken], deadline.slice_s(_WAIT_S_MAX))


class AsyncAdmitted(AdmittedBlock):
    """``Admitted``, entered with ``async with``."""

    async def __aenter__(self) -> Self:
        await self.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end_by_what_was_published()

    async def _wait(self, woken: Future[None], deadline: Deadline) -> None:
        await asyncio.wait([asyncio.wrap_future(woken)], timeout=deadline.left_s())
