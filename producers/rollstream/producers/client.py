"""``RolloutProducer``: publishes rollouts from an env worker."""

from __future__ import annotations

import threading
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from rollstream.producers.arguments import RolloutArguments, takes
from rollstream.producers.errors import BufferFull, DeliveryFailed, FlushTimedOut, UnknownTopic
from rollstream.producers.group import Group
from rollstream.producers.outbox import Outgoing
from rollstream.producers.shell import TIMEOUT_S, ProducerShell
from rollstream.producers.trajectory import Trajectory, Turns
from rollstream.runtime.deadline import Deadline
from rollstream.streams.errors import BrokerUnavailable

# Requests of many rollouts cost the broker, the sealer and this process least; nobody waits for one
# rollout, and ``flush`` does not wait for it either.
LINGER_MS = 50.0
_ROOM_POLL_S = 0.05  # How long one thread holds the writer while it waits for room.


class RolloutProducer(ProducerShell):
    """Publishes rollouts in batches behind the caller's back, and tells of every one that failed.

    A rollout that ``publish`` took is in the log once ``flush`` or the end of the ``with`` block
    returns without an error; otherwise ``DeliveryFailed`` names it. Threads may share a producer;
    processes may not.

    Args:
        bootstrap: Kafka's ``host:port``, several with commas; or give ``broker``.
        environment: where a call names none.
        replica_id: the env replica; one replica's share of a group can be capped.
        worker_id: this process; default: host and process id.
        lineage: policies are compared only within one.
        namespace: the first part of topics' names.
        generation: the last part of topics' names.
        timeout_s: how long a publish may wait for room, for the topic, and the end of the ``with``
            block for what is still on its way.
        broker: for tests, ``MemoryBroker``; or a ``KafkaBroker`` with properties of your own.
        clock: for tests.

    Examples:
        >>> with RolloutProducer("kafka:9092", environment="math") as producer:
        ...     producer.publish(
        ...         example_id="aime-17", policy_version="step-120", weight_step=120,
        ...         prompt_tokens=prompt, output_tokens=output, logprobs=logprobs, reward=1.0,
        ...     )
    """

    def _begin(self) -> None:
        self._writer = self._broker.writer(report_success=False, linger_ms=LINGER_MS)
        self._lock = threading.Lock()

    @takes(RolloutArguments)
    def publish(self, **rollout: Unpack[RolloutArguments]) -> str:
        """Checks, stamps and queues one rollout segment; returns its uid at once.

        The arguments are those of ``RolloutArguments``. A ``rollout_uid`` of the caller's makes a
        retry idempotent, across processes too, within the sealer's dedupe horizon.

        Raises:
            InvalidRollout: names field, value and remedy; nothing was queued.
            UnknownTopic: the environment has no topic (asked once).
            BrokerUnavailable: nobody answers that question.
            BufferFull: the queue stayed at its bound for ``timeout_s``; nothing was queued.
            DeliveryFailed: rollouts of earlier calls; nothing was queued by this one.
        """
        record = self._outbox.rollout(rollout)
        self._send(record)
        return record.subject.rollout_uid

    def dispatch(
        self,
        *,
        example_id: str,
        group_size: int,
        environment: str = "",
        group_uid: str = "",
        split: str = "train",
    ) -> Group:
        """A group that is being worked on, for a ``with`` block.

        Args:
            example_id: the problem.
            group_size: members at which the group is complete, failed ones among them.
            environment: default: the producer's.
            group_uid: default: a new one.
            split: ``train`` or ``eval``.
        """
        membership = self._membership(environment, example_id, group_uid, group_size, split)
        return Group(membership, self._send)

    def trajectory(
        self,
        *,
        example_id: str,
        environment: str = "",
        group_uid: str = "",
        group_size: int = 0,
        rollout_uid: str = "",
        split: str = "train",
    ) -> Trajectory:
        """A rollout of several segments, for a ``with`` block; complete when the block ends."""
        where = self._place(environment, example_id, group_uid, group_size, split)
        return Trajectory(Turns(self._outbox, where, rollout_uid), self._send)

    def flush(self, timeout_s: float = TIMEOUT_S) -> None:
        """When it returns, everything published before is in the log.

        Raises:
            DeliveryFailed: not these, nor as many as its ``outstanding`` says; those stay queued.
            FlushTimedOut: some were still on their way; they stay queued.
        """
        self._refuse()
        left = self._flush(timeout_s)
        self._tell(left)
        if left:
            raise FlushTimedOut(self._outbox.broker, left, timeout_s)

    def close(self) -> None:
        """Flushes within ``timeout_s`` and gives everything back. Idempotent.

        Raises:
            DeliveryFailed: names what is not, or perhaps not, in the log.
        """
        if not self._close_once():
            return
        with self._lock:
            self._writer.flush(self._timeout_s)
            self._writer.abandon()  # What is still on its way is reported as in doubt.
        if self._own_broker is not None:
            self._own_broker.close()
        self._tell()

    def after_fork(self) -> None:
        super().after_fork()
        self._lock = threading.Lock()  # Another thread may have held it.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except DeliveryFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))  # What the caller's block raised stays in front.

    def _flush(self, timeout_s: float) -> int:
        with self._lock:
            return self._writer.flush(timeout_s)

    def _tell(self, outstanding: int = 0) -> None:
        failed = self._outbox.take_failures(outstanding)
        if failed is not None:
            raise failed

    def _send(self, record: Outgoing, *, tell: bool = True) -> None:
        with self._lock:
            self._refuse()
            if record.topic not in self._topics_found:
                self._find(record.topic)
            self._writer.poll(0.0)
            if tell:
                self._tell()
            try:
                self._append(record)
                return
            except BufferFull as full:
                first = full
        self._wait_for_room(record, first)

    def _append(self, record: Outgoing) -> None:
        topic, key, value, subject = record
        self._writer.append(topic, value, key=key, on_delivery=partial(self._outbox.note, subject))

    def _wait_for_room(self, record: Outgoing, full: BufferFull) -> None:
        deadline = Deadline(self._timeout_s, self._clock)
        while not deadline.passed():
            deadline.log_waiting(lambda: f"room in the buffer for {self._outbox.broker}")
            with self._lock:
                self._refuse()
                self._writer.poll(deadline.slice_s(_ROOM_POLL_S))
                try:
                    self._append(record)
                    return
                except BufferFull as again:
                    full = again
        self._full(deadline, self._writer.outstanding(), full)

    def _find(self, topic: str) -> None:
        try:
            self._writer.partitions(topic, self._timeout_s)
        except UnknownTopic as error:
            self._unknown(topic, error)
        except BrokerUnavailable as error:
            self._unreachable(topic, error)
        self._topics_found.add(topic)
