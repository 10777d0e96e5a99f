"""A member of a consumer group of Kafka."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient

from rollstream.streams.broker import END, Committed, Record, TopicPartition
from rollstream.streams.kafka.answers import NOT_A_MEMBER, as_request_error, request
from rollstream.streams.kafka.reader import KafkaReader, at_offset


class KafkaGroupReader(KafkaReader):
    """A ``GroupReader``: cooperative-sticky.

    What the group assigns is noted and not fetched before ``begin``: only partitions that were
    begun are in librdkafka's own assignment, so nothing is read from an offset that nobody chose.
    """

    def __init__(
        self,
        make: Callable[[], Consumer],
        make_admin: Callable[[], AdminClient],
        group: str,
        topics: Sequence[str],
        on_revoked: Callable[[TopicPartition], None],
        *,
        reached: Callable[[], None],
        why_away: Callable[[float], str],
    ) -> None:
        super().__init__(make, {}, reached=reached, why_away=why_away)
        self._admin = cache(make_admin)  # Made by the first call.
        self._group = group
        self._topics = list(topics)
        self._on_revoked = on_revoked
        self._assigned: set[TopicPartition] = set()
        self._moved = False
        # librdkafka's commit takes no deadline; one thread waits for it in our stead.
        self._commits = concurrent.futures.ThreadPoolExecutor(1, "rollstream-commit")

    def assigned(self) -> frozenset[TopicPartition]:
        return frozenset(self._assigned)

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        self._moved = False
        records = super().poll(records_max, timeout_s)
        if self._moved:  # What was fetched before a rebalance in this very call.
            begun = self._starts
            records = [r for r in records if TopicPartition(r.topic, r.partition) in begun]
        return records

    def begin(self, where: TopicPartition, offset: int) -> None:
        assert where in self._assigned, f"{where} is not assigned"
        self.pause(where)
        self._starts[where] = offset
        self._client().incremental_assign([at_offset(where, offset)])

    def pause(self, where: TopicPartition) -> None:
        self._forget(where)
        if self._starts.pop(where, None) is not None:
            self._client().incremental_unassign([at_offset(where, END)])

    def commit(self, where: TopicPartition, offset: int, metadata: str, timeout_s: float) -> bool:
        if where not in self._assigned:
            return False
        position = confluent_kafka.TopicPartition(*where, offset, metadata)
        future = self._commits.submit(self._client().commit, offsets=[position], asynchronous=False)
        with request(f"commit of {where} at {offset}", timeout_s):
            try:
                future.result(timeout_s)
            except KafkaException as error:
                if error.args[0].code() in NOT_A_MEMBER:
                    return False
                raise
        return True

    def committed(self, where: TopicPartition, timeout_s: float) -> Committed | None:
        what = f"committed of {where}"
        with request(what, timeout_s):
            (found,) = self._client().committed([at_offset(where, END)], timeout_s)
        if found.error is not None:
            raise as_request_error(found.error, what)
        return None if found.offset < 0 else Committed(found.offset, found.metadata or "")

    def still_assigned(self, where: TopicPartition, timeout_s: float) -> bool:
        if where not in self._assigned:
            return False
        member_id = self._client().memberid()
        future = self._admin().describe_consumer_groups([self._group], request_timeout=timeout_s)
        with request(f"group {self._group}", timeout_s):
            group = future[self._group].result(timeout_s)
        mine = [member for member in group.members if member.member_id == member_id]
        if not mine or group.state != ConsumerGroupState.STABLE:
            # In a cooperative rebalance a member that is still known keeps what it has until it
            # gives it up itself, in its own poll.
            return bool(mine)
        held = mine[0].assignment.topic_partitions
        return any((tp.topic, tp.partition) == where for tp in held)

    def close(self) -> None:
        self._assigned.clear()  # First, so that leaving calls no `on_revoked`.
        super().close()
        self._commits.shutdown(wait=False)

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
        self._moved = True
        revoked = [TopicPartition(tp.topic, tp.partition) for tp in positions]
        begun = [at_offset(tp, END) for tp in revoked if self._starts.pop(tp, None) is not None]
        for where in revoked:
            self._forget(where)
            if where in self._assigned:
                self._on_revoked(where)
                self._assigned.discard(where)
        consumer.incremental_unassign(begun)
