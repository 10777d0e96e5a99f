"""A byte that flips in Kafka's files: it is never sealed, and only its partition is concerned."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from harness.brokers import until
from harness.sealing import SealWorld
from rollstream.console.broker import EmbeddedKafka
from rollstream.console.broker.properties import LOG_DIR
from rollstream.consumers.sealing.retrying import RetryAnswer, request_retry
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.events import DeadLetter
from rollstream.streams.broker import TopicPartition
from rollstream.streams.reading import bounds_in_time, read_between

pytestmark = [pytest.mark.broker, pytest.mark.proves("F20")]
TIMEOUT_S = 120.0


@pytest.fixture
def world(kafka_bootstrap: str, tmp_path: Path) -> SealWorld:
    return SealWorld(kafka=kafka_bootstrap, root=tmp_path, target_group_size=1, min_group_size=1)


@pytest.fixture
def logs(kafka: EmbeddedKafka) -> Path:
    """The broker's folder of logs; the broker runs in its data folder."""
    return Path(psutil.Process(kafka.pid).cwd()) / LOG_DIR


def flip(logs: Path, topic: str, partition: int, text: bytes) -> None:
    """One bit of this text, in the broker's file of the partition."""
    file = logs / f"{topic}-{partition}" / f"{0:020d}.log"
    at = file.read_bytes().index(text)
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte[0] ^ 1]))


def letters(world: SealWorld) -> list[DeadLetter]:
    where = TopicPartition(world.layout.dead_letters(), 0)
    deadline = Deadline(TIMEOUT_S, SystemClock())
    with closing(world.broker.reader({where: 0})) as reader:
        _, end = bounds_in_time(reader, where, deadline)
        values = [one.value for one in read_between(reader, where, 0, end, deadline)]
    return [codec.decode_as(DeadLetter, value) for value in values]


def test_records_that_are_damaged_are_lost_and_all_others_are_sealed(
    world: SealWorld, logs: Path
) -> None:
    for uid in ("first", "second", "third", "fourth"):
        world.publish(uid, partition=0)
    world.publish("elsewhere", partition=1)
    flip(logs, world.layout.rollouts("math"), 0, b"second")
    with world, world.sealer() as sealer:
        world.until(sealer)
        assert world.groups() == [("elsewhere",), ("first",), ("fourth",), ("third",)]
        assert world.settled() == {"lost": 1}
        (letter,) = letters(world)
        assert (letter.partition, letter.offset, letter.reason) == (0, 1, "damaged")
        assert letter.value is None
        assert "offsets 1 to 1" in letter.detail


def test_a_damaged_seal_log_puts_its_partition_aside_and_nothing_is_skipped(
    world: SealWorld, logs: Path
) -> None:
    with world:
        for partition in range(2):
            world.publish(f"first-{partition}", partition=partition)
        with world.sealer() as sealer:
            world.until(sealer)
        flip(logs, world.layout.groups("math"), 0, b"first-0")
        for partition in range(2):
            world.publish(f"second-{partition}", partition=partition)
        with world.sealer() as sealer:
            deadline = Deadline(TIMEOUT_S, SystemClock())
            while sealer.stats().groups < 1 or not sealer.stats().partitions[0].aside:
                world.run(sealer, seconds=0.3)
                assert not deadline.passed(), sealer.stats()
            aside, other = (one.aside for one in sealer.stats().partitions)
        assert world.layout.groups("math") in aside
        assert other == ""


def test_a_partition_whose_seal_log_was_mended_is_sealed_again_on_request(
    world: SealWorld, logs: Path
) -> None:
    topic, stopping = world.layout.groups("math"), threading.Event()
    with world:
        world.publish("first", partition=0)
        with world.sealer() as sealer:
            world.until(sealer)
        flip(logs, topic, 0, b"first")
        world.publish("second", partition=0)
        sealer = world.sealer()
        running = threading.Thread(target=sealer.run, args=(stopping,))
        running.start()
        try:
            until(lambda: bool(retry(world)))
            assert "damaged" in retry(world)[0].detail
            flip(logs, topic, 0, b"girst")  # Back, as where another replica is copied.
            assert [(one.sealed, one.detail) for one in retry(world)] == [(True, "")]
        finally:
            stopping.set()
            running.join()
        with world.sealer() as sealer:
            world.until(sealer)
        assert world.groups() == [("first",), ("second",)]


def retry(world: SealWorld) -> list[RetryAnswer]:
    deadline = Deadline(TIMEOUT_S, SystemClock())
    broker = world.broker
    return request_retry(
        world.config, broker, world.blobs, environment=None, partition=None, deadline=deadline
    )
