"""Hands steps to the writer, within bounds and deadlines, and counts what was accepted and then not
delivered."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from rollstream.gateway.limits import Limit, Limits
from rollstream.gateway.problems import Kind, Refused
from rollstream.producers import AsyncStepProducer, DeliveryFailed, FollowedPolicy
from rollstream.runtime.config.gateway import GatewayConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import RollstreamError

_log = logging.getLogger("rollstream.gateway")
Write = Callable[..., Coroutine[Any, Any, None]]


class Intake:
    """The bounds that all requests of one process share. Belongs to one event loop.

    Attributes:
        limits: of bytes, requests and connections.
        writer: what calls write to.
        begun: calls that were begun, by environment.
        refused: calls and connections that were answered with a problem, by its kind.
        undelivered: steps and ends of trajectories that were answered 202 and did not reach the
            log, or perhaps did not, by environment.
        stopping: whether the process is to end: it is not ready, and takes calls for some time.
    """

    def __init__(
        self, writer: AsyncStepProducer, config: GatewayConfig, *, environments: int = 1
    ) -> None:
        self.limits = Limits.of(config, environments)
        self.begun: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.undelivered: Counter[str] = Counter()
        self.stopping = False
        self.writer = writer
        self._config = config
        self._on_their_way: dict[asyncio.Task[None], tuple[str, int]] = {}
        self._known: set[str] = set()  # Environments whose topic is known.
        self._draining = False

    @asynccontextmanager
    async def request(self, environment: str) -> AsyncIterator[Call]:
        """Counts one request, for the block.

        Raises:
            Refused: there are too many, or the process takes none any more.
        """
        if self._draining:
            raise ends()
        self.limits.requests.take(environment)
        self.begun[environment] += 1
        # Whoever asked was told that it may be lost, or is counted: otherwise they only pile up.
        self.writer.take_failures()
        deadline = Deadline(self._config.timeout_s)
        call = Call(environment, deadline, self.limits.pending_bytes, self._config)
        try:
            yield call
        finally:
            self.limits.requests.give(environment)
            self.limits.pending_bytes.give(environment, call.held)

    def check_ready(self) -> None:
        """Raises:
        Refused: the process is to end.
        """
        if self.stopping or self._draining:
            raise ends()

    async def drain(self) -> None:
        """Takes nothing more, and waits up to ``drain_timeout_s`` for the broker to have what was
        accepted; logs what it has not."""
        self._draining = True
        deadline = Deadline(self._config.drain_timeout_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline.left_s()):  # Then they are cancelled.
                await asyncio.gather(*self._on_their_way, return_exceptions=True)
        try:
            async with asyncio.timeout(deadline.left_s()):
                await self.writer.close()
        except (RollstreamError, TimeoutError) as error:
            _log.warning("the writer was closed with %r", error)
        for environment, count in self.undelivered.items():
            _log.warning("not delivered to %s, though answered 202: %d", environment, count)

    async def deliver(self, call: Call, write: Write, *, durable: bool, count: int = 1) -> None:
        """Returns once the log has what this writes, or, not durable, once the writer took it.

        Args:
            write: is given the environment.
            count: steps, or ends of trajectories, that it writes.
        """
        await self._find(call)
        delivery = write(environment=call.environment)
        if durable:
            await self._in_time(call, delivery)
            return
        task = asyncio.create_task(delivery)
        await asyncio.sleep(0)  # The writer says what it refuses before it first waits.
        if task.done():
            task.result()
            return
        held, call.held = call.held, 0
        self._on_their_way[task] = (call.environment, count)
        task.add_done_callback(lambda task: self._settle(task, held))

    async def policy(self, call: Call, lineage: str | None) -> FollowedPolicy:
        """The newest one that is announced by now; raises as ``AsyncRolloutProducer.policy``."""
        await self._find(call)  # And what was announced so far is read.
        return await self.writer.policy(
            environment=call.environment, lineage=lineage, timeout_s=0.0
        )

    async def _find(self, call: Call) -> None:
        """Once an environment, so that what cannot be taken is refused, and not answered 202."""
        if call.environment not in self._known:
            found = self.writer.submit_steps([], environment=call.environment)
            await self._in_time(call, found)
            self._known.add(call.environment)

    async def _in_time(self, call: Call, delivery: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(call.deadline.left_s()):
                await delivery
        except TimeoutError as late:
            if isinstance(late, RollstreamError):
                raise
            raise Refused(
                Kind.LATE,
                f"the broker did not answer within {call.deadline.timeout_s:g} s, "
                "gateway.timeout_s, and may have it",
                "send it again, a retry is harmless",
            ) from late

    def _settle(self, task: asyncio.Task[None], held: int) -> None:
        environment, count = self._on_their_way.pop(task)
        self.limits.pending_bytes.give(environment, held)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        # Of a call some steps may have arrived; of one that was given up nobody knows.
        lost = error.entries if isinstance(error, DeliveryFailed) else count
        self.undelivered[environment] += lost


@dataclass(eq=False)
class Call:
    """One request in its bounds.

    Attributes:
        environment: that it is of.
        deadline: of its answer.
        held: bytes of its body, or of its steps, that count among those on their way.
    """

    environment: str
    deadline: Deadline
    _pending: Limit
    _config: GatewayConfig
    held: int = 0

    async def body(self, chunks: AsyncIterator[bytes], announced: int) -> bytearray:
        """The body, once all of it came. Its bytes count as they come.

        Args:
            announced: its size as the client says it; 0: it does not.

        Raises:
            Refused: it is too large, too much is on its way already, or it does not come in time.
        """
        self._check_size(announced)
        body = bytearray()  # Of a list of small chunks each would take dozens of bytes more.
        now_s = asyncio.get_running_loop().time
        wait_s = self.deadline.slice_s(self._config.client_timeout_s)
        try:
            async with asyncio.timeout(wait_s) as wait:
                async for chunk in chunks:
                    wait_s = self.deadline.slice_s(self._config.client_timeout_s)
                    wait.reschedule(now_s() + wait_s)
                    self._check_size(len(body) + len(chunk))
                    self._hold(len(chunk))
                    body += chunk
        except TimeoutError as late:
            finding = f"nothing of the body came for {wait_s:g} s, by gateway.client_timeout_s, or "
            finding += "the whole did not come in gateway.timeout_s"
            raise Refused(Kind.SLOW, finding, "send it again, in smaller calls") from late
        return body

    def recount(self, size: int) -> None:
        """Counts so many bytes of the request instead of its body's, where they are more.

        Raises:
            Refused: then all would be too much, and others make them so.
        """
        self._hold(max(0, size - self.held), own=self.held)

    def _hold(self, size: int, own: int | None = None) -> None:
        self._pending.take(self.environment, size, own=own)
        self.held += size

    def _check_size(self, size: int) -> None:
        most = self._config.max_body_bytes
        if size > most:
            raise Refused(
                Kind.TOO_LARGE,
                f"the body has more than {most} bytes, gateway.max_body_bytes",
                "send fewer steps a call",
                "the body",
            )


def ends() -> Refused:
    """The problem of a call that comes while the process ends."""
    return Refused(Kind.DRAINING, "this gateway ends", "send it to another, or again soon")
