"""Where a log is gone and the store is there, nothing begins anew and no step is used twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness import brokers
from harness.failing_blobs import PassingBlobs
from harness.groups import GroupSpec
from harness.sampler_worlds import (
    ENVIRONMENTS,
    TIMEOUT_S,
    LocalWorld,
    config_of,
    kafka_world,
    log_end,
    memory_world,
)
from rollstream.consumers import create_deployment
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler, SamplerView
from rollstream.sampler.engine import snapshots
from rollstream.schemas import codec
from rollstream.schemas.events import Requested
from rollstream.status import measure, stuck_stages
from rollstream.store import BlobInfo, Blobs, Followed, hand_root_over, read_root_id
from rollstream.store.layout import (
    batches_prefix,
    newest_batches_prefix,
    snapshot_path,
)
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import LogLost
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.topics.create import create_topics
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import StoreRoot
from rollstream.streams.topics.specs import specs_for

pytestmark = pytest.mark.proves("I6", "F20")
STEPS = 3
LOST = r"ends before step 0 .* holds a batch of step 2 of .*Kafka's disk is lost"


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalWorld]:
    """A sampler that served some steps and was closed."""
    world = memory_world()
    if request.param == "kafka":
        world = kafka_world(request.getfixturevalue("kafka_bootstrap"), tmp_path)
    world.writer().flush(*[GroupSpec(example_id=f"ex-{i}") for i in range(2 * STEPS)])
    sampler = world.successor()
    for step in range(STEPS):
        sampler.ack(sampler.next_batch(step, 1))
    sampler.close()
    yield world
    world.close()


def contents(store: Blobs) -> dict[str, bytes]:
    return {blob.path: store.read(blob.path) for blob in store.list("")}


def in_generation_2(served: LocalWorld) -> RollstreamConfig:
    """All of its logs are empty, and the root is the one that it had: as after the loss of
    Kafka's disk, without losing what other tests have on this broker."""
    hand_root_over(served.store, read_root_id(served.store)._replace(generation=2))
    kafka = served.config.kafka.model_copy(update={"generation": 2})
    return served.config.model_copy(update={"kafka": kafka})


def with_an_empty_decision_log(served: LocalWorld) -> RollstreamConfig:
    """Of a deployment that names the root, as where that one topic was deleted and made again."""
    config, name = in_generation_2(served), f"{served.name}-2"
    other = config.model_copy(update={"samplers": {name: config.samplers[served.name]}})
    create_deployment(other, broker=served.broker(), store=served.store)
    specs = specs_for(Layout.of(config.kafka), ENVIRONMENTS, config.samplers)
    create_topics(served.broker().admin(), specs, TIMEOUT_S)
    return config


def test_a_sampler_whose_decision_log_is_gone_decides_nothing_anew(served: LocalWorld) -> None:
    config = with_an_empty_decision_log(served)
    before = contents(served.store)
    sampler = Sampler(served.name, config=config, broker=served.broker(), store=served.store)
    for _ in range(2):
        with pytest.raises(LogLost, match=LOST):
            sampler.progress()
        with pytest.raises(LogLost, match=LOST):
            sampler.next_batch(0, 1)
    sampler.close()
    assert contents(served.store) == before
    log = Layout.of(config.kafka).sampler_log(served.name)
    with closing(served.broker().reader({log: 0})) as reader:
        assert reader.bounds(log, TIMEOUT_S)[1] == 0


def test_who_only_looks_is_told_that_the_decision_log_is_gone(served: LocalWorld) -> None:
    config, broker, store = with_an_empty_decision_log(served), served.broker(), served.store
    with SamplerView(served.name, config=config, broker=broker, store=store) as view:
        for ask in (view.progress, view.stats, view.batches, view.progress):
            with pytest.raises(LogLost, match=LOST):
                ask()
    root = StoreRoot(config.store.root, read_root_id(store), Followed(store))
    figures = measure(broker, config, Deadline(TIMEOUT_S), root=root)
    found = [one.reason for one in stuck_stages(figures, config) if one.stage == "sampler"]
    assert len(found) == 1
    assert re.search(LOST, found[0])


def test_no_topic_is_made_where_a_decision_log_is_gone(served: LocalWorld) -> None:
    config = in_generation_2(served)
    for making_again in (config, with_an_empty_decision_log(served)):
        admin, layout = served.broker().admin(), Layout.of(config.kafka)
        topics = [layout.sampler(served.name), *map(layout.groups, config.environments)]
        before = admin.describe(topics, TIMEOUT_S)
        with pytest.raises(LogLost, match=LOST):
            create_deployment(making_again, broker=served.broker(), store=served.store)
        assert admin.describe(topics, TIMEOUT_S) == before


def test_looking_at_logs_that_are_there_finds_nothing_lost(served: LocalWorld) -> None:
    config, broker, store = served.config, served.broker(), served.store
    with SamplerView(served.name, config=config, broker=broker, store=store) as view:
        assert view.progress().next_step == STEPS
    assert create_deployment(config, broker=broker, store=store).topics == ()
    root = StoreRoot(config.store.root, read_root_id(store), Followed(store))
    (figures,) = measure(broker, config, Deadline(TIMEOUT_S), root=root).samplers
    assert figures.lost == ""


def cut_back(world: LocalWorld, end: int) -> None:
    """As though Kafka were restored from a copy in which the decision log ends there."""
    log, broker = Layout.of(world.config.kafka).sampler_log(world.name), world.broker()
    if isinstance(broker, MemoryBroker):
        broker.logs.cut_back(log, end)
    else:
        brokers.cut_back(world.config.kafka.bootstrap, broker, log, end)


@pytest.mark.parametrize("left", [0, 5])
def test_a_sampler_that_runs_decides_nothing_more_where_its_log_is_cut_back(
    served: LocalWorld, left: int
) -> None:
    sampler = served.successor()
    sampler.resume(None)
    batch = sampler.next_batch(STEPS, 1)
    sampler.flush()
    before = contents(served.store)
    cut_back(served, left)
    calls: list[Callable[[], object]] = [
        lambda: sampler.ack(batch),
        lambda: sampler.next_batch(STEPS + 1, 1),
        lambda: sampler.checkpointed(STEPS),
        lambda: sampler.resume(STEPS),
        sampler.progress,
    ]
    for _ in range(3):
        for call in calls:
            with pytest.raises(LogLost, match="End this process, and restore the log whole"):
                call()
        assert log_end(served) <= left + 1, "the event that was on its way, and no claim"
    sampler.close()
    again = served.successor()
    with pytest.raises(LogLost, match="the store's root holds a batch of step 3 of"):
        again.next_batch(0, 1)
    again.close()
    assert contents(served.store) == before


def files_of(world: LocalWorld) -> dict[str, bytes]:
    found = list(world.store.list(batches_prefix(world.name)))
    return {blob.path: world.store.read(blob.path) for blob in found}


@pytest.mark.parametrize("names_newest", [True, False])
def test_a_log_that_was_decided_anew_beyond_the_files_is_not_gone_on_with(
    *, names_newest: bool
) -> None:
    world = memory_world()
    world.writer().flush(*[GroupSpec(example_id=f"ex-{i}") for i in range(4 * STEPS)])
    lost: dict[str, bytes] = {}
    for num_groups, steps in ((1, STEPS), (2, STEPS + 1)):
        sampler = world.successor()
        for step in range(steps):
            sampler.ack(sampler.next_batch(step, num_groups))
        sampler.close()
        files = files_of(world)
        for path in files:
            world.store.delete(path)
        if steps == STEPS:
            cut_back(world, 0)
            lost = files
    for path, content in lost.items():  # Restored from a copy.
        world.store.create(path, content)
    if not names_newest:  # As older releases left it.
        names_no_newest(world)
    again = world.successor()
    with pytest.raises(LogLost, match="holds another batch as that step"):
        again.next_batch(STEPS + 1, 1)
    again.close()
    world.close()


class ListsNoBatches(PassingBlobs):
    """Lists the batch files of nobody, however many steps there are."""

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        assert "/newest/" in prefix or not prefix.startswith("batches/"), prefix
        return super().list(prefix, after=after, limit=limit)


def names_no_newest(world: LocalWorld) -> None:
    for blob in [*world.store.list(newest_batches_prefix(world.name))]:
        world.store.delete(blob.path)


def test_a_fenced_owner_that_writes_late_hides_no_newer_batch(served: LocalWorld) -> None:
    store = served.store
    (before,) = store.list(newest_batches_prefix(served.name))
    late = store.read(before.path)
    with served.successor() as sampler:
        sampler.next_batch(STEPS, 1)
        sampler.flush()
    (after,) = store.list(newest_batches_prefix(served.name))
    store.replace(before.path, late)
    assert after.path > before.path
    assert Followed(store).newest_batch(served.name) == (0, STEPS)


def test_a_claim_lists_no_batch_files(served: LocalWorld) -> None:
    root, served.store = served.store, ListsNoBatches(served.store)
    with served.successor() as sampler:
        sampler.next_batch(STEPS, 1)
    served.store = root
    with served.successor() as sampler:
        assert sampler.next_batch(STEPS + 1, 1).step == STEPS + 1
    assert Followed(root).newest_batch(served.name) == (0, STEPS + 1)


def test_a_claim_over_the_files_of_an_older_release_lists_them_once(served: LocalWorld) -> None:
    names_no_newest(served)
    assert Followed(served.store).newest_batch(served.name) == (0, STEPS - 1)
    with served.successor() as sampler:
        sampler.resume(STEPS - 1)
        sampler.flush()
    assert Followed(ListsNoBatches(served.store)).newest_batch(served.name) == (0, STEPS - 1)


def test_a_decision_log_that_ends_before_a_snapshot_is_not_gone_on_with() -> None:
    world = memory_world()
    sampler = world.successor()
    sampler.resume(None)
    sampler.close()
    log = Layout.of(world.config.kafka).sampler_log(world.name)
    path = snapshot_path(world.name, log.topic, 7)
    world.store.create(path, b"of a log that was longer")
    again = world.successor()
    with pytest.raises(LogLost, match=r"ends at 3, but .* a snapshot at offset 7"):
        again.resume(None)
    again.close()
    world.store.delete(path)
    successor = world.successor()
    assert successor.resume(None) == 0
    successor.close()


def without_end(logs: MemoryLogs, cut: TopicPartition, lost: int) -> MemoryLogs:
    """A copy of all logs, of which one lacks so many records at its end."""
    copied = MemoryLogs()
    for spec in logs.topics().values():
        copied.create(spec)
        for partition in range(spec.partitions):
            where = TopicPartition(spec.name, partition)
            end = logs.bounds(where)[1] - (lost if where == cut else 0)
            for record in logs.read(where, 0, end):
                copied.append(where, record.key, record.value)
    return copied


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_decision_log_that_was_cut_back_is_refused_whoever_appends_to_it(
    monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    monkeypatch.setattr(snapshots, "EVENTS_BETWEEN", 1)
    monkeypatch.setattr(snapshots, "SECONDS_BETWEEN", 0.0)
    world = memory_world()
    world.writer().flush(*[GroupSpec(example_id=f"ex-{i}") for i in range(2 * STEPS)])
    for step in range(STEPS):  # Whoever closes has written its snapshot.
        with world.successor() as sampler:
            batch = sampler.next_batch(step, 1)
        with world.successor() as sampler:
            sampler.ack(batch)
    broker = world.broker()
    assert isinstance(broker, MemoryBroker)
    log = Layout.of(world.config.kafka).sampler_log(world.name)
    logs = without_end(broker.logs, log, lost)
    stranger = codec.encode(
        Requested(kind="retain", older_than_us=0, requested_by="somebody", requested_ts=0)
    )
    for _ in range(2 * STEPS):
        end = logs.bounds(log)[1]
        successor = Sampler(
            world.name, config=world.config, broker=MemoryBroker(logs), store=world.store
        )
        with successor, pytest.raises(LogLost):
            successor.next_batch(STEPS, 1)
        assert logs.bounds(log)[1] == end
        logs.append(log, None, stranger)


def test_another_samplers_files_do_not_matter(served: LocalWorld) -> None:
    name = f"{served.name}-2"
    other = config_of(served.config.store.root, name)
    config = other.model_copy(update={"kafka": served.config.kafka})
    create_deployment(config, broker=served.broker(), store=served.store)
    sampler = Sampler(name, config=config, broker=served.broker(), store=served.store)
    assert sampler.next_batch(0, 1).step == 0
    sampler.close()
    assert list(served.store.list(batches_prefix(served.name)))


def test_under_another_name_a_trainer_goes_on_from_its_checkpoint(served: LocalWorld) -> None:
    name = f"{served.name}-2"
    other = config_of(served.config.store.root, name)
    config = other.model_copy(update={"kafka": in_generation_2(served).kafka})
    create_deployment(config, broker=served.broker(), store=served.store)
    sampler = Sampler(name, config=config, broker=served.broker(), store=served.store)
    assert sampler.resume(STEPS - 1) == STEPS
    assert sampler.progress().next_step == STEPS
    sampler.close()
