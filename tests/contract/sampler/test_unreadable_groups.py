"""Groups whose files are missing or damaged, and groups that the trainer does not want."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from harness.failing_blobs import PassingBlobs
from harness.groups import GroupSpec
from harness.sampler_worlds import (
    WITHOUT_RAY,
    LocalWorld,
    SamplerWorld,
    log_end,
    memory_world,
    once_over_ray,
)
from rollstream.sampler import (
    Batch,
    GroupsUnreadable,
    InvalidRequest,
    NotEnoughGroups,
    RequestDiffers,
    SamplerApi,
)
from rollstream.sampler.history import replay_step
from rollstream.schemas.events import Flushed
from rollstream.store import BlobMissing, StoreAway
from rollstream.store.blobs import BlobInfo, Blobs

WAIT_S = 30.0
pytestmark = pytest.mark.proves("F20")


def specs(count: int, first: int = 0) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{first + i}") for i in range(count)]


def ids_of(event: Flushed) -> set[str]:
    return {group.group_id for group in event.groups}


def spoil(world: SamplerWorld, event: Flushed, how: str) -> None:
    path = event.files[0].path
    content = bytearray(world.store.read(path))
    world.store.delete(path)
    if how == "damaged":
        content[content.index(b"rollstream.layout")] ^= 0xFF  # Its footer, so all its groups.
        world.store.create(path, bytes(content))


def share(sampler: SamplerApi, rank: int, of: int, step: int = 0) -> Batch:
    return sampler.next_batch(step, of, timeout_s=WAIT_S, dp_rank=rank, dp_size=of)


@once_over_ray("how", "missing", "damaged")
def test_groups_that_cannot_be_read_give_way_before_a_share_is_handed_out(
    world: SamplerWorld, how: str
) -> None:
    writer = world.writer()
    bad = writer.flush(*specs(2))
    writer.flush(*specs(1, first=2))
    spoil(world, bad, how)
    sampler = world.open()
    sampler.resume(None)
    with pytest.raises(NotEnoughGroups, match=r"needs 2 groups \(others, .* cannot be read"):
        sampler.next_batch(0, 3, timeout_s=0.05)
    writer.flush(*specs(2, first=3))
    shares = [share(sampler, rank, 3) for rank in (2, 0, 1)]
    assert {batch.batch_id[-3:] for batch in shares} == {"-r1"}
    assert not set(shares[0].sampled.group_ids) & ids_of(bad)
    assert sampler.stats().outcomes == {"unreadable": 2}
    assert sampler.progress().dropped == {
        "math": {"ex-0": {"unreadable": 1}, "ex-1": {"unreadable": 1}}
    }
    sampler.ack(shares[0])
    decisions = replay_step(world.name, 0, config=world.config, broker=world.broker())
    assert [decision.same for decision in decisions] == [True, True]
    world.restart()
    again = share(world.open(), 1, 3)
    assert (again.digest, again.uids) == (shares[2].digest, shares[2].uids)


def test_once_a_share_was_handed_out_every_rank_is_told_the_same(world: SamplerWorld) -> None:
    world.configure(cache_bytes=0)
    writer = world.writer()
    files = [writer.flush(*specs(1, first=i)) for i in range(2)]
    sampler = world.open()
    sampler.resume(None)
    first = share(sampler, 0, 2)
    lost = first.sampled.group_ids[1]
    spoil(world, next(event for event in files if lost in ids_of(event)), "missing")
    written = log_end(world)
    told = []
    for rank in (1, 0, 1):
        with pytest.raises(GroupsUnreadable, match=rf"groups 1 \({lost}\) of .* step 0") as raised:
            share(sampler, rank, 2)
        assert (raised.value.step, raised.value.groups) == (0, {1: lost})
        told.append(str(raised.value))
    assert len(set(told)) == 1
    assert log_end(world) == written
    writer.flush(*specs(1, first=7))
    whole = sampler.replace(0, [1], "its file is lost", timeout_s=WAIT_S)
    assert whole.batch_id == f"{first.batch_id}-r1"
    assert whole.sampled.group_ids[0] == first.sampled.group_ids[0]
    assert share(sampler, 0, 2).uids + share(sampler, 1, 2).uids == whole.uids


def test_a_sampler_that_is_to_stop_replaces_nothing_by_itself() -> None:
    world = memory_world()
    world.configure(on_unreadable="stop")
    writer = world.writer()
    spoil(world, writer.flush(*specs(1)), "damaged")
    sampler = world.open()
    sampler.resume(None)
    with pytest.raises(GroupsUnreadable, match="groups 0 "):
        share(sampler, 0, 1)
    writer.flush(*specs(1, first=1))
    written = log_end(world)
    with pytest.raises(GroupsUnreadable):
        share(sampler, 0, 1)
    assert log_end(world) == written
    assert sampler.replace(0, [0], "damaged", timeout_s=WAIT_S).num_groups == 1
    world.close()


class AwayBlobs(PassingBlobs):
    """Blobs below ``prefix`` are missing from ``leave`` on, for so many requests."""

    def __init__(self, blobs: Blobs, prefix: str) -> None:
        super().__init__(blobs)
        self.prefix = prefix
        self.requests_left = 0

    def leave(self, requests: int) -> None:
        self.requests_left = requests

    def read(self, path: str) -> bytes:
        if self._is_away(path):
            raise BlobMissing(f"there is no blob {path}")
        return super().read(path)

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        if self._is_away(path):
            raise BlobMissing(f"there is no blob {path}")
        return super().read_ranges(path, spans)

    def info(self, path: str) -> BlobInfo | None:
        return None if self._is_away(path) else super().info(path)

    def _is_away(self, path: str) -> bool:
        if self.requests_left and path.startswith(self.prefix):
            self.requests_left -= 1
            return True
        return False


def away_world(prefix: str, **sampler: Any) -> tuple[LocalWorld, AwayBlobs]:
    """A world with twelve groups, each in a file of its own."""
    world = memory_world()
    world.configure(**sampler)
    blobs = world.store = AwayBlobs(world.store, prefix)
    writer = world.writer()
    for i in range(12):
        writer.flush(*specs(1, first=i))
    return world, blobs


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        ("groups/", r"missing below .* none of 8 other files .*'math' is there.* counts as away"),
        ("", r"is not the folder that it was: root_id.json is missing .*repeat the call"),
    ],
)
@pytest.mark.parametrize("on_unreadable", ["replace", "stop"])
def test_a_store_that_is_away_costs_no_group(prefix: str, told: str, on_unreadable: str) -> None:
    world, blobs = away_world(prefix, on_unreadable=on_unreadable)
    sampler = world.open()
    sampler.resume(None)
    sampler.stats()  # The root is looked at once, before it goes.
    blobs.leave(1_000_000)
    with pytest.raises(StoreAway, match=told):
        sampler.next_batch(0, 4, timeout_s=0.05)
    written = log_end(world)
    blobs.leave(20)
    batch = sampler.next_batch(0, 4, timeout_s=WAIT_S)
    assert blobs.requests_left == 0
    assert not batch.batch_id.endswith("-r1")
    assert log_end(world) == written
    assert sampler.stats().outcomes == {}
    world.close()


def test_the_last_file_of_an_environment_is_given_up_once_another_is_there() -> None:
    world = memory_world()
    spoil(world, world.writer().flush(*specs(1)), "missing")
    sampler = world.open()
    sampler.resume(None)
    with pytest.raises(StoreAway, match=r"none of 0 other files .* replace\(0, \[0\], reason\)"):
        sampler.next_batch(0, 1, timeout_s=0.05)
    world.writer("code").flush(*specs(1, first=1))
    with pytest.raises(StoreAway, match="none of 0 other files of environment 'math'"):
        sampler.next_batch(0, 1, timeout_s=0.05)
    world.writer("math", 1).flush(*specs(1, first=2))
    assert share(sampler, 0, 1).batch_id.endswith("-r1")
    world.close()


def test_one_call_replaces_few_groups(caplog: pytest.LogCaptureFixture) -> None:
    world = memory_world()
    writer = world.writer()
    for event in [writer.flush(*specs(1, first=i)) for i in range(20)]:
        spoil(world, event, "damaged")
    whole = writer.flush(*specs(12, first=20))
    sampler = world.open()
    sampler.resume(None)
    for dropped in (8, 16):
        with pytest.raises(StoreAway, match="this call replaced 8 groups before"):
            sampler.next_batch(0, 12, timeout_s=0.05)
        assert sampler.stats().outcomes == {"unreadable": dropped}
    batch = sampler.next_batch(0, 12, timeout_s=WAIT_S)
    assert set(batch.sampled.group_ids) == ids_of(whole)
    lines = [one.getMessage() for one in caplog.records if one.name == "rollstream.sampler"]
    assert all("others are looked for" in one and "restore" not in one for one in lines)
    world.close()


def test_groups_that_the_trainer_drops_are_never_served(world: SamplerWorld) -> None:
    writer = world.writer()
    unwanted = writer.flush(*specs(2))
    writer.flush(*specs(2, first=2))
    sampler = world.open()
    sampler.resume(None)
    ids = sorted(ids_of(unwanted))
    for _ in range(2):
        sampler.drop(ids, "a task that cannot be solved")
    batch = sampler.next_batch(0, 2, timeout_s=WAIT_S)
    assert not ids_of(unwanted) & set(batch.sampled.group_ids)
    assert sampler.stats().outcomes == {"by_trainer": 2}
    with pytest.raises(NotEnoughGroups, match=r"2 were dropped as by_trainer: .* drop\(groups, "):
        sampler.next_batch(1, 1, timeout_s=0.05)
    in_batch = batch.sampled.group_ids[1]
    with pytest.raises(RequestDiffers, match=rf"{in_batch} is in .* step 0; .*replace\(0, \[1\]"):
        sampler.drop([in_batch], "late")
    wrong: tuple[Any, ...] = (["ex-1"], [3], "abc", None)
    for groups in wrong:
        with pytest.raises(InvalidRequest, match="groups"):
            sampler.drop(groups, "no id")


@WITHOUT_RAY
def test_slots_are_replaced_by_step_without_the_batch_in_hand(world: SamplerWorld) -> None:
    world.writer().flush(*specs(6))
    sampler = world.open()
    sampler.resume(None)
    first = sampler.next_batch(0, 2, timeout_s=WAIT_S)
    new = sampler.replace(0, [1], "tried", timeout_s=WAIT_S)
    same = sampler.replace(0, [1], "tried", timeout_s=WAIT_S)
    assert new.digest == same.digest != first.digest
    other = sampler.replace(0, [1], "tried again", timeout_s=WAIT_S)
    assert other.batch_id == f"{first.batch_id}-r2"
    decisions = replay_step(world.name, 0, config=world.config, broker=world.broker())
    assert [decision.same for decision in decisions] == [True] * 3
    with pytest.raises(InvalidRequest, match="not distinct slots of a batch of 2"):
        sampler.replace(0, [2], "beyond", timeout_s=WAIT_S)
