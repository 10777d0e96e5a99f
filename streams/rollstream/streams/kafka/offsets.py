"""What a consumer group committed, asked through a consumer that is no member of it."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import Consumer

from rollstream.streams.broker import END, Committed, TopicPartition
from rollstream.streams.kafka.answers import as_request_error, request
from rollstream.streams.kafka.reader import at_offset


def committed_offsets(
    consumer: Consumer, asked: Collection[TopicPartition], what: str, timeout_s: float
) -> dict[TopicPartition, Committed]:
    """Those of ``asked`` that its group committed.

    Args:
        what: names the question in errors.

    Raises:
        BrokerUnavailable, NotAuthorised: the broker's answer, or none in time.
    """
    with request(what, timeout_s):
        answers = consumer.committed([at_offset(where, END) for where in asked], timeout_s)
    for answer in answers:
        if answer.error is not None:
            raise as_request_error(answer.error, what)
    return {
        TopicPartition(one.topic, one.partition): Committed(one.offset, one.metadata or "")
        for one in answers
        if one.offset >= 0
    }
