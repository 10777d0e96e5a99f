"""Converts librdkafka's errors to the types of ``streams.errors``. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

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
    KafkaError._FATAL: (BufferFull, "this client sends no more; poll makes another"),
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
        (KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION),
        (NotAuthorised, "correct the credentials under kafka.client"),
    ),
    **dict.fromkeys(
        (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE),
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
    **dict.fromkeys(
        # librdkafka goes on behind what it could not decode, which is no offset without a record.
        (
            KafkaError._BAD_MSG,
            KafkaError._BAD_COMPRESSION,
            KafkaError._NOT_IMPLEMENTED,
            KafkaError._UNDERFLOW,
        ),
        (PermanentBrokerError, "the log has bytes there that are no records; restore it"),
    ),
}

_NO_BROKER = frozenset((KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE))

NOT_A_MEMBER = frozenset(
    (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._ASSIGNMENT_LOST,
    )
)


def as_request_error(error: KafkaError, what: str) -> BrokerError:
    """The failure of a request for ``what``, or of an append that was never queued."""
    later = "asking again later may help"
    if error.code() in _NO_BROKER:
        later = "does Kafka run at the bootstrap address?"
    kind, remedy = _REMEDIES.get(error.code(), (BrokerUnavailable, later))
    return kind(f"{what}: {error.str()}; {remedy}")


def as_delivery_error(error: KafkaError, where: str) -> BrokerError:
    """The failure that a delivery report names: permanent where the record is certainly not in the
    log, else ``DeliveryUnknown``."""
    kind, remedy = _REMEDIES.get(error.code(), (DeliveryUnknown, ""))
    if not issubclass(kind, PermanentBrokerError):
        kind, remedy = DeliveryUnknown, "it may or may not be in the log"
    return kind(f"{where}: {error.str()}; {remedy}")


@contextmanager
def request(what: str, timeout_s: float) -> Iterator[None]:
    """Raises the failures of one request of confluent-kafka as types of ours."""
    try:
        yield
    except KafkaException as error:
        raise as_request_error(error.args[0], what) from error
    except TimeoutError as error:
        raise BrokerUnavailable(f"{what}: no answer within {timeout_s} s") from error
