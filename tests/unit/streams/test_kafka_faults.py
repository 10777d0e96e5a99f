"""When no broker can be reached, by librdkafka's error callbacks."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from rollstream.runtime.clock import ManualClock
from rollstream.streams.kafka.faults import (
    OVER_AFTER_S,
    REFUSED_OVER_AFTER_S,
    SAY_EVERY_S,
    Faults,
    OutageLog,
    sentence_of,
)

ALL_DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
REFUSED = KafkaError(
    KafkaError._TRANSPORT,
    "kafka:9092/1: Connect to ipv4#10.0.0.7:9092 failed: Connection refused "
    "(after 3ms in state CONNECT, 2 identical error(s) suppressed)",
)

SILENT = KafkaError(KafkaError._TRANSPORT, "kafka:9092/1: Connection setup timed out in state")


@pytest.mark.parametrize("errors", [[ALL_DOWN], [REFUSED]], ids=["idle", "one of several"])
def test_one_sign_alone_is_no_outage(errors: list[KafkaError]) -> None:
    faults = Faults(ManualClock())
    for error in errors:
        faults.record(error)
    assert faults.cause() is None


@pytest.mark.parametrize(
    ("error", "over_after_s"), [(REFUSED, REFUSED_OVER_AFTER_S), (SILENT, OVER_AFTER_S)]
)
def test_outage_is_over_when_the_error_does_not_come_again(
    error: KafkaError, over_after_s: float
) -> None:
    clock = ManualClock()
    faults = Faults(clock)
    faults.record(ALL_DOWN)
    faults.record(error)
    clock.advance(over_after_s - 0.5)
    assert faults.cause() is error
    clock.advance(0.5)
    assert faults.cause() is None


def test_outage_is_over_once_a_broker_answers_and_is_back_when_all_are_down_again() -> None:
    faults = Faults(ManualClock())
    for error in (ALL_DOWN, SILENT):
        faults.record(error)
    faults.reached()
    assert faults.cause() is None
    faults.record(ALL_DOWN)
    assert faults.cause() is SILENT


def test_outage_is_logged_at_once_and_then_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    log = OutageLog("kafka:9092", lambda: AdminClient({}), clock)
    seen_s = []
    for second in range(int(2 * SAY_EVERY_S) + 1):
        before = len(caplog.records)
        log.record(ALL_DOWN)
        log.record(REFUSED)
        if len(caplog.records) > before:
            seen_s.append(second)
        clock.advance(1.0)
    assert seen_s == [0, SAY_EVERY_S, 2 * SAY_EVERY_S]
    assert "Kafka at kafka:9092 cannot be reached: kafka:9092/1: Connect to" in caplog.text


def test_sentence_tells_a_refusal_from_a_name_that_is_not_known() -> None:
    assert sentence_of(REFUSED).endswith("Connection refused; does Kafka run there?")
    unknown = KafkaError(KafkaError._RESOLVE, "kafka:9092/bootstrap: Failed to resolve 'kafka'")
    assert "correct the host in this address" in sentence_of(unknown)
