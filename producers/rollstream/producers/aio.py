"""``AsyncRolloutProducer``: publishes from thousands of coroutines in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Self, Unpack

from rollstream.producers.admission.asking import SharedWait, newest_policy
from rollstream.producers.admission.blocks import AsyncAdmitted, ShareWanted
from rollstream.producers.admission.policies import FollowedPolicy, PolicyLike
from rollstream.producers.admission.standing import ALIVE_S
from rollstream.producers.admission.waiting import AdmissionQueue
from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.engine.shell import LOOK_TIMEOUT_S, TIMEOUT_S, ProducerShell
from rollstream.producers.errors import DeliveryFailed, FlushTimedOut, RolloutTooLarge
from rollstream.producers.rollouts.arguments import AppendedArguments, RolloutArguments, takes
from rollstream.producers.rollouts.group import AsyncGroup
from rollstream.producers.rollouts.membership import Membership
from rollstream.producers.rollouts.trajectory import AsyncTrajectory, Turns
from rollstream.producers.settings import check_timeout
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import RollstreamError
from rollstream.streams.errors import BrokerUnavailable, DeliveryUnknown, TopicMismatch

_POLL_S = 0.002  # How late a delivery report may be seen; one task polls for all coroutines.
_ASK_S = 0.05  # How long the loop may stand still while a topic is looked up, once a topic.
_READ_S = 0.5  # How long a thread may read on when nobody waits for it any more.


class _Answer(asyncio.Future[RollstreamError | None]):
    """What kept an entry out of the log, if anything did.

    A publish that is cancelled, or out of time, before its entry left takes it out at once: the end
    of the turn might send it before the coroutine runs again.
    """

    def __init__(self, take_out: Callable[[], object]) -> None:
        super().__init__()
        self._take_out = take_out

    def cancel(self, msg: object = None) -> bool:
        self._take_out()
        return super().cancel(msg)


Answers = Sequence[_Answer]


class AsyncRolloutProducer(ProducerShell[AsyncGroup, AsyncTrajectory, AsyncAdmitted]):
    """Publishes rollouts with ``await``: each call returns once the broker has the rollout.

    All coroutines of one event loop may share it. Rollouts that are published in one turn of the
    loop share records. The arguments are those of ``RolloutProducer``; ``timeout_s`` bounds a whole
    publish, the broker's answer included. ``flush`` has a time of its own, and librdkafka's
    ``message.timeout.ms`` is five minutes. A publish that is cancelled before it was sent is not in
    the log. One that is cancelled later may be.

    Examples:
        >>> async with AsyncRolloutProducer("kafka:9092", environment="math") as producer:
        ...     async with producer.dispatch(example_id="aime-17", group_size=8) as group:
        ...         await asyncio.gather(*(play(group) for _ in range(8)))
    """

    def _begin(self) -> None:
        self._shared_waits: dict[str, SharedWait] = {}
        self._turn_ends = False  # Whether the end of this turn of the loop will send.
        # Each publish that is awaited, and when it ends by the clock: all have the same time, so
        # that the first one ends first.
        self._limits: dict[asyncio.Timeout, float] = {}
        self._poller: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None  # That it lives.
        self._reading: dict[AdmissionQueue, asyncio.Task[None]] = {}  # One reads for all.
        self._finding = asyncio.Lock()
        self._crowded = asyncio.Lock()

    @takes(RolloutArguments)
    async def publish(self, **rollout: Unpack[RolloutArguments]) -> str:
        """Publishes one rollout segment; returns its uid once it is in the log.

        Arguments and errors are those of ``RolloutProducer.publish``, with two differences.
        ``DeliveryFailed``: this rollout is not, or perhaps not, in the log. ``BufferFull``: it was
        not sent within ``timeout_s``.
        """
        outgoing = self._outbox.rollout(self._outbox.segment(rollout))
        await self._deliver(outgoing)
        return outgoing.rollout_uid

    @takes(AppendedArguments)
    async def append_to_group(self, **rollout: Unpack[AppendedArguments]) -> str:
        """Publishes one more rollout of a group, as ``RolloutProducer.append_to_group`` does;
        returns once it is in the log. The errors are those of ``publish``.
        """
        outgoing = self._outbox.rollout(self._outbox.appended(rollout))
        await self._deliver(outgoing)
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
        check_timeout(timeout_s, zero_allowed=True)
        wanted = self._wanted_policy(newer_than, environment, lineage)
        deadline = Deadline(timeout_s, self._clock)

        log = self._admission(wanted.environment)
        shared = self._shared_waits.setdefault(wanted.environment, SharedWait(log))

        async def wait(seen: int, longest_s: float) -> int:
            self._refuse()
            return await shared.wait(seen, longest_s)

        return await newest_policy(wanted, log, wait, asyncio.sleep, deadline)

    async def flush(self, timeout_s: float = TIMEOUT_S) -> None:
        """Returns once everything published before is in the log.

        The errors are those of ``RolloutProducer.flush``. ``DeliveryFailed`` names rollouts whose
        ``publish`` was cancelled or ran out of time; others were named there.
        """
        self._refuse()
        check_timeout(timeout_s, zero_allowed=True)
        left = await self._drain(timeout_s)
        self._outbox.raise_failures(left)
        if left:
            raise FlushTimedOut(self._outbox.broker, left, timeout_s)

    def take_failures(self) -> DeliveryFailed | None:
        """Returns the failed deliveries that ``flush`` would raise, once; None: there are none."""
        try:
            self._outbox.raise_failures()
        except DeliveryFailed as failed:
            return failed
        return None

    async def close(self) -> None:
        """Flushes within ``timeout_s`` and releases everything. Idempotent.

        Raises:
            DeliveryFailed: as ``flush``.
        """
        if not self._closes_now():
            return
        if self._telling is not None:
            self._telling.cancel()
        for alive in self._last_to_tell():
            alive.answer = _Answer(partial(self._sender.gatherer.take_out, alive))
            with suppress(TopicMismatch):
                self._sender.append(alive)
        await self._drain(self._timeout_s)
        if background := [one for one in (self._looking, self._telling) if one is not None]:
            await asyncio.wait(background)
        await asyncio.to_thread(self._end_admission)
        for shared in self._shared_waits.values():
            await shared.end()
        self._sender.abandon()  # What is still on its way is reported as in doubt.
        if self._own_broker is not None:
            self._own_broker.close()
        self._raise_what_failed()

    def at_exit(self, timeout_s: float) -> None:
        """Nothing is promised but to publishes that returned, and these are in the log: only
        threads end."""
        if self._closes_now():
            self._end_admission()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.close()
        except DeliveryFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))  # What the caller's block raised stays in front.

    def _group(self, membership: Membership, wanted: ShareWanted | None) -> AsyncGroup:
        admitted = None if wanted is None else self._admitted(wanted)
        return AsyncGroup(membership, self._deliver, admitted)

    def _admitted(self, wanted: ShareWanted) -> AsyncAdmitted:
        return AsyncAdmitted(wanted, self._read_granted, self._tell, self._stay_alive)

    async def _read_granted(self, wanted: ShareWanted) -> None:
        topic, timeout_s = self._outbox.topic(wanted.environment), self._answer_s(wanted.timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                if topic not in self._sender.partitions:
                    await self._find_topic(topic)
                await self._read_once(wanted.admission)
        except TimeoutError as late:
            if topic not in self._sender.partitions:
                raise self._unreachable(topic, timeout_s) from late
            raise BrokerUnavailable(
                f"{self._outbox.broker} did not say within {timeout_s:g} s what samplers grant; "
                "check that the broker runs and can be reached from here"
            ) from late

    async def _read_once(self, admission: AdmissionQueue) -> None:
        reading = self._reading.get(admission)
        if reading is None or (reading.done() and not admission.was_read):
            reading = self._reading[admission] = asyncio.create_task(self._read(admission))
        if not reading.done():  # All that came meanwhile go on in their order.
            await asyncio.shield(reading)

    async def _read(self, admission: AdmissionQueue) -> None:
        deadline = Deadline(self._timeout_s)  # The broker's time, whatever the producer's clock.
        while not admission.was_read:
            self._refuse()
            try:
                await asyncio.to_thread(admission.read, deadline.slice_s(_READ_S))
            except BrokerUnavailable:
                if deadline.passed():
                    raise

    async def _tell(self, environment: str) -> None:
        with suppress(DeliveryFailed):  # It is told again soon.
            await self._deliver(self._outbox.alive(environment))

    def _stay_alive(self) -> None:
        self._refuse()
        if self._telling is None:
            self._telling = self._in_background(self._tell_that_it_lives())

    async def _tell_that_it_lives(self) -> None:
        """Runs while blocks are open, or wait."""
        while True:
            environments, next_s = self._to_tell()
            if next_s == inf and not environments:
                self._telling = None  # At once: the next block that is entered begins it anew.
                return
            for environment in environments:
                with suppress(RollstreamError):  # Whoever publishes is told.
                    await self._tell(environment)
            await asyncio.sleep(min(next_s, ALIVE_S))

    def _trajectory(self, turns: Turns) -> AsyncTrajectory:
        return AsyncTrajectory(turns, self._deliver)

    async def _drain(self, timeout_s: float) -> int:
        deadline = Deadline(timeout_s, self._clock)
        while True:
            self._sender.send_all()
            self._sender.poll(0.0)
            if not self._sender.outstanding or deadline.passed():
                return self._sender.outstanding
            deadline.log_waiting(lambda: f"{self._outbox.broker} to take what was published")
            await asyncio.sleep(_POLL_S)

    async def _deliver(self, outgoing: Outgoing) -> None:
        """Gathers the entry; returns once it is in the log."""
        self._refuse()
        await self._await_answers([outgoing], [self._answer_to(outgoing)], gathered=False)

    async def _find_in_time(self, topic: str) -> None:
        """Learns how many partitions the topic has, unless it is known."""
        self._refuse()
        if topic not in self._sender.partitions:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._find_topic(topic)
            except TimeoutError as late:
                raise self._unreachable(topic, self._timeout_s) from late

    def _gather_together(self, outgoing: Sequence[Outgoing], *, awaited: bool) -> Answers:
        """Gathers all of them, of a topic that was found, or raises ``BufferFull`` at once. Where
        nobody awaits what it returns, ``flush`` and ``close`` raise what becomes of them."""
        self._refuse()
        answers = [self._answer_to(one) for one in outgoing]
        if not awaited:
            for answer in answers:
                answer.set_result(None)
        if not self._sender.append_together(outgoing):
            self._sender.send_all()
            self._sender.poll(0.0)
            if not self._sender.append_together(outgoing):
                raise self._full(at_once=True)
        self._send_at_end_of_turn()
        self._keep_polling()
        return answers

    def _answer_to(self, outgoing: Outgoing) -> _Answer:
        answer = outgoing.answer = _Answer(partial(self._sender.gatherer.take_out, outgoing))
        return answer

    async def _await_answers(
        self, outgoing: Sequence[Outgoing], answers: Answers, *, gathered: bool = True
    ) -> None:
        """Returns once all entries, of one topic, are in the log; one that was not ``gathered`` is
        so first."""
        limit = asyncio.timeout(None)
        self._limits[limit] = self._clock.monotonic_s() + self._timeout_s
        self._keep_polling()
        try:
            async with limit:
                if not gathered:
                    if outgoing[0].topic not in self._sender.partitions:
                        await self._find_topic(outgoing[0].topic)
                    await self._append(outgoing[0])
                if len(answers) == 1:
                    errors = [await answers[0]]
                else:  # Cancelled together: the end of the turn might send the others.
                    errors = await asyncio.gather(*answers)
        except TimeoutError as late:
            if not limit.expired():
                raise
            if self._death is not None:
                raise self._death from late
            errors = self._errors_so_far(outgoing, answers)
        except asyncio.CancelledError:
            for one, answer in zip(outgoing, answers, strict=True):
                if answer.done() and not answer.cancelled():  # It came in the same turn.
                    self._keep_failure(one, answer.result())
                else:
                    answer.cancel()
            raise
        finally:
            self._limits.pop(limit, None)
        if any(errors):
            failed = [(one, wrong) for one, wrong in zip(outgoing, errors, strict=True) if wrong]
            only = failed[0][1]
            if len(failed) == 1 and isinstance(only, RolloutTooLarge):
                raise only
            raise self._outbox.failure(failed)

    def _errors_so_far(
        self, outgoing: Sequence[Outgoing], answers: Answers
    ) -> list[RollstreamError | None]:
        """The time is up: what has not left is taken out, and raised where nothing has."""
        for answer in answers:
            answer.cancel()
        if not any(one.left for one in outgoing):
            topic = outgoing[0].topic
            if topic not in self._sender.partitions:
                raise self._unreachable(topic, self._timeout_s)
            raise self._full()
        waited = f"within {self._timeout_s:g} s"
        doubt = DeliveryUnknown(f"no answer {waited}")
        unsent = BrokerUnavailable(f"it was not sent {waited}")
        return [
            (doubt if one.left else unsent) if answer.cancelled() else answer.result()
            for one, answer in zip(outgoing, answers, strict=True)
        ]

    async def _append(self, outgoing: Outgoing) -> None:
        if not self._crowded.locked() and self._try_append(outgoing):
            return
        async with self._crowded:  # First come, first served; one coroutine tries for all.
            while not self._try_append(outgoing):
                await asyncio.sleep(_POLL_S)

    def _try_append(self, outgoing: Outgoing) -> bool:
        self._refuse()
        if not self._sender.append(outgoing):
            return False
        self._send_at_end_of_turn()
        return True

    def _send_at_end_of_turn(self) -> None:
        if not self._turn_ends:
            self._turn_ends = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Nothing else of this turn publishes: what it gathered goes."""
        self._turn_ends = False
        self._sender.send_all()

    def _keep_polling(self) -> None:
        if self._poller is None:
            self._poller = self._in_background(self._poll())

    def _in_background(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        task.add_done_callback(self._look_how_it_ended)
        return task

    def _look_how_it_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._die(error)
            for limit in self._limits:  # Nothing else would end these.
                limit.reschedule(0.0)
            self._limits.clear()

    def _settle(self, outgoing: Sequence[Outgoing], error: RollstreamError | None) -> None:
        for one in outgoing:
            answer, one.answer = one.answer, None  # They refer to each other no longer.
            assert answer is not None, "made before it was gathered, and settled once"
            if answer.done():
                self._keep_failure(one, error)
            else:
                answer.set_result(error)

    def _keep_failure(self, outgoing: Outgoing, error: RollstreamError | None) -> None:
        """Nobody awaits the publish any more: flush or close raises what became of it."""
        if error is not None:
            self._outbox.keep_failures([outgoing], error)

    async def _poll(self) -> None:
        """Runs while answers are due, or a publish is awaited."""
        while self._sender.outstanding or self._limits:
            self._sender.poll(0.0)
            self._end_late()
            if self._looking is None and (topic := self._topic_to_look_at()) is not None:
                self._looking = self._in_background(self._look_at(topic))
            await asyncio.sleep(_POLL_S)
        self._poller = None

    def _end_late(self) -> None:
        """Ends each publish that is out of time: by the producer's clock, not by the loop's."""
        while self._limits:
            limit, end_s = next(iter(self._limits.items()))
            if end_s > self._clock.monotonic_s():
                return
            del self._limits[limit]
            limit.reschedule(0.0)

    async def _look_at(self, topic: str) -> None:
        found = await asyncio.to_thread(self._sender.changed_partitions, topic, LOOK_TIMEOUT_S)
        if found is not None:
            self._sender.refuse(topic, found)
        self._looking = None

    async def _find_topic(self, topic: str) -> None:
        async with self._finding:
            while topic not in self._sender.partitions:
                self._refuse()
                try:
                    self._sender.find_partitions(topic, _ASK_S)
                except BrokerUnavailable:
                    self._sender.poll(0.0)  # The client logs why.
                    await asyncio.sleep(_ASK_S)  # The caller's deadline ends it.
