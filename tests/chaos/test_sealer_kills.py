"""Real sealer processes on a real broker, killed at every step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.brokers import until
from harness.history import problems_of
from harness.kafka import KafkaFactory
from harness.kill_points import KillPoint
from harness.rollouts import make_entry
from harness.sealer_process import SealerProcess
from harness.sealing import SealWorld
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Flushed

pytestmark = pytest.mark.broker

GROUPS = 6
FIRST_EPOCH = 0  # Of a seal log's first owner: its claim is the first record.
# Together, since most of the time is spent waiting for sessions to end.
BATCHES = [list(KillPoint)[start : start + 3] for start in range(0, len(KillPoint), 3)]


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def make_world(kafka: str, root: Path) -> SealWorld:
    return SealWorld(
        kafka=kafka, root=root, grouping="mixed", max_flush_rollouts=4, target_group_size=2
    )


def start(cleanup: ExitStack, world: SealWorld, **orders: object) -> SealerProcess:
    process = SealerProcess(world.config, **orders)  # type: ignore[arg-type]
    cleanup.callback(process.close)
    return process


def publish_groups(world: SealWorld, first: int) -> list[str]:
    """Under two policy versions, so that flushes have several files; one record a partition, so
    that its entries end in several flushes."""
    entries = [
        make_entry(
            rollout_uid=f"g{number}-{member}",
            example_id=f"ex-{number}",
            policy_version=f"step-{member if number % 2 else number}",
        )
        for number in range(first, first + GROUPS)
        for member in range(2)
    ]
    world.publish_entries(*entries)
    return [entry.fields["rollout_uid"] for entry in entries]


@pytest.mark.proves("F1", "F4", "I10")
@pytest.mark.parametrize("points", BATCHES, ids="+".join)
def test_killed_at_a_step_nothing_is_lost_or_twice(
    points: list[KillPoint], kafka_bootstrap: str, tmp_path: Path, cleanup: ExitStack
) -> None:
    worlds = [make_world(kafka_bootstrap, tmp_path / point) for point in points]
    uids = []
    for world in worlds:
        cleanup.callback(world.close)
        uids.append(publish_groups(world, 0))
    victims = [
        start(cleanup, world, kill_at=point) for world, point in zip(worlds, points, strict=True)
    ]
    for victim in victims:
        assert victim.wait() == -signal.SIGKILL, "it reached its kill point"
    successors = [start(cleanup, world) for world in worlds]
    for index, world in enumerate(worlds):
        uids[index] += publish_groups(world, GROUPS)
        world.until()
    for successor in successors:
        assert successor.stop() == 0
    for world, published in zip(worlds, uids, strict=True):
        assert problems_of(world, published) == []
        assert len(world.groups()) == 2 * GROUPS


@pytest.mark.proves("F1", "I3", "I4")
@pytest.mark.parametrize("step", ["append_event", "project_manifests"])
def test_a_sealer_that_slept_through_its_session_changes_nothing(
    step: str, kafka_bootstrap: str, tmp_path: Path, cleanup: ExitStack
) -> None:
    world = make_world(kafka_bootstrap, tmp_path)
    cleanup.callback(world.close)
    uids = publish_groups(world, 0)
    zombie = start(cleanup, world, stop_before=step)
    zombie.wait_stopped()
    successor = start(cleanup, world)
    world.until()
    # The successor writes each of its own after the event.
    until(lambda: len(_manifests(world)) == len(world.flushes()))
    before = (world.flushes(), _manifests(world))
    commits = _settled_commits(world)
    zombie.resume()
    assert zombie.stop() == 0
    after = (world.flushes(), _manifests(world))
    assert [len(part) for part in after] == [len(part) for part in before]
    assert _commits(world) == commits
    uids += publish_groups(world, GROUPS)
    world.until()
    assert successor.stop() == 0
    assert problems_of(world, uids) == []


def _manifests(world: SealWorld) -> list[str]:
    return sorted(blob.path for blob in world.blobs.list("manifests/"))


def _settled_commits(world: SealWorld) -> list[int]:
    """The commits, once the successor made those of its own flushes: that is once a second."""
    newest = {
        item.where.partition: item.event
        for item in world.confirmed_events()
        if isinstance(item.event, Flushed)
    }
    wanted = {number: e.watermark for number, e in newest.items() if e.epoch > FIRST_EPOCH}
    deadline = Deadline(30.0, world.clock)
    while True:
        commits = _commits(world)
        if all(commits[number] == watermark for number, watermark in wanted.items()):
            return commits
        assert not deadline.passed(), f"{commits} are committed, {wanted} are settled"


def _commits(world: SealWorld) -> list[int]:
    """What the consumer group remembers of each partition."""
    group = world.layout.sealer_group("math")
    logs = [world.source(number) for number in range(2)]
    found = world.new_broker().admin().committed(group, logs, 20.0)
    return [found[log].offset if log in found else -1 for log in logs]


@pytest.mark.proves("F1")
def test_the_broker_is_killed_in_the_middle_of_flushes(
    own_kafka: KafkaFactory, tmp_path: Path, cleanup: ExitStack
) -> None:
    kafka = own_kafka()
    world = make_world(kafka.bootstrap, tmp_path / "store")
    cleanup.callback(world.close)
    uids = publish_groups(world, 0)
    sealer = start(cleanup, world, stop_before="append_event")
    sealer.wait_stopped()
    uids += publish_groups(world, GROUPS)
    kafka.kill()
    sealer.resume()
    kafka.start()
    world.until()
    uids += publish_groups(world, 2 * GROUPS)
    world.until()
    assert sealer.stop() == 0
    assert problems_of(world, uids) == []
