"""A member of a consumer group of Kafka."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import END, OnRevoked, Record, TopicPartition
from rollstream.streams.kafka.answers import NOT_A_MEMBER, as_request_error
from rollstream.streams.kafka.faults import OutageLog
from rollstream.streams.kafka.properties import LOG
from rollstream.streams.kafka.reader import KafkaReader, at_offset

COMMIT_S = 10.0  # A coordinator that can't write says so after 5 s; one that is away never does.
CLOSE_S = 10.0  # A member that says nothing for so long is out of its group.
UNANSWERED_MAX = 8  # Commits of a partition; of older ones the answer is of no interest.
OnCommit = Callable[[KafkaError | None, Sequence[Any]], None]


class KafkaGroupReader(KafkaReader):
    """A ``GroupReader``: cooperative-sticky.

    What the group assigns is noted and not fetched before ``begin``: only partitions that were
    begun are in librdkafka's own assignment, so nothing is read from an offset that nobody chose.

    Only the thread that polls calls the consumer: confluent-kafka lets one thread at a time into
    it, so a call that waits for a silent broker would hold ``poll`` as long.

    Args:
        make: gets what the consumer calls with the answer to a commit, within a poll.
        ask_bounds: asks for the bounds of a log beside the consumer.
    """

    def __init__(
        self,
        make: Callable[[OnCommit], Consumer],
        ask_bounds: Callable[[TopicPartition], tuple[int, int]],
        topics: Sequence[str],
        on_revoked: OnRevoked,
        outages: OutageLog,
    ) -> None:
        super().__init__(partial(make, self._on_commit), {}, outages)
        self._topics = list(topics)
        self._on_revoked = on_revoked
        self._assigned: set[TopicPartition] = set()
        self._ask = ask_bounds
        self._to_commit: dict[TopicPartition, confluent_kafka.TopicPartition] = {}
        self._may_commit = Deadline(0.0)
        self._asked_bounds: dict[TopicPartition, Future[tuple[int, int]]] = {}
        # Without an answer, the oldest first, as answers come.
        self._commits: dict[TopicPartition, deque[tuple[int, Future[bool]]]] = {}

    def assigned(self) -> frozenset[TopicPartition]:
        return frozenset(self._assigned)

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        self._send_commits()
        records = super().poll(records_max, timeout_s)
        # Others were fetched before a rebalance in this very call.
        return [record for record in records if record[:2] in self._starts]

    def begin(self, where: TopicPartition, offset: int) -> None:
        assert where in self._assigned, f"{where} is not assigned"
        self.pause(where)
        self._starts[where] = offset
        self._client().incremental_assign([at_offset(where, offset)])

    def commit(self, where: TopicPartition, offset: int, metadata: str) -> Future[bool]:
        answer: Future[bool] = Future()
        if where not in self._assigned:
            answer.set_result(False)
            return answer
        unanswered = self._commits.setdefault(where, deque(maxlen=UNANSWERED_MAX))
        unanswered.append((offset, answer))
        self._to_commit[where] = confluent_kafka.TopicPartition(*where, offset, metadata)
        self._send_commits()
        return answer

    def _send_commits(self) -> None:
        """One request at a time: a coordinator that waits for a replica holds each for 5 s, and the
        heartbeats behind it. Two of them are longer than a session."""
        if not self._to_commit or not self._may_commit.passed():
            return
        positions = [*self._to_commit.values()]
        self._to_commit.clear()
        self._may_commit = Deadline(COMMIT_S)
        try:
            self._client().commit(offsets=positions, asynchronous=True)
        except KafkaException as error:
            self._on_commit(error.args[0], positions)

    def close(self) -> None:
        self._assigned.clear()  # First, so that leaving calls no `on_revoked`.
        super().close()

    def _close_client(self, consumer: Consumer) -> None:
        """Leaves the group, or leaves the client behind: librdkafka asks for the coordinator until
        one answers, so that may never end."""
        if sys.is_finalizing():
            return  # No thread begins any more, and none of its own hinders the end.
        closing = threading.Thread(target=consumer.close, name="rollstream-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            LOG.warning("a consumer did not close within %g s and is left behind", CLOSE_S)

    def _begin_all(self, consumer: Consumer) -> None:
        self._begun = True
        consumer.subscribe(
            self._topics,
            on_assign=self._on_assign,
            on_revoke=self._on_revoked_all,
            on_lost=self._on_revoked_all,
        )

    def _on_assign(self, consumer: Consumer, positions: Iterable[Any]) -> None:
        self._assigned.update(TopicPartition(tp.topic, tp.partition) for tp in positions)
        consumer.incremental_assign([])

    def _on_revoked_all(self, consumer: Consumer, positions: Iterable[Any]) -> None:
        revoked = [TopicPartition(tp.topic, tp.partition) for tp in positions]
        begun = [at_offset(tp, END) for tp in revoked if self._starts.pop(tp, None) is not None]
        for where in revoked:
            self._forget(where)
            self._to_commit.pop(where, None)
            for _, answer in self._commits.pop(where, ()):
                answer.set_result(False)
            if where in self._assigned:
                self._on_revoked(where)
                self._assigned.discard(where)
        consumer.incremental_unassign(begun)

    def _on_commit(self, error: KafkaError | None, positions: Sequence[Any]) -> None:
        self._may_commit = Deadline(0.0)
        for position in positions:
            where, failure = TopicPartition(position.topic, position.partition), error
            offset, unanswered = position.offset, self._commits.get(where, deque())
            failure = failure or position.error
            # It is the answer to those before it, too: they were asked before it was sent.
            while any(asked == offset for asked, _ in unanswered):
                asked, answer = unanswered.popleft()
                if failure is None or failure.code() in NOT_A_MEMBER:
                    # The coordinator looks at the member alone. What it assigned to another was
                    # revoked before this answer.
                    answer.set_result(failure is None and where in self._assigned)
                else:
                    what = f"commit of {where} at {offset}"
                    answer.set_exception(as_request_error(failure, what))
                if asked == offset:
                    break

    def _bounds_of_lost(self, where: TopicPartition) -> tuple[int, int] | None:
        """They are asked for beside ``poll``: a silent leader holds up no other's records."""
        asked = self._asked_bounds.get(where)
        if asked is None:
            self._asked_bounds[where] = answer = Future[tuple[int, int]]()
            ask = partial(self._ask_bounds, where, answer)
            threading.Thread(target=ask, name="rollstream-bounds", daemon=True).start()
        elif asked.done():
            return self._asked_bounds.pop(where).result()
        return None

    def _ask_bounds(self, where: TopicPartition, answer: Future[tuple[int, int]]) -> None:
        try:
            answer.set_result(self._ask(where))
        except Exception as error:  # noqa: BLE001, the next poll raises it
            answer.set_exception(error)

    def _forget(self, where: TopicPartition) -> None:
        super()._forget(where)
        self._asked_bounds.pop(where, None)
