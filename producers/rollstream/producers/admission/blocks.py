"""Groups of a producer's share, as blocks: they wait for admission, and give back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, NamedTuple, Self, TypeVar

from rollstream.producers.admission.standing import Request
from rollstream.producers.admission.waiting import AdmissionQueue
from rollstream.runtime.deadline import Deadline

# A trainer that evaluates or restarts takes minutes, and where none is left some groups are still
# admitted every ten minutes.
ADMISSION_TIMEOUT_S = 3_600.0
_WAIT_S_MAX = 60.0  # A thread that waits looks at its deadline so often, whatever wakes it.
T = TypeVar("T")


class ShareWanted(NamedTuple):
    """What a block asks for.

    Attributes:
        groups: how many.
        group: one that is dispatched, in words.
        timeout_s: how long it waits for admission.
        published: how many entries the producer has published in the environment, those apart that
            say that it lives.
    """

    admission: AdmissionQueue
    environment: str
    groups: int
    group: str
    timeout_s: float
    published: Callable[[], int]


class _Block(Generic[T]):
    """
    Args:
        read: asks whether the topic exists, and reads what was granted so far, unless that was
            done; within the time of the block, where it has any.
        tell: publishes that the producer waits in an environment.
        stay_alive: from now on the producer says that it lives, while anything is open or waits.
    """

    def __init__(
        self,
        wanted: ShareWanted,
        read: Callable[[ShareWanted], T],
        tell: Callable[[str], None],
        stay_alive: Callable[[], None],
    ) -> None:
        self._wanted = wanted
        self._read = read
        self._tell = tell
        self._stay_alive = stay_alive
        self._request: Request | None = None
        self._published = 0

    def _ask(self, wake: Callable[[], object]) -> Request:
        wanted = self._wanted
        self._published = wanted.published()
        self._stay_alive()
        self._request = wanted.admission.ask(wanted.groups, wanted.group, wake)
        return self._request

    def _conclude(self, request: Request) -> None:
        self._wanted.admission.conclude(request, self._wanted.timeout_s)
        self._published = self._wanted.published()  # While it waited, others began groups.

    def end(self, begun: int) -> None:
        """The block has ended, with so many groups begun; the others are given back."""
        request, self._request = self._request, None
        if request is not None:
            self._wanted.admission.end(request, begun)

    def end_by_what_was_published(self) -> None:
        """The block has ended. At most as many groups were begun as entries were published
        meanwhile, by whatever call; what counts too much comes back with the next shares."""
        self.end(self._wanted.published() - self._published)


class Admitted(_Block[None]):
    """Groups that may be begun until the block ends; ``RolloutProducer.admit`` makes it."""

    def enter(self) -> None:
        """Waits until the groups are admitted; ``end`` gives them back."""
        wanted, deadline = self._wanted, Deadline(self._wanted.timeout_s)
        self._read(wanted)
        woken = threading.Event()
        request = self._ask(woken.set)
        if not request.waits:
            return
        try:
            if wanted.admission.tells_of_wait():
                self._tell(wanted.environment)
            while not woken.wait(deadline.slice_s(_WAIT_S_MAX)) and not deadline.passed():
                pass
            self._conclude(request)
        except BaseException:
            self.end(0)
            raise

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_by_what_was_published()


class AsyncAdmitted(_Block[Awaitable[None]]):
    """``Admitted``, entered with ``async with``."""

    async def enter(self) -> None:
        """Waits until the groups are admitted; ``end`` gives them back."""
        wanted, deadline = self._wanted, Deadline(self._wanted.timeout_s)
        await self._read(wanted)
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # The loop was closed: nobody waits.
                loop.call_soon_threadsafe(woken.set)

        request = self._ask(wake)
        if not request.waits:
            return
        try:
            if wanted.admission.tells_of_wait():
                self._tell(wanted.environment)
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline.left_s()):
                    await woken.wait()
            self._conclude(request)
        except BaseException:
            self.end(0)
            raise

    async def __aenter__(self) -> Self:
        await self.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_by_what_was_published()
