"""Reads named partitions of Kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import (
    EARLIEST,
    END,
    Bounds,
    Headers,
    LogReader,
    Logs,
    Offsets,
    Record,
    TopicPartition,
)
from rollstream.streams.errors import (
    BrokerError,
    BrokerUnavailable,
    DamagedRecord,
    OffsetLost,
    PermanentBrokerError,
)
from rollstream.streams.kafka.answers import as_request_error
from rollstream.streams.kafka.faults import OutageLog

ANSWER_TIMEOUT_S = 10.0  # For the bounds that an OffsetLost names.
_PROOF_TIMEOUT_S_MIN = 0.1
_ATTEMPT_S = 1.0  # After it a request that has no answer is followed by the question why,
_ATTEMPT_S_MAX = 8.0  # of others after the first at the latest after that.
_LOGICAL = {EARLIEST: confluent_kafka.OFFSET_BEGINNING, END: confluent_kafka.OFFSET_END}
_DAMAGED_TRIES = 3  # Fetches of a batch whose checksum differs, before its reader gives it up.
_DAMAGED_REMEDY = "the broker's copy is damaged: let it copy the partition from another replica"
_OFFSET_MAX = 1 << 53  # No log has so many records.
_IS_LOST = frozenset((KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE))


def at_offset(where: TopicPartition, offset: int) -> confluent_kafka.TopicPartition:
    """librdkafka's form of a position."""
    return confluent_kafka.TopicPartition(*where, _LOGICAL.get(offset, offset))


class KafkaReader(LogReader):
    """A ``LogReader``. The client is made at the first call that needs it.

    Args:
        outages: told whenever a broker answered, and asked why none can be reached.
    """

    def __init__(self, make: Callable[[], Consumer], starts: Offsets, outages: OutageLog) -> None:
        self._make = make
        self._outages = outages
        self._starts = dict(starts)
        self._consumer: Consumer | None = None
        self._begun = False
        self._unproven = {where.topic for where in starts}
        self._proven: set[str] = set()
        self._closed = False
        self._failures: list[KafkaError] = []
        self._lost: dict[TopicPartition, int] = {}  # The offset that was wanted.
        self._ends: dict[TopicPartition, int] = {}  # Up to here all was read, at some moment.
        self._damaged: dict[TopicPartition, tuple[int, int, str]] = {}  # Offset, tries, what.

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        consumer = self._client()
        if not self._begun:
            self._begin_all(consumer)
        self._raise_first()
        # librdkafka waits until it has as many as asked for; a reader wants what has arrived.
        messages = consumer.consume(records_max, 0)
        if not messages and timeout_s > 0:
            messages = consumer.consume(1, timeout_s)
            messages += consumer.consume(records_max - 1, 0) if records_max > 1 else []
            if not messages and self._unproven:
                # librdkafka waits silently for a missing topic.
                self._prove_topics(self._unproven, timeout_s)
        if any(map(Message.error, messages)):
            messages = self._without_failures(messages)
            if not messages:
                self._raise_first()
        if messages:
            self._outages.reached()
            if self._damaged:
                self._forget_damage(messages)
        # The hot path of every reader: one comprehension, no function of ours per record.
        return [
            Record(
                message.topic(),  # type: ignore[arg-type]
                message.partition(),  # type: ignore[arg-type]
                message.offset(),  # type: ignore[arg-type]
                message.timestamp()[1] * 1000,
                message.key(),
                message.value() or b"",
                _headers(message.headers()),
            )
            for message in messages
        ]

    def all_bounds(self, logs: Logs, timeout_s: float) -> Bounds:
        deadline, attempt_s, why = Deadline(timeout_s), _ATTEMPT_S, ""
        while logs:  # Asked again while no broker answers in an attempt.
            attempt = Deadline(deadline.slice_s(attempt_s))
            try:
                firsts = self._offsets(logs, EARLIEST, attempt.left_s())
                attempt = Deadline(deadline.slice_s(attempt_s))
                ends = self._offsets(logs, END, attempt.left_s())
            except BrokerUnavailable as error:
                timed_out = attempt.passed()
                # No callback runs while librdkafka waits for an answer, so this client never says
                # what is wrong.
                if not deadline.passed():
                    why = self._outages.why_away(deadline.left_s())
                if deadline.passed() or not timed_out:
                    if not why:
                        raise
                    raise BrokerUnavailable(f"bounds of {_named(logs)}: {why}") from error
                attempt_s = min(2 * attempt_s, _ATTEMPT_S_MAX)  # For a broker that is slow.
            else:
                self._outages.reached()
                return {where: (firsts[where], ends[where]) for where in logs}
        return {}

    def offsets_at(self, ends: Offsets, timestamp_us: int, timeout_s: float) -> Offsets:
        if not ends:
            return {}
        found = self._offsets(ends, -(-timestamp_us // 1000), timeout_s)
        return {where: found[where] if found[where] >= 0 else end for where, end in ends.items()}

    def read_to(self, where: TopicPartition) -> int:
        return self._ends.get(where, self._starts.get(where, 0))

    def seek(self, where: TopicPartition, offset: int) -> None:
        is_new = where not in self._starts
        if where.topic not in self._proven:
            self._unproven.add(where.topic)
        self._starts[where] = offset
        self._forget(where)
        if self._consumer is not None and self._begun:
            # A new assignment instead of librdkafka's seek: it works in whatever state the
            # partition is, also after an offset was lost, and drops what was read ahead.
            if not is_new:
                self._consumer.incremental_unassign([at_offset(where, END)])
            self._consumer.incremental_assign([at_offset(where, offset)])

    def pause(self, where: TopicPartition) -> None:
        self._forget(where)
        is_read = self._starts.pop(where, None) is not None
        if is_read and self._consumer is not None and self._begun:
            self._consumer.incremental_unassign([at_offset(where, END)])

    def close(self) -> None:
        self._closed = True
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._close_client(consumer)

    def _close_client(self, consumer: Consumer) -> None:
        """It is in no group, so it waits for no coordinator."""
        consumer.close()

    def _forget(self, where: TopicPartition) -> None:
        """What was found out about the partition is of no interest any more."""
        for known in (self._lost, self._ends, self._damaged):
            known.pop(where, None)

    def _client(self) -> Consumer:
        if self._consumer is None:
            assert not self._closed, "a closed reader is not used again"
            self._consumer = self._make()
        return self._consumer

    def _offsets(self, logs: Logs, when: int, timeout_s: float) -> Offsets:
        """The first offset of each log from a time in milliseconds on, negative: there is none; or
        that of EARLIEST or END, which Kafka's request takes in place of a time."""
        asked = [at_offset(where, when) for where in logs]
        what, within = f"offsets of {_named(logs)}", Deadline(timeout_s)
        try:
            answers = self._client().offsets_for_times(asked, timeout_s)
        except KafkaException as failure:
            # The topics may be missing, or led by another broker, which librdkafka only finds out
            # by asking some broker for the topics.
            error = failure.args[0]
            if error.code() in (KafkaError._UNKNOWN_PARTITION, KafkaError._TIMED_OUT):
                self._prove_topics({where.topic for where in logs}, within.left_s())
            raise _as_read_error(error, what) from failure
        found = {}
        for one in answers:
            where = TopicPartition(one.topic, one.partition)
            if one.error is not None:
                raise _as_read_error(one.error, f"{what}: {where}")
            found[where] = one.offset
        return found

    def _begin_all(self, consumer: Consumer) -> None:
        """At the first poll, not before: whoever asks for bounds first reads nothing ahead."""
        for where in [where for where, offset in self._starts.items() if offset == END]:
            # librdkafka would find the end some time later; what is written after this call counts.
            self._starts[where] = self.bounds(where, ANSWER_TIMEOUT_S)[1]
        self._begun = True
        consumer.incremental_assign([at_offset(*start) for start in self._starts.items()])

    def _prove_topics(self, topics: set[str], timeout_s: float) -> None:
        """Asks some broker whether the topics exist. Returns at the first question that has no
        answer, so that the caller's own deadline passes.

        Raises:
            UnknownTopic: it answered that one does not. NotAuthorised.
        """
        for topic in sorted(topics):
            try:
                found = self._client().list_topics(topic, max(timeout_s, _PROOF_TIMEOUT_S_MIN))
            except KafkaException:
                return
            error = found.topics[topic].error
            if error is not None:
                raise as_request_error(error, topic)
            self._unproven.discard(topic)
            self._proven.add(topic)

    def _without_failures(self, messages: list[Any]) -> list[Any]:
        """The records; of a partition none behind its first failure, since librdkafka goes on
        behind what it could not decode. It is read again from there, so nothing is skipped."""
        good = []
        failed = set()
        for message in messages:
            error, offset = message.error(), message.offset()
            where = TopicPartition(message.topic(), message.partition())
            if where in failed or (where.partition is not None and where not in self._starts):
                continue  # None: of the client, or of a topic.
            if error is None:
                good.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ends[where] = offset
            elif where.partition is not None and self._is_damage(where, error, offset):
                failed.add(where)
            elif offset is not None and offset > _OFFSET_MAX:  # None: of the client, of no record.
                pass  # From before a seek, of bytes behind a damaged batch.
            elif error.code() in _IS_LOST:
                # An error from before the last seek concerns an offset that nobody wants now.
                if offset >= self._starts.get(where, offset + 1):
                    self._lost[where] = offset
            elif isinstance(_as_read_error(error, "poll"), PermanentBrokerError):
                self._failures.append(error)
                if where in self._starts and offset >= 0:
                    failed.add(where)
                    # The offset may be that of a whole batch, of which only the end was wanted.
                    self.seek(where, max(offset, self._starts[where]))
            # Else the client retries by itself, until the deadline of its caller passes.
        return good

    def _forget_damage(self, delivered: list[Any]) -> None:
        """What is delivered after all is not damaged."""
        for message in delivered:
            self._damaged.pop(TopicPartition(message.topic(), message.partition()), None)

    def _is_damage(self, where: TopicPartition, error: KafkaError, offset: int) -> bool:
        """Whether the error is about a damaged batch, which is then fetched again: librdkafka
        passes no batch whose checksum differs, and takes what is behind its first bytes for other
        batches, of any offset."""
        damaged = self._damaged.get(where)
        if error.code() == KafkaError._BAD_MSG and 0 <= offset <= _OFFSET_MAX:
            tries = damaged[1] + 1 if damaged is not None and damaged[0] == offset else 1
            damaged = offset, tries, error.str()
        if damaged is None:
            return False
        self.seek(where, max(damaged[0], self._starts[where]))
        self._damaged[where] = damaged
        return True

    def _raise_first(self) -> None:
        if self._failures:
            raise _as_read_error(self._failures.pop(0), "poll")
        for where, (offset, tries, what) in self._damaged.items():
            if tries >= _DAMAGED_TRIES:
                del self._damaged[where]
                raise DamagedRecord(where, offset, f"{what}; {_DAMAGED_REMEDY}")
        # librdkafka reports a loss once; forgotten here, the partition would never move again.
        for where, wanted in self._lost.items():
            if bounds := self._bounds_of_lost(where):
                raise OffsetLost(str(where), wanted, *bounds)

    def _bounds_of_lost(self, where: TopicPartition) -> tuple[int, int] | None:
        """What an ``OffsetLost`` names; None: it is not known yet."""
        return self.bounds(where, ANSWER_TIMEOUT_S)


def _named(logs: Logs) -> str:
    """One log by its name, several by how many they are."""
    return f"{len(logs)} logs" if len(logs) > 1 else ", ".join(map(str, logs))


def _headers(found: Any) -> Headers:
    return tuple((name, value or b"") for name, value in found) if found else ()


def _as_read_error(error: KafkaError, what: str) -> BrokerError:
    if error.code() == KafkaError._UNKNOWN_PARTITION:
        # librdkafka reports this for every partition while the broker is down.
        return BrokerUnavailable(f"{what}: {error.str()}; asking again later may help")
    return as_request_error(error, what)
