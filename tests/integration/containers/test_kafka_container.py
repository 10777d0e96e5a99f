"""The broker that users run in production: the official image, or one like it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.containers import KafkaContainer, why_no_kafka_container
from harness.kafka import create_topic, produce, read

pytestmark = pytest.mark.container


@pytest.fixture(scope="module")
def container() -> Iterator[KafkaContainer]:
    reason = why_no_kafka_container()
    if reason is not None:
        pytest.skip(reason)
    with KafkaContainer() as started:
        yield started


def test_a_record_goes_in_and_comes_out(container: KafkaContainer) -> None:
    topic = create_topic(container.bootstrap)

    produce(container.bootstrap, topic, [b"from outside the container"])

    assert read(container.bootstrap, topic, 1) == [b"from outside the container"]


def test_a_record_of_nearly_16_mib_passes(container: KafkaContainer) -> None:
    topic = create_topic(container.bootstrap, max_message_bytes=str(16 * 1024 * 1024))
    value = bytes(16 * 1024 * 1024 - 1024)

    produce(container.bootstrap, topic, [value])

    assert read(container.bootstrap, topic, 1) == [value]
