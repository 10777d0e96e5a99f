"""``AsyncRolloutProducer``: publishes from thousands of coroutines in one process."""

from __future__ import annotations

import asyncio
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from typing import Self, Unpack

from rollstream.producers.admission.asking import SharedWait
from rollstream.producers.admission.blocks import AsyncAdmitted
from rollstream.producers.admission.log import AdmissionLog
from rollstream.producers.admission.policies import FollowedPolicy, PolicyLike
from rollstream.producers.engine.gather import Gatherer
from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.engine.producer import TIMEOUT_S, behind
from rollstream.producers.engine.shell import ProducerShell
from rollstream.producers.engine.waits import Wait
from rollstream.producers.errors import (
    DeliveryFailed,
    ProducerClosed,
    RolloutTooLarge,
    SeveralEventLoops,
)
from rollstream.producers.rollouts.arguments import AppendedArguments, RolloutArguments, takes
from rollstream.producers.rollouts.group import AsyncGroup
from rollstream.producers.rollouts.trajectory import AsyncTrajectory
from rollstream.producers.settings import check_timeout
from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline


class _Answer(asyncio.Future[None]):
    """The end of an awaited call.

    A publish that is cancelled before its entry left takes it out at once: the end of the tick
    might send it before the coroutine runs again.

    Attributes:
        wait: the call's, which leads here: with a plain reference back the collector would have to
            free both. The coroutine keeps it.
    """

    __slots__ = ("give_up", "wait")
    give_up: Callable[[Wait], object]
    wait: Callable[[], Wait | None]

    def cancel(self, msg: object = None) -> bool:
        wait = self.wait()
        if wait is not None:
            self.give_up(wait)
        return super().cancel(msg)


class AsyncRolloutProducer(ProducerShell[AsyncGroup, AsyncTrajectory, AsyncAdmitted]):
    """Publishes rollouts with ``await``: each call returns once the broker has the rollout.

    All coroutines of one event loop may share it; while that loop runs, calls from another one
    raise ``SeveralEventLoops``. Rollouts that are published in one tick of the loop share records.
    The arguments are those of ``RolloutProducer``; ``timeout_s`` bounds a whole publish, the
    broker's answer included. ``flush`` has a time of its own, and librdkafka's
    ``message.timeout.ms`` is five minutes.

    A publish that is cancelled before it was sent is not in the log. One that is cancelled later
    may be: give it a ``rollout_uid`` if you may publish it again.

    Examples:
        >>> async with AsyncRolloutProducer("kafka:9092", environment="math") as producer:
        ...     async with producer.dispatch(example_id="aime-17", group_size=8) as group:
        ...         await asyncio.gather(*(play(group) for _ in range(8)))
    """

    _group_block, _trajectory_block, _admitted_block = AsyncGroup, AsyncTrajectory, AsyncAdmitted

    def _begin(self, gatherer: Gatherer | None = None) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # Of the last call.
        super()._begin(gatherer)

    def _use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """A call comes from this loop, and is refused if another one uses the producer."""
        if loop is self._loop:
            return
        if self._loop is not None and self._loop.is_running() and self._engine.refusal is None:
            raise SeveralEventLoops(
                f"this producer is in use in {self._loop!r}, and was called from {loop!r}; make a "
                "producer in each event loop"
            )
        self._loop = loop
        self._tick_ends = False  # Whether the end of this tick of the loop will send.
        self._shared_waits: dict[str, SharedWait] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @takes(RolloutArguments)
    async def publish(self, **rollout: Unpack[RolloutArguments]) -> str:
        """Publishes one rollout segment; returns its uid once it is in the log.

        Arguments and errors are those of ``RolloutProducer.publish``, with two differences.
        ``DeliveryFailed``: this rollout is not, or perhaps not, in the log; its ``uids`` has the
        uid to publish it again with. ``BufferFull``: it was not sent within ``timeout_s``.
        """
        outgoing = self._outbox.rollout(self._outbox.segment(rollout))
        await self._concluded(self._queue((outgoing,)))
        return outgoing.rollout_uid

    @takes(AppendedArguments)
    async def append_to_group(self, **rollout: Unpack[AppendedArguments]) -> str:
        """Publishes one more rollout of a group, as ``RolloutProducer.append_to_group`` does;
        returns once it is in the log. The errors are those of ``publish``.
        """
        outgoing = self._outbox.rollout(self._outbox.appended(rollout))
        await self._deliver((outgoing,))
        return outgoing.rollout_uid

    async def policy(
        self,
        *,
        newer_than: PolicyLike | None = None,
        environment: str = "",
        lineage: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> FollowedPolicy:
        """Returns the newest policy, as ``RolloutProducer.policy`` does. One thread waits for all
        coroutines.
        """
        return await self._newest_policy(newer_than, environment, lineage, timeout_s)

    async def flush(self, timeout_s: float = TIMEOUT_S) -> None:
        """Returns once everything published before is in the log.

        The errors are those of ``RolloutProducer.flush``. ``DeliveryFailed`` names rollouts whose
        ``publish`` was cancelled or ran out of time; others were named there.
        """
        self._engine.refuse()
        check_timeout(timeout_s, zero_allowed=True)
        wait = self._wait(timeout_s, self._clock)
        if not self._engine.flush(wait):
            await _future(wait)
        self._raise_after_flush(wait)

    def take_failures(self) -> DeliveryFailed | None:
        """Returns the failed deliveries that ``flush`` would raise, once; None: there are none."""
        try:
            self._failures.raise_all()
        except DeliveryFailed as failed:
            return failed
        return None

    async def close(self) -> None:
        """Flushes within ``timeout_s`` and releases everything. Idempotent. A call during another
        one waits for it, and raises the same.

        Raises:
            DeliveryFailed: as ``flush``.
            FlushTimedOut: another call still closes the producer after ``timeout_s``.
        """
        self._use_loop(asyncio.get_running_loop())
        was_open = not self._closed.done()
        await asyncio.to_thread(self._close, Deadline(self._timeout_s, self._clock))
        for shared in self._shared_waits.values():
            await shared.end()
        self._raise_what_failed(again=was_open)

    def _at_exit(self, timeout_s: float) -> None:
        """Nothing is promised but to publishes that returned, and these are in the log: only
        threads end."""
        if self._engine.closes(ProducerClosed()):
            self._release()
            self._closed.set_result(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with behind(error):
            await self.close()

    async def _changed(
        self, environment: str, log: AdmissionLog, seen: int, timeout_s: float
    ) -> int:
        self._use_loop(asyncio.get_running_loop())
        shared = self._shared_waits.setdefault(environment, SharedWait(log))
        return await shared.wait(seen, timeout_s)

    @asynccontextmanager
    async def _in_turn(self, environment: str, deadline: Deadline) -> AsyncIterator[None]:
        # One reads for all. Those that came meanwhile go on in their order.
        self._use_loop(asyncio.get_running_loop())
        turn, has_it = self._turns[environment], False
        try:
            with suppress(TimeoutError):  # What the caller asks next says that its time is up.
                async with asyncio.timeout(deadline.left_s()):
                    has_it = await turn.acquire()
            yield
        finally:
            if has_it:
                turn.release()

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _has_ended(self, wait: Wait) -> bool:
        try:
            async with asyncio.timeout(wait.deadline.left_s()):
                await _future(wait)
        except TimeoutError:
            return False
        return True

    def _wait(self, timeout_s: float, clock: Clock, outgoing: Sequence[Outgoing] = ()) -> Wait:
        answer = _Answer()
        self._use_loop(answer.get_loop())
        wait = Wait(timeout_s, clock, outgoing, delivered=bool(outgoing), ended=answer)
        answer.give_up, answer.wait = self._engine.give_up, weakref.ref(wait)
        return wait

    async def _deliver(self, outgoing: Sequence[Outgoing], *, raise_earlier: bool = True) -> None:
        """Gathers entries of one topic; returns once all are in the log."""
        await self._concluded(self._queue(outgoing))

    def _queue(self, outgoing: Sequence[Outgoing]) -> Wait:
        """Gathers the entries, or lets them wait for room and for the topic."""
        wait = self._wait(self._timeout_s, self._clock, outgoing)
        if self._engine.put(outgoing, wait):
            self._send_at_end_of_tick()
        return wait

    async def _concluded(self, wait: Wait) -> None:
        """Returns once all entries of the call are in the log; raises what kept them out of it."""
        try:
            await _future(wait)
        except asyncio.CancelledError:
            if not _future(wait).cancelled():  # It came in the same tick.
                self._failures.keep(wait.failed)
            raise
        if wait.error is not None:
            raise wait.error
        if wait.failed:
            only = wait.failed[0][1]
            if len(wait.failed) == 1 and isinstance(only, RolloutTooLarge):
                raise only
            raise self._failure(wait.failed)

    def _send_at_end_of_tick(self) -> None:
        if not self._tick_ends:
            self._tick_ends = True
            asyncio.get_running_loop().call_soon(self._end_tick)

    def _end_tick(self) -> None:
        """Nothing else of this tick publishes: what it gathered goes."""
        self._tick_ends = False
        self._engine.send()

    def _notify(self, ended: Sequence[Wait]) -> None:
        """Hands calls that have ended to their loop, all at once, from the thread that ended
        them."""
        for loop, waits in groupby(ended, _loop_of):
            of_loop = [*waits]
            try:
                loop.call_soon_threadsafe(self._conclude, of_loop)
            except RuntimeError:  # It was closed: nobody waits.
                for wait in of_loop:
                    self._failures.keep(wait.failed)

    def _conclude(self, ended: Sequence[Wait]) -> None:
        for wait in ended:
            answer = _future(wait)
            if answer.done():  # Nobody awaits it any more: flush or close tells of it.
                self._failures.keep(wait.failed)
            else:
                answer.set_result(None)


def _future(wait: Wait) -> _Answer:
    assert isinstance(wait.ended, _Answer), "an awaited one"
    return wait.ended


def _loop_of(wait: Wait) -> asyncio.AbstractEventLoop:
    return _future(wait).get_loop()
