"""Hands steps to the writer, within bounds and deadlines, and counts what was accepted and then not
delivered."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from rollstream.gateway import problems
from rollstream.gateway.models import CompleteBody
from rollstream.gateway.problems import Refused, refused
from rollstream.producers import DeliveryFailed, FollowedPolicy, Step
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.gateway import GatewayConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import RollstreamError

_LOG_EVERY_S = 30.0  # How often undelivered steps are logged; an outage has thousands.
_log = logging.getLogger("rollstream.gateway")


class StepsWriter(Protocol):
    """What the gateway writes to: ``AsyncStepProducer``. Each call returns once the broker has what
    it was given, or, of no steps, once the environment's topic is known. From then on it raises
    ``InvalidRollout`` and ``BufferFull`` before it first waits. ``take_failures`` is what became of
    calls that ended before the broker's answer."""

    async def submit_steps(self, steps: Iterable[Step], *, environment: str) -> None: ...

    async def complete_trajectory(
        self, trajectory_uid: str, *, environment: str, prompt_uid: str, steps: int | None
    ) -> None: ...

    async def policy(
        self, *, environment: str, lineage: str | None, timeout_s: float
    ) -> FollowedPolicy: ...

    def take_failures(self) -> DeliveryFailed | None: ...

    async def close(self) -> None: ...


class Intake:
    """The bounds that all requests of one process share. Belongs to one event loop.

    Attributes:
        undelivered: steps and ends of trajectories that were answered 202 and did not reach the
            log, or perhaps did not, by environment.
    """

    def __init__(
        self, writer: StepsWriter, config: GatewayConfig, clock: Clock | None = None
    ) -> None:
        self.undelivered: Counter[str] = Counter()
        self._writer = writer
        self._config = config
        self._clock = clock or SystemClock()
        self._requests = 0
        self._pending_bytes = 0  # Of bodies that are read, and of steps on their way.
        self._on_their_way: dict[asyncio.Task[None], tuple[str, int]] = {}
        self._known: set[str] = set()  # Environments whose topic is known.
        self._draining = False
        self._logged_s = -_LOG_EVERY_S

    @asynccontextmanager
    async def request(self) -> AsyncIterator[Turn]:
        """Counts one request, for the block.

        Raises:
            Refused: there are ``max_requests`` already, or the process ends.
        """
        self.check_open()
        if self._requests >= self._config.max_requests:
            raise refused(
                problems.BUSY,
                f"{self._requests} requests are answered at once, gateway.max_requests",
                "send this one again later",
            )
        # Whoever asked was told that it may be lost, or is counted: otherwise they only pile up.
        self._writer.take_failures()
        turn = Turn(self, Deadline(self._config.timeout_s, self._clock))
        self._requests += 1
        try:
            yield turn
        finally:
            self._requests -= 1
            self._pending_bytes -= turn.held

    def check_open(self) -> None:
        """Raises:
        Refused: the process ends.
        """
        if self._draining:
            raise refused(
                problems.DRAINING, "this gateway ends", "send it to another, or again soon"
            )

    async def drain(self) -> None:
        """Takes nothing more, and waits up to ``drain_timeout_s`` for the broker to have what was
        accepted; logs what it has not."""
        self._draining = True
        deadline = Deadline(self._config.drain_timeout_s, self._clock)
        if self._on_their_way:
            await asyncio.wait([*self._on_their_way], timeout=deadline.left_s())
        for task in [*self._on_their_way]:
            task.cancel()
        if self._on_their_way:
            await asyncio.wait([*self._on_their_way])
        try:
            async with asyncio.timeout(deadline.left_s()):
                await self._writer.close()
        except (RollstreamError, TimeoutError) as error:
            _log.warning("the writer was closed with %r", error)
        for environment, count in self.undelivered.items():
            _log.warning("not delivered to %s, though answered 202: %d", environment, count)

    def hold(self, turn: Turn, size: int) -> None:
        """Counts so many bytes more of the request's body.

        Raises:
            Refused: they are more than a body, or all of them, may have.
        """
        most = self._config.max_body_bytes
        if turn.held + size > most:
            raise refused(
                problems.TOO_LARGE,
                f"the body has more than {most} bytes, gateway.max_body_bytes",
                "send fewer steps a call",
                "the body",
                f"{turn.held + size} bytes or more",
            )
        if self._pending_bytes + size > self._config.max_pending_bytes:
            raise self._full()
        turn.held += size
        self._pending_bytes += size

    def recount(self, turn: Turn, size: int) -> None:
        """Counts so many bytes of the request instead of its body's, where they are more.

        Raises:
            Refused: then all would be more than ``max_pending_bytes``, and others make them so.
        """
        more = max(0, size - turn.held)
        has_others = self._pending_bytes > turn.held
        if has_others and self._pending_bytes + more > self._config.max_pending_bytes:
            raise self._full()
        turn.held += more
        self._pending_bytes += more

    def _full(self) -> Refused:
        return refused(
            problems.FULL,
            f"{self._pending_bytes} bytes are on their way to the broker, and "
            f"gateway.max_pending_bytes is {self._config.max_pending_bytes}",
            "send it again later, none of this call was taken",
        )

    async def submit(self, turn: Turn, steps: list[Step], environment: str, durable: bool) -> None:
        """Returns once the broker has the steps, or, not durable, once the writer took them."""
        await self._find(turn, environment)
        submitted = self._writer.submit_steps(steps, environment=environment)
        await self._deliver(turn, submitted, environment, len(steps), durable)

    async def complete(
        self, turn: Turn, trajectory_uid: str, end: CompleteBody, environment: str, durable: bool
    ) -> None:
        """The same of a trajectory's end."""
        await self._find(turn, environment)
        completed = self._writer.complete_trajectory(
            trajectory_uid, environment=environment, prompt_uid=end.prompt_uid, steps=end.steps
        )
        await self._deliver(turn, completed, environment, 1, durable)

    async def policy(self, turn: Turn, environment: str, lineage: str | None) -> FollowedPolicy:
        """The newest one that is announced by now; raises as ``AsyncRolloutProducer.policy``."""
        await self._find(turn, environment)  # And what was announced so far is read.
        return await self._writer.policy(environment=environment, lineage=lineage, timeout_s=0.0)

    async def _find(self, turn: Turn, environment: str) -> None:
        """Once an environment, so that what cannot be taken is refused, and not answered 202."""
        if environment not in self._known:
            await self._in_time(turn, self._writer.submit_steps([], environment=environment))
            self._known.add(environment)

    async def _deliver(
        self,
        turn: Turn,
        delivery: Coroutine[Any, Any, None],
        environment: str,
        count: int,
        durable: bool,
    ) -> None:
        if durable:
            await self._in_time(turn, delivery)
            return
        task = asyncio.create_task(delivery)
        await asyncio.sleep(0)  # The writer says what it refuses before it first waits.
        if task.done():
            task.result()
            return
        held, turn.held = turn.held, 0
        self._on_their_way[task] = (environment, count)
        task.add_done_callback(lambda task: self._settle(task, held))

    async def _in_time(self, turn: Turn, delivery: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(turn.deadline.left_s()):
                await delivery
        except TimeoutError as late:
            if isinstance(late, RollstreamError):
                raise
            raise refused(
                problems.LATE,
                f"the broker did not answer within {turn.deadline.timeout_s:g} s, "
                "gateway.timeout_s, and may have it",
                "send it again, a retry is harmless",
            ) from late

    def _settle(self, task: asyncio.Task[None], held: int) -> None:
        self._pending_bytes -= held
        environment, count = self._on_their_way.pop(task)
        error: BaseException | None = (
            asyncio.CancelledError("the process ended") if task.cancelled() else task.exception()
        )
        if error is None:
            return
        # Of a call some steps may have arrived; of one that was given up nobody knows.
        lost = error.entries if isinstance(error, DeliveryFailed) else count
        self.undelivered[environment] += lost
        now_s = self._clock.monotonic_s()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            _log.warning(
                "answered 202 and not delivered so far: %s; the last ones: %s",
                dict(self.undelivered),
                error,
            )


class Turn:
    """One request in its bounds.

    Attributes:
        deadline: of its answer.
        held: bytes of its body, or of its steps, that count among those on their way.
    """

    def __init__(self, intake: Intake, deadline: Deadline) -> None:
        self._intake = intake
        self.deadline = deadline
        self.held = 0

    async def body(self, chunks: AsyncIterator[bytes], announced: int) -> bytearray:
        """The body, once all of it came.

        Args:
            announced: its size as the client says it; 0: it does not.

        Raises:
            Refused: it is too large, too much is on its way already, or it does not come in time.
        """
        self._intake.hold(self, announced)  # Before a byte is read.
        body = bytearray()  # Of a list of small chunks each would take dozens of bytes more.
        try:
            async with asyncio.timeout(self.deadline.left_s()):
                async for chunk in chunks:
                    self._intake.hold(self, max(0, len(body) + len(chunk) - self.held))
                    body += chunk
        except TimeoutError as late:
            raise refused(
                problems.SLOW,
                f"the body did not come within {self.deadline.timeout_s:g} s, gateway.timeout_s",
                "send it again, in smaller calls",
            ) from late
        return body
