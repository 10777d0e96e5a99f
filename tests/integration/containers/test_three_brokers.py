"""Sealers beside three brokers, of which one does nothing any more and keeps its connections."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from harness.containers import ThreeKafkas, why_no_kafka_container
from harness.silent_broker import RECOVERY_S, SESSION_S, WAIT_S, SealersOfThree
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.kafka import KafkaBroker

pytestmark = pytest.mark.container


@pytest.fixture(scope="module")
def kafkas() -> Iterator[ThreeKafkas]:
    reason = why_no_kafka_container()
    if reason is not None:
        pytest.skip(reason)
    with ThreeKafkas() as started:
        yield started


@pytest.fixture
def sealers(kafkas: ThreeKafkas, tmp_path: Path) -> Iterator[SealersOfThree]:
    """Two that have sealed a group of each partition, and own half of the partitions each."""
    with SealersOfThree(kafkas, tmp_path) as started, KafkaBroker(kafkas.bootstrap) as broker:
        started.until_shared(broker)
        publish(started, broker, started.sources, groups=1)
        started.until_sealed(broker, started.sources)
        yield started


def publish(
    sealers: SealersOfThree, broker: Broker, sources: Collection[TopicPartition], groups: int
) -> None:
    """So many groups to each; returns once they are in the logs."""
    writer = broker.writer()
    for _ in range(groups):
        sealers.publish(writer, sources)
    assert writer.flush(WAIT_S) == 0


def test_partitions_that_other_brokers_lead_are_sealed_on_and_no_sealer_is_evicted(
    kafkas: ThreeKafkas, sealers: SealersOfThree
) -> None:
    silent = sealers.choose(coordinates=False)
    led = sealers.led_by_others(silent)
    assert led
    with sealers.beside(silent) as broker:
        members = broker.admin().group(sealers.group, WAIT_S)
        claims = sealers.claims(broker, led)
        with kafkas.paused(silent):
            publish(sealers, broker, led, groups=20)
            sealers.until_sealed(broker, led)
            assert broker.admin().group(sealers.group, WAIT_S) == members
            assert sealers.claims(broker, led) == claims
        publish(sealers, broker, sealers.sources, groups=1)
        sealers.until_sealed(broker, sealers.sources)


def test_another_broker_coordinates_the_group_and_everything_is_sealed_once_and_soon(
    kafkas: ThreeKafkas, sealers: SealersOfThree
) -> None:
    silent = sealers.choose(coordinates=True)
    with sealers.beside(silent) as broker, kafkas.paused(silent):
        for _ in range(5):
            publish(sealers, broker, sealers.sources, groups=1)
        # From here on: until then the brokers may have been without a leader themselves.
        sealers.until_sealed(broker, sealers.sources, Deadline(SESSION_S + RECOVERY_S))
