"""Real sealer processes on a real broker, killed while they retire and delete files."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.kill_points import RetentionPoint
from harness.retention import RetentionWorld
from harness.sealer_process import SealerProcess
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler

pytestmark = pytest.mark.broker

WAIT_S = 60.0
POINTS = [
    RetentionPoint.BEFORE_CONFIRMED,  # Of the event.
    RetentionPoint.BEFORE_PROJECTED,
    RetentionPoint.AFTER_PROJECTED,
    RetentionPoint.AFTER_DELETED,  # Between two files.
    RetentionPoint.AFTER_UNNEEDED,  # Between two manifests.
]


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.proves("F1", "I7", "I10")
def test_killed_while_files_are_retired_and_deleted_the_successor_ends_it(
    kafka_bootstrap: str, tmp_path: Path, cleanup: ExitStack
) -> None:
    """All points together, since most of the time is spent waiting for sessions to end."""
    worlds = [
        RetentionWorld(kafka=kafka_bootstrap, root=tmp_path / point, partitions=1)
        for point in POINTS
    ]
    samplers, expected = [], []
    for world in worlds:
        cleanup.callback(world.close)
        world.seal_groups(0, 4)
        samplers.append(cleanup.enter_context(world.sampler()))
        final = samplers[-1].next_batch(step=0, num_groups=2, timeout_s=WAIT_S)
        samplers[-1].checkpointed(0)
        samplers[-1].next_batch(step=1, num_groups=1, timeout_s=WAIT_S)
        expected.append(world.paths_of(final))
        world.ask()
    victims = [
        SealerProcess(world.config, kill_at=point)
        for world, point in zip(worlds, POINTS, strict=True)
    ]
    for victim in victims:
        cleanup.callback(victim.close)
    while any(victim.process.poll() is None for victim in victims):
        for sampler in samplers:
            sampler.stats()  # Records that it knows; a trainer's calls do the same.
    assert [victim.wait() for victim in victims] == [-signal.SIGKILL] * len(POINTS)
    for world, sampler, files in zip(worlds, samplers, expected, strict=True):
        successor = SealerProcess(world.config)
        cleanup.callback(successor.close)
        wait_until_deleted(world, sampler, files)
        assert world.retired_files() == files
        assert world.files_on_disk() == sorted({*world.sealed_files()} - {*files})
        assert world.problems() == []
        assert sampler.next_batch(step=1, num_groups=1).num_groups == 1
        assert successor.stop() == 0


def wait_until_deleted(world: RetentionWorld, sampler: Sampler, files: list[str]) -> None:
    """The files, and then the manifests of their flushes, which hold one file each."""
    deadline = Deadline(WAIT_S)
    left = len(world.sealed_files()) - len(files)
    while {*files} & {*world.files_on_disk()} or len([*world.blobs.list("manifests/")]) > left:
        sampler.stats()
        world.run(seconds=0.2)
        assert not deadline.passed(), "files that were retired are still there"
