"""librdkafka's errors as types."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from rollstream.streams.errors import (
    BrokerError,
    BrokerUnavailable,
    BufferFull,
    DeliveryUnknown,
    NotAuthorised,
    PermanentBrokerError,
    RecordTooLarge,
    UnknownTopic,
)
from rollstream.streams.kafka.answers import as_delivery_error, as_request_error

PERMANENT = [
    (KafkaError.UNKNOWN_TOPIC_OR_PART, UnknownTopic),
    (KafkaError._UNKNOWN_PARTITION, UnknownTopic),
    (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotAuthorised),
    (KafkaError._AUTHENTICATION, NotAuthorised),
    (KafkaError.MSG_SIZE_TOO_LARGE, RecordTooLarge),
    (KafkaError._INVALID_ARG, PermanentBrokerError),
]
PASSING = [
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._PURGE_QUEUE,  # Perhaps sent before, and put back to be sent again.
    KafkaError._PURGE_INFLIGHT,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
]


@pytest.mark.parametrize(("code", "kind"), PERMANENT)
def test_what_cannot_pass_is_permanent_in_both_places(code: int, kind: type[BrokerError]) -> None:
    assert type(as_request_error(KafkaError(code, "text"), "what")) is kind
    assert type(as_delivery_error(KafkaError(code, "text"), "where")) is kind


@pytest.mark.parametrize("code", PASSING)
def test_what_may_pass_is_unavailable_for_a_request_and_doubt_for_a_delivery(code: int) -> None:
    assert type(as_request_error(KafkaError(code, "text"), "what")) is BrokerUnavailable
    assert type(as_delivery_error(KafkaError(code, "text"), "where")) is DeliveryUnknown


@pytest.mark.parametrize("code", [KafkaError._QUEUE_FULL, KafkaError._FATAL])
def test_what_poll_makes_room_for_is_said_as_such_and_is_doubt_in_a_report(code: int) -> None:
    error = KafkaError(code, "text")
    assert type(as_request_error(error, "what")) is BufferFull
    assert type(as_delivery_error(error, "where")) is DeliveryUnknown


def test_messages_name_what_was_asked_and_what_to_do() -> None:
    unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "Unknown topic")
    assert str(as_request_error(unknown, "bounds of t[1]")) == (
        "bounds of t[1]: Unknown topic; `rollstream topics create` makes topics"
    )
    down = KafkaError(KafkaError._ALL_BROKERS_DOWN, "All brokers are down")
    assert str(as_request_error(down, "bounds of t[1]")) == (
        "bounds of t[1]: All brokers are down; does Kafka run at the bootstrap address?"
    )


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "a Kafka ACL"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "a Kafka ACL"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, "the credentials under kafka.client"),
        (KafkaError._AUTHENTICATION, "the credentials under kafka.client"),
    ],
)
def test_who_may_not_and_who_is_not_known_have_different_remedies(code: int, remedy: str) -> None:
    assert remedy in str(as_request_error(KafkaError(code, "refused"), "bounds of t[1]"))
    assert remedy in str(as_delivery_error(KafkaError(code, "refused"), "t[1]"))
