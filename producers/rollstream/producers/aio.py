"""``AsyncRolloutProducer``: publishes from thousands of coroutines in one process."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Self, Unpack

from rollstream.producers.arguments import RolloutArguments, takes
from rollstream.producers.errors import DeliveryFailed, FlushTimedOut
from rollstream.producers.group import AsyncGroup
from rollstream.producers.membership import Membership
from rollstream.producers.outbox import Outgoing, Subject
from rollstream.producers.settings import check_timeout
from rollstream.producers.shell import TIMEOUT_S, ProducerShell
from rollstream.producers.trajectory import AsyncTrajectory, Turns
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Delivery
from rollstream.streams.errors import BrokerUnavailable, BufferFull, DeliveryUnknown, UnknownTopic

_POLL_S = 0.002  # How late a delivery report may be seen; one task polls for all coroutines.
_ASK_S = 0.05  # How long the loop may stand still while a topic is looked up, once a topic.


class AsyncRolloutProducer(ProducerShell[AsyncGroup, AsyncTrajectory]):
    """Each ``await publish(…)`` returns once the broker has the rollout, or raises.

    Belongs to one event loop; all its coroutines may share it. The arguments are those of
    ``RolloutProducer``; ``timeout_s`` bounds a whole publish, the broker's answer included.

    Examples:
        >>> async with AsyncRolloutProducer("kafka:9092", environment="math") as producer:
        ...     async with producer.dispatch(example_id="aime-17", group_size=8) as group:
        ...         await asyncio.gather(*(play(group) for _ in range(8)))
    """

    def _open_writer(self) -> None:
        self._writer = self._broker.writer()
        self._waiting = 0
        self._poller: asyncio.Task[None] | None = None
        self._finding = asyncio.Lock()
        self._crowded = asyncio.Lock()

    @takes(RolloutArguments)
    async def publish(self, **rollout: Unpack[RolloutArguments]) -> str:
        """Checks, stamps and publishes one rollout segment; returns its uid once it is in the log.

        Arguments and errors are those of ``RolloutProducer.publish``, but ``DeliveryFailed``: this
        rollout is not, or perhaps not, in the log.
        """
        record = self._outbox.rollout(self._outbox.fields(rollout))
        await self._deliver(record)
        return record.subject.rollout_uid

    async def flush(self, timeout_s: float = TIMEOUT_S) -> None:
        """Returns once everything published before is in the log.

        Errors are those of ``RolloutProducer.flush``; ``DeliveryFailed`` names those whose own
        ``publish`` was cancelled or ran out of time (any other one raised it there).
        """
        self._refuse()
        check_timeout(timeout_s, zero_allowed=True)
        left = await self._drain(timeout_s)
        self._outbox.raise_failures(left)
        if left:
            raise FlushTimedOut(self._outbox.broker, left, timeout_s)

    async def close(self) -> None:
        """Flushes within ``timeout_s`` and releases everything. Idempotent.

        Raises:
            DeliveryFailed: as ``flush``.
        """
        if not self._closes_now():
            return
        await self._drain(self._timeout_s)
        self._writer.abandon()  # What is still on its way is reported as in doubt.
        if self._own_broker is not None:
            self._own_broker.close()
        self._outbox.raise_failures()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.close()
        except DeliveryFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))  # What the caller's block raised stays in front.

    def _group(self, membership: Membership) -> AsyncGroup:
        return AsyncGroup(membership, self._deliver)

    def _trajectory(self, turns: Turns) -> AsyncTrajectory:
        return AsyncTrajectory(turns, self._deliver)

    async def _drain(self, timeout_s: float) -> int:
        deadline = Deadline(timeout_s, self._clock)
        while True:
            self._writer.poll(0.0)
            if not self._writer.outstanding() or deadline.passed():
                return self._writer.outstanding()
            deadline.log_waiting(lambda: f"{self._outbox.broker} to take what was published")
            await asyncio.sleep(_POLL_S)

    async def _deliver(self, record: Outgoing) -> None:
        """Appends the record; returns once it is in the log."""
        self._refuse()
        answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        on_delivery = partial(self._on_delivery, answer, record.subject)
        queued = False
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                if record.topic not in self._topics_found:
                    await self._find_topic(record.topic)
                await self._append(record, on_delivery)
                queued = True
                delivery = await answer
        except TimeoutError as late:
            if not limit.expired():
                raise
            if queued:
                doubt = DeliveryUnknown(f"no answer within {self._timeout_s:g} s")
                raise self._outbox.failure([(record.subject, doubt)]) from late
            if record.topic not in self._topics_found:
                raise self._unreachable(record.topic) from late
            raise self._full(self._writer.outstanding(), "no room came up") from late
        if delivery.error is not None:
            raise self._outbox.failure([(record.subject, delivery.error)])

    async def _append(self, record: Outgoing, on_delivery: partial[None]) -> None:
        if not self._crowded.locked() and self._try_append(record, on_delivery):
            return
        async with self._crowded:  # First come, first served; one coroutine tries for all.
            while not self._try_append(record, on_delivery):
                await asyncio.sleep(_POLL_S)

    def _try_append(self, record: Outgoing, on_delivery: partial[None]) -> bool:
        self._refuse()
        try:
            self._writer.append(record.topic, record.value, key=record.key, on_delivery=on_delivery)
        except BufferFull:
            return False
        self._waiting += 1
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())
        return True

    def _on_delivery(
        self, answer: asyncio.Future[Delivery], subject: Subject, delivery: Delivery
    ) -> None:
        self._waiting -= 1
        if answer.done():
            # Nobody awaits it any more: flush or close raises it.
            self._outbox.record_failure(subject, delivery)
        else:
            answer.set_result(delivery)

    async def _poll(self) -> None:
        """Runs while answers are due."""
        while self._waiting:
            self._writer.poll(0.0)
            await asyncio.sleep(_POLL_S)
        self._poller = None

    async def _find_topic(self, topic: str) -> None:
        async with self._finding:
            while topic not in self._topics_found:
                self._refuse()
                try:
                    self._writer.partitions(topic, _ASK_S)
                    self._topics_found.add(topic)
                except UnknownTopic as error:
                    raise self._unknown_topic(topic) from error
                except BrokerUnavailable:
                    await asyncio.sleep(_ASK_S)  # The caller's deadline ends it.
