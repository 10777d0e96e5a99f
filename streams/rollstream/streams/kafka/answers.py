"""librdkafka's errors as our types. Pure."""

from __future__ import annotations

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

_REMEDIES: dict[int, tuple[type[BrokerError], str]] = {
    KafkaError._QUEUE_FULL: (BufferFull, "the writer's queue is full; poll makes room"),
    **dict.fromkeys(
        (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
            KafkaError.TOPIC_EXCEPTION,
        ),
        (UnknownTopic, "`rollstream topics create` makes topics"),
    ),
    **dict.fromkeys(
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (NotAuthorised, "a Kafka ACL (`kafka-acls.sh --add`) for what it names gives access"),
    ),
    **dict.fromkeys(
        (
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError._AUTHENTICATION,
        ),
        (NotAuthorised, "correct the credentials under kafka.client"),
    ),
    **dict.fromkeys(
        (
            KafkaError.MSG_SIZE_TOO_LARGE,
            KafkaError.RECORD_LIST_TOO_LARGE,
        ),
        (RecordTooLarge, "the topic's `max.message.bytes` is the limit"),
    ),
    **dict.fromkeys(
        (
            KafkaError._INVALID_ARG,
            KafkaError.INVALID_CONFIG,
            KafkaError.POLICY_VIOLATION,
            KafkaError.UNSUPPORTED_VERSION,
            KafkaError._UNSUPPORTED_FEATURE,
            KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            KafkaError.INVALID_REQUIRED_ACKS,
            KafkaError.INVALID_PARTITIONS,
            KafkaError.INVALID_REPLICATION_FACTOR,
        ),
        (PermanentBrokerError, "asking again does not help"),
    ),
}

_NOBODY_THERE = frozenset(
    (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)
)

NOT_A_MEMBER = frozenset(
    (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._ASSIGNMENT_LOST,
    )
)


def of_request(code: int, text: str, what: str) -> BrokerError:
    """An answer to a question, or to an append that was never queued.

    Args:
        code: librdkafka's or Kafka's error code.
        text: its description.
        what: what was asked.
    """
    later = "asking again later may help"
    if code in _NOBODY_THERE:
        later = "does Kafka run where `kafka.bootstrap` says?"
    kind, remedy = _REMEDIES.get(code, (BrokerUnavailable, later))
    return kind(f"{what}: {text}; {remedy}")


def of_delivery(code: int, text: str, where: str) -> BrokerError:
    """What a failed delivery report says: certainly not there, or nobody knows."""
    kind, remedy = _REMEDIES.get(code, (DeliveryUnknown, "it may or may not be in the log"))
    if issubclass(kind, PermanentBrokerError):
        return kind(f"{where}: {text}; {remedy}")
    return DeliveryUnknown(f"{where}: {text}; it may or may not be in the log")
