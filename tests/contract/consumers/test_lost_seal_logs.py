"""Where a seal log lost its end and the store is there, nothing is settled anew, however often a
sealer is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from harness.brokers import until
from harness.failing_blobs import PassingBlobs
from harness.faults import Append, Fate, FaultyBroker
from harness.sealing import TIMEOUT_S, SealWorld, aside_of
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.events import Requested
from rollstream.store import BlobInfo, hand_root_over, list_manifests, project, read_root_id
from rollstream.store.layout import manifest_path
from rollstream.streams.broker import Record, TopicPartition
from rollstream.streams.reading import read_between
from rollstream.streams.topics.create import create_topics
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.specs import specs_for

pytestmark = pytest.mark.proves("I1", "F20")
FLUSHES = 8
REQUEST = Requested(kind="retain", older_than_us=0, requested_by="somebody", requested_ts=0)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SealWorld]:
    """One partition of which some flushes were sealed, one after another."""
    bootstrap = ""
    if request.param == "kafka":
        bootstrap = request.getfixturevalue("kafka_bootstrap")
    with SealWorld(kafka=bootstrap, root=tmp_path, partitions=1) as made:
        with made.sealer() as sealer:
            for number in range(FLUSHES):
                publish_group(made, f"ex-{number}")
                until(
                    lambda n=number: sealer.stats().segments == 2 * n + 2,  # type: ignore[misc]
                    lambda: made.run(sealer, seconds=0.1),
                )
        yield made


def publish_group(world: SealWorld, name: str) -> None:
    for member in "ab":
        world.publish(f"{name}-{member}", example_id=name)


def seal_log(world: SealWorld) -> TopicPartition:
    return TopicPartition(world.layout.groups("math"), 0)


def records(world: SealWorld, where: TopicPartition) -> Sequence[Record]:
    with closing(world.broker.reader({where: 0})) as reader:
        _, end = reader.bounds(where, TIMEOUT_S)
        return list(read_between(reader, where, 0, end, Deadline(TIMEOUT_S)))


def append(world: SealWorld, where: TopicPartition, *values: bytes) -> None:
    writer = world.broker.writer()
    for value in values:
        writer.append(where.topic, value, partition=where.partition)
    assert writer.flush(TIMEOUT_S) == 0


def cut_back(world: SealWorld, lost: int) -> None:
    """The world's logs are others from now on, whose seal log lacks so many records at its end."""
    kept = {
        log: [record.value for record in records(world, log)]
        for log in (world.source(), seal_log(world))
    }
    values = [*kept.values()]
    namespace = f"{world.config.kafka.namespace}-cut"
    kafka = world.config.kafka.model_copy(update={"namespace": namespace})
    world.config = world.config.model_copy(update={"kafka": kafka})
    world.layout = Layout.of(kafka)
    hand_root_over(world.blobs, read_root_id(world.blobs)._replace(namespace=namespace))
    create_topics(world.broker.admin(), specs_for(world.layout, {"math": 1}), TIMEOUT_S)
    append(world, world.source(), *values[0])
    append(world, seal_log(world), *values[1][:-lost])


def assert_refused(world: SealWorld, starts: int) -> None:
    before = records(world, seal_log(world))
    for _ in range(starts):
        with world.sealer() as sealer:
            until(
                lambda: any(one.aside for one in sealer.stats().partitions),
                lambda: world.run(sealer, seconds=0.1),
            )
            assert "does not hold the flush at" in aside_of(sealer)
    assert records(world, seal_log(world)) == before


@pytest.mark.parametrize("lost", [1, 2, FLUSHES])
def test_no_start_goes_on_where_a_log_was_cut_back(world: SealWorld, lost: int) -> None:
    publish_group(world, "later")
    cut_back(world, lost)
    assert_refused(world, starts=3)
    append(world, seal_log(world), *[codec.encode(REQUEST)] * (lost + 2))
    assert_refused(world, starts=1)


def test_another_flush_in_its_place_is_not_the_one_of_the_manifest() -> None:
    world = SealWorld(partitions=1)
    for name in ("ex-0", "ex-1"):
        publish_group(world, name)
        with world.sealer() as sealer:
            world.run(sealer)
    first, last = list_manifests(world.blobs)
    world.blobs.delete(manifest_path(last.address, last.offset))
    project(world.blobs, last.address, last.offset, first.event)
    assert_refused(world, starts=2)


class ListedBlobs(PassingBlobs):
    """Counts how often manifests are listed."""

    listed = 0

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        self.listed += prefix.startswith("manifests/")
        return super().list(prefix, after=after, limit=limit)


def test_a_claim_lists_the_manifests_of_its_partition_once() -> None:
    world = SealWorld(partitions=1)
    publish_group(world, "ex-0")
    with world.sealer() as sealer:
        world.run(sealer)
    store = ListedBlobs(world.blobs)
    with world.sealer(store=store) as sealer:
        world.run(sealer, seconds=0.5)
        assert sealer.stats().partitions[0].position == 2
        assert store.listed == 1


def test_a_damaged_manifest_says_nothing_of_the_log() -> None:
    world = SealWorld(partitions=1)
    publish_group(world, "ex-0")
    with world.sealer() as sealer:
        world.run(sealer)
    (manifest,) = list_manifests(world.blobs)
    path = manifest_path(manifest.address, manifest.offset)
    world.blobs.delete(path)
    world.blobs.create(path, b"{")
    publish_group(world, "ex-1")
    with world.sealer() as sealer:
        world.run(sealer)
    assert world.groups() == [("ex-0-a", "ex-0-b"), ("ex-1-a", "ex-1-b")]


def test_whoever_claims_again_out_of_doubt_looks_first() -> None:
    world = SealWorld(partitions=1)
    publish_group(world, "ex-0")
    doubt = [Fate.PASS]

    def decide(append: Append) -> Fate:
        return doubt[0] if append.topic == seal_log(world).topic else Fate.PASS

    sealer = world.sealer(broker=FaultyBroker(world.new_broker(), decide))
    world.run(sealer)
    (manifest,) = list_manifests(world.blobs)
    project(world.blobs, manifest.address, manifest.offset + 2, manifest.event)
    doubt[0] = Fate.DOUBT_AND_DROP
    publish_group(world, "ex-1")
    before = records(world, seal_log(world))
    world.run(sealer, seconds=30.0)
    assert "does not hold the flush at" in aside_of(sealer)
    doubt[0] = Fate.PASS
    sealer.close()
    assert records(world, seal_log(world)) == before
