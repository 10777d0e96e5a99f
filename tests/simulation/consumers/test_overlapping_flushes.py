"""The files of a flush are written while the one before it is projected, and nothing else is."""

from __future__ import annotations

import pytest

from harness.failing_blobs import PassingBlobs
from harness.history import problems_of
from harness.sealing import EvictableBroker, SealWorld
from rollstream.store import Bytes, Pieces
from rollstream.store.errors import StoreError

FLUSH_ROLLOUTS = 2


class FailingManifests(PassingBlobs):
    """A store that writes no manifest while ``failing``."""

    failing = False

    def create(self, path: str, data: Bytes | Pieces) -> None:
        if self.failing and path.startswith("manifests/"):
            raise StoreError(f"{path} was not written")
        super().create(path, data)


def names(world: SealWorld, prefix: str) -> int:
    return len([*world.blobs.list(prefix)])


def publish(world: SealWorld, groups: int) -> list[str]:
    uids = [f"r{number}" for number in range(FLUSH_ROLLOUTS * groups)]
    for number, uid in enumerate(uids):
        world.publish(uid, partition=0, example_id=f"ex-{number // FLUSH_ROLLOUTS}")
    return uids


@pytest.mark.proves("I3")
def test_a_flush_whose_predecessor_has_no_manifest_is_written_and_not_appended() -> None:
    world = SealWorld(partitions=1, max_flush_rollouts=FLUSH_ROLLOUTS)
    store = FailingManifests(world.blobs)
    sealer = world.sealer(store=store)
    world.run(sealer)
    store.failing = True
    uids = publish(world, 5)
    world.run(sealer)
    assert len(world.flushes()) == 1
    assert names(world, "groups/") == 2, "the next one's file, and no more"
    assert names(world, "manifests/") == 0
    store.failing = False
    world.run(sealer, seconds=30)
    assert len(world.flushes()) == 5
    assert names(world, "manifests/") == names(world, "groups/") == 5
    assert problems_of(world, uids) == []


@pytest.mark.proves("I3")
def test_a_successor_of_a_zombie_with_two_flushes_on_their_way_seals_once() -> None:
    world = SealWorld(partitions=1, max_flush_rollouts=FLUSH_ROLLOUTS)
    store = FailingManifests(world.blobs)
    own = EvictableBroker(world.logs)
    zombie = world.sealer(broker=own, store=store)
    world.run(zombie)
    store.failing = True
    uids = publish(world, 5)
    world.run(zombie)
    assert names(world, "groups/") == 2
    own.evict()
    successor = world.sealer()
    world.run(successor)
    assert names(world, "manifests/") == 5
    store.failing = False
    world.run(zombie, successor, seconds=30)
    assert names(world, "manifests/") == len(world.flushes()) == 5
    assert problems_of(world, uids) == []
