"""What goes with retired row files: manifests, roll-ups, batch files, and what writers left."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.failing_blobs import PassingBlobs
from harness.retention import NAME, RetentionWorld
from rollstream.consumers.retention.limits import RetentionLimits
from rollstream.consumers.retention.owner import ORPHANS_EVERY_S, READ_TIMEOUT_S
from rollstream.consumers.retention.requests import EnvironmentPlan, plan_request
from rollstream.consumers.retention.unneeded import UNNAMED_S, unnamed_by_log, unneeded_batches
from rollstream.folds import state
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler
from rollstream.sampler.history import check_from_files, replay_step
from rollstream.sampler.history.batch_files import standing_files
from rollstream.sampler.history.recorded import RecordedInFiles
from rollstream.sampler.history.rollouts import AskedRollouts, find_rollouts
from rollstream.sampler.history.without_logs import known_without_logs
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import BlobMissing, Blobs, MemoryBlobs, visible_files
from rollstream.store import rollups as store_rollups
from rollstream.store.layout import (
    batch_in,
    batch_path,
    batches_prefix,
    manifest_path,
    manifests_prefix,
    offset_in,
    rollups_prefix,
)
from rollstream.streams.broker import IDLE_S, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.memory.reader import MemoryReader

ADDRESS = PartitionAddress("math", 1, 0)


def world_of(**config: Any) -> RetentionWorld:
    return RetentionWorld(partitions=1, **config)


def train(sampler: Sampler, steps: int) -> None:
    """Batches of one group, all final."""
    first = sampler.progress().next_step
    for step in range(first, first + steps):
        sampler.next_batch(step=step, num_groups=1)
    sampler.checkpointed(first + steps - 1)


def retain(world: RetentionWorld, sampler: Sampler) -> None:
    world.ask()
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer, sampler=sampler)


def manifests(world: RetentionWorld) -> list[int]:
    """Their offsets."""
    paths = [blob.path for blob in world.blobs.list(manifests_prefix(ADDRESS))]
    return [offset for path in paths if (offset := offset_in(path)) is not None]


def flushes(world: RetentionWorld) -> list[int]:
    """The offsets of all flushes that ever were."""
    return [one.offset for one in world.confirmed_events() if hasattr(one.event, "watermark")]


def batches(world: RetentionWorld) -> list[int]:
    """The steps of batch files."""
    found = (batch_in(blob.path) for blob in world.blobs.list(batches_prefix(NAME)))
    return sorted(one[1] for one in found if one is not None)


def planned(world: RetentionWorld) -> EnvironmentPlan:
    """What a dry run counts."""
    (plan,) = plan_request(
        world.config,
        world.broker,
        world.blobs,
        limits=RetentionLimits(older_than_us=0),
        environments=(),
        deadline=Deadline(10.0, world.clock),
    )
    return plan


@pytest.mark.proves("I7", "I10")
def test_manifests_go_once_all_files_of_their_flush_are_deleted() -> None:
    world = world_of()
    world.seal_groups(0, 6)
    named = manifests(world)
    sampler = world.sampler()
    train(sampler, 4)
    retain(world, sampler)
    assert manifests(world) == named[4:]
    assert world.problems() == []


@pytest.mark.proves("I7", "I10")
def test_the_newest_manifest_stays_and_a_new_sealer_goes_on_behind_it() -> None:
    world = world_of()
    world.seal_groups(0, 3)
    named = manifests(world)
    sampler = world.sampler()
    train(sampler, 3)
    retain(world, sampler)
    assert world.files_on_disk() == []
    assert manifests(world) == named[-1:]
    world.seal_groups(3, 2)
    assert not {*named[:-1]} & {*manifests(world)}, "what was removed is not written again"
    assert world.problems() == []
    train(sampler, 2)
    retain(world, sampler)
    assert len(manifests(world)) == 1
    assert world.problems() == []


def test_a_removed_manifest_is_no_problem_and_any_other_missing_one_is() -> None:
    world = world_of()
    world.seal_groups(0, 5)
    named = manifests(world)
    sampler = world.sampler()
    train(sampler, 2)
    retain(world, sampler)
    world.blobs.delete(manifest_path(ADDRESS, named[2]))
    (problem,) = (one for one in world.problems() if "without a manifest" in one)
    assert problem.endswith(f"(1): {named[2]}")


def test_a_manifest_stays_while_a_sampler_has_not_recorded_that_files_are_retired() -> None:
    world = world_of()
    world.seal_groups(0, 4)
    named = manifests(world)
    sampler = world.sampler()
    train(sampler, 2)
    world.ask()
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer)
    assert len(world.retired_files()) == 2
    assert manifests(world) == named


def test_roll_ups_go_with_the_manifests_that_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_rollups, "ROLLED_TOGETHER", 2)
    world = world_of()
    world.seal_groups(0, 9)
    before = [blob.path for blob in world.blobs.list(rollups_prefix(ADDRESS))]
    sampler = world.sampler()
    train(sampler, 5)
    retain(world, sampler)
    left = [blob.path for blob in world.blobs.list(rollups_prefix(ADDRESS))]
    assert 0 < len(left) < len(before)
    world.seal_groups(9, 4)
    assert world.problems() == []


@pytest.mark.proves("I6", "I7")
def test_batch_files_of_retired_groups_go_and_kept_steps_are_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "FINAL_BATCHES_KEPT", 2)
    world = world_of()
    world.seal_groups(0, 8)
    sampler = world.sampler()
    train(sampler, 6)
    sampler.next_batch(step=6, num_groups=1)
    retain(world, sampler)
    sampler.close()
    assert batches(world) == [4, 5, 6]
    for step in range(7):
        (again,) = replay_step(
            NAME, step, config=world.config, broker=world.broker, clock=world.clock
        )
        assert again.same
    assert check_from_files(NAME, 6, config=world.config, store=world.blobs).same
    with pytest.raises(BlobMissing, match="its groups were retired"):
        check_from_files(NAME, 0, config=world.config, store=world.blobs)
    successor = world.sampler(seed=2)
    assert successor.next_batch(step=7, num_groups=1).num_groups == 1
    successor.close()
    assert batches(world) == [4, 5, 6, 7], "none is written again"
    assert world.problems() == []


class RemovingManifests(PassingBlobs):
    """The first manifest that is opened is gone since it was listed."""

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self.removed = ""

    def read(self, path: str) -> bytes:
        if path.startswith("manifests/") and not self.removed:
            self.removed = path
            self.inner.delete(path)
        return super().read(path)


def test_a_reader_starts_again_if_a_manifest_that_it_listed_is_gone() -> None:
    world = world_of()
    world.seal_groups(0, 3)
    blobs = RemovingManifests(world.blobs)
    assert len(visible_files(blobs)) == 2
    assert blobs.removed


def test_rollouts_of_a_step_whose_manifests_are_gone_are_said_to_be_retired() -> None:
    world = world_of()
    world.seal_groups(0, 3)
    sampler = world.sampler()
    train(sampler, 2)
    retain(world, sampler)
    with pytest.raises(BlobMissing, match="were retired and deleted"):
        find_rollouts(
            AskedRollouts(sampler=NAME, step=0),
            config=world.config,
            store=world.blobs,
            recorded=RecordedInFiles(world.blobs),
        )


def test_without_logs_the_same_groups_are_ready_whatever_was_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "FINAL_BATCHES_KEPT", 1)
    world = world_of()
    world.seal_groups(0, 6)
    sampler = world.sampler()
    train(sampler, 4)
    sampler.close()  # Its files are written.
    before = known_without_logs(NAME, config=world.config, store=world.blobs)
    sampler = world.sampler(seed=2)
    sampler.next_batch(step=4, num_groups=1)
    retain(world, sampler)
    sampler.close()
    after = known_without_logs(NAME, config=world.config, store=world.blobs)
    assert (len(manifests(world)), batches(world)) == (2, [3, 4])
    assert {*after.ready["math"]} < {*before.ready["math"]}
    assert (len(before.ready["math"]), len(after.ready["math"])) == (2, 1)


def orphan_of(path: str, *, epoch: int | None = None) -> str:
    """A file beside this one that no flush names, of its claim or another one."""
    folder, _, name = path.rpartition("/")
    first, _, rest = name.partition("-")
    return f"{folder}/{first if epoch is None else epoch}-{rest.replace('.parquet', '-77.parquet')}"


@pytest.mark.proves("I3", "I7")
def test_files_that_no_flush_names_go_once_a_newer_claim_has_flushed() -> None:
    world = world_of()
    world.seal_groups(0, 1)
    (old,) = world.sealed_files()
    world.seal_groups(1, 1)
    (new,) = {*world.sealed_files()} - {old}
    unnamed, current, foreign = orphan_of(old), orphan_of(new), f"{old[:-8]}-notes.parquet"
    for path in (unnamed, current, foreign):
        world.blobs.create(path, b"x")
    sampler = world.sampler()
    assert planned(world).orphans == 1
    retain(world, sampler)
    assert world.files_on_disk() == sorted([old, new, current, foreign])
    assert "deleted orphans: 1" in world.answers()[-1].detail
    assert world.problems() == []


@pytest.mark.proves("I7")
def test_rows_whose_manifest_was_lost_are_no_orphans() -> None:
    """The seal log names them, and samplers read by it."""
    world = world_of()
    for first in range(3):
        world.seal_groups(first, 1)
    files = world.sealed_files()
    middle = sorted(blob.path for blob in world.blobs.list("manifests/"))[1]
    world.blobs.delete(middle)
    for rollup in [blob.path for blob in world.blobs.list("rollups/")]:
        world.blobs.delete(rollup)
    assert planned(world).orphans == 0
    retain(world, world.sampler())
    assert world.sealed_files() == world.files_on_disk() == files


def test_rows_that_are_kept_for_people_are_no_orphans() -> None:
    world = world_of(seal_timeout_s=1.0, expire_after_s=2.0, min_group_size=2)
    for number in range(2):
        world.publish(f"alone-{number}", group_uid=f"group-{number}", group_size=2)
        sealer = world.sealer()
        world.run(sealer, seconds=20)
        sealer.close()
    kept = [blob.path for blob in world.blobs.list("incomplete/")]
    assert len(kept) == 2
    world.seal_groups(2, 1)
    assert planned(world).orphans == 0
    world.blobs.create(orphan_of(kept[0]), b"x")
    assert planned(world).orphans == 1


def test_by_schedule_orphans_go_within_the_hour() -> None:
    world = world_of(retain_after_hours=1_000.0)
    world.seal_groups(0, 1)
    (old,) = world.sealed_files()
    world.seal_groups(1, 1)
    world.blobs.create(orphan_of(old), b"x")
    sampler = world.sampler()
    train(sampler, 1)
    with world.leaving(world.sealer()) as sealer:
        world.run_now_and_then(sealer, seconds=1.5 * ORPHANS_EVERY_S)
    assert world.files_on_disk() == world.sealed_files()


def test_a_dry_run_counts_what_nothing_needs_and_deletes_nothing() -> None:
    world = world_of()
    world.seal_groups(0, 5)
    sampler = world.sampler()
    train(sampler, 4)
    world.ask()
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer)  # Retired, and not deleted.
    assert planned(world).manifests == 0
    for path in world.retired_files():
        world.blobs.delete(path)
    assert planned(world).manifests == 4
    assert len(manifests(world)) == 5


class Holding(NamedTuple):
    """A sampler that holds these steps."""

    batches: Mapping[int, None]


histories = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), min_size=1, max_size=4)
"""Of each trainer epoch: how many steps it goes back, and how many it decides."""


@given(histories, st.integers(0, 20))
def test_batch_files_that_are_left_say_of_their_steps_what_all_said(
    history: list[tuple[int, int]], held_from: int
) -> None:
    files: list[tuple[int, int]] = []
    end = 0
    for epoch, (back, count) in enumerate(history):
        first = max(0, end - back)
        end = first + count
        files += [(epoch, step) for step in range(first, end)]
    blobs = MemoryBlobs()
    for epoch, step in files:
        blobs.create(batch_path(NAME, epoch, step), json.dumps({"groups": []}).encode())
    left = {*files}
    for path in unneeded_batches(blobs, {NAME: Holding({held_from: None})}):
        found = batch_in(path)
        assert found is not None
        left.remove(found)
        said = {s: e for s, e in standing_files(files).items() if (e, s) in left}
        assert standing_files(left) == said
    assert max(files) in left
    assert all(one in left for one in files if one[1] >= held_from)


class SilentLeaders(MemoryBroker):
    """Nobody says where these logs end, as their leaders are silent."""

    def __init__(self, world: RetentionWorld) -> None:
        super().__init__(world.logs)
        self.asked_s: list[float] = []
        self._clock = world.clock

    def reader(
        self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
    ) -> MemoryReader:
        reader = super().reader(starts, idle_s=idle_s)

        def no_bounds(
            logs: Collection[TopicPartition], timeout_s: float
        ) -> dict[TopicPartition, tuple[int, int]]:
            self.asked_s.append(timeout_s)
            self._clock.advance(timeout_s)
            raise BrokerUnavailable("the test's leader is silent")

        vars(reader).update(all_bounds=no_bounds)
        return reader


def test_orphans_of_logs_whose_leaders_are_silent_stay_and_keep_nobody_waiting() -> None:
    world = world_of()
    world.seal_groups(0, 1)
    (old,) = world.sealed_files()
    broker, deadline = SilentLeaders(world), Deadline(READ_TIMEOUT_S, world.clock)
    paths = [old.replace("-p0-", f"-p{number}-") for number in range(40)]
    assert unnamed_by_log(broker, world.layout, paths, deadline, 5.0, set()) == []
    assert max(broker.asked_s) < 5.1
    assert READ_TIMEOUT_S - deadline.left_s() < UNNAMED_S + 5.1
