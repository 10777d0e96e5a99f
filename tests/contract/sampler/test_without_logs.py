"""What is known of a sampler whose logs are gone: by its newest snapshot, and what is behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import TIMEOUT_S, LocalWorld, kafka_world, memory_world
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler, UnknownSampler
from rollstream.sampler.engine import snapshots
from rollstream.sampler.history import KnownWithoutLogs, Steps, known_without_logs
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.layout import SNAPSHOTS, batch_path, manifests_prefix, retired_path
from rollstream.store.manifests import project
from rollstream.store.retired import NamedFile, RetiredFiles, encode_retired
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout
from simulation.sampler.snapshots import written_at_once

pytestmark = pytest.mark.proves("F1")
MATH = PartitionAddress("math", 1, 0)


class Served:
    """A sampler that decides, and the files that are there of it.

    Attributes:
        sealed: ids of groups, in the order of their sealing.
    """

    def __init__(self, world: LocalWorld) -> None:
        self.world = world
        self.writer = world.writer()
        self.sampler: Sampler = world.successor()
        self.sealed: list[str] = []

    def seal(self, count: int) -> None:
        specs = [GroupSpec(example_id=f"ex-{len(self.sealed) + i}") for i in range(count)]
        self.sealed += [group.group_id for group in self.writer.flush(*specs).groups]

    def train(self, *steps: int) -> list[str]:
        """One group a step; their ids."""
        ids: list[str] = []
        for step in steps:
            batch = self.sampler.next_batch(step, 1)
            ids += batch.sampled.group_ids
            self.sampler.ack(batch)
        return ids

    def no_more_snapshots(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is decided from here on is in no snapshot."""
        monkeypatch.setattr(snapshots, "EVENTS_BETWEEN", 1_000_000)

    def lose_logs(self) -> None:
        """The sampler ends; the sealers' manifests are all written."""
        self.sampler.close()
        where = Layout.of(self.world.config.kafka).groups_log(MATH)
        with closing(Follower(self.world.broker(), {where: 0})) as follower:
            for one in follower.read_to_end(Deadline(TIMEOUT_S)):
                if isinstance(one.event, Flushed):
                    project(self.world.store, MATH, one.offset, one.event)

    def lose_batch(self, trainer_epoch: int, step: int) -> None:
        path = batch_path(self.world.name, trainer_epoch, step)
        assert self.world.store.info(path)
        self.world.store.delete(path)

    def known(self) -> KnownWithoutLogs:
        return known_without_logs(self.world.name, config=self.world.config, store=self.world.store)

    def ready_but(self, *used: str) -> dict[str, tuple[str, ...]]:
        """What is ready where these groups, and no others, are in batches."""
        return {"math": tuple(sorted({*self.sealed} - {*used}))}


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """Snapshots at every decision."""
    world = memory_world()
    if request.param == "kafka":
        world = kafka_world(request.getfixturevalue("kafka_bootstrap"), tmp_path)
    with written_at_once():
        made = Served(world)
        yield made
        made.sampler.close()
        world.close()


def test_a_step_behind_the_snapshot_without_a_file_is_named_and_none_is_guessed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.seal(10)
    used = served.train(0, 1, 2)
    served.sampler.checkpointed(1)
    served.no_more_snapshots(monkeypatch)
    used += served.train(3, 4, 5)
    served.lose_logs()
    served.lose_batch(0, 4)
    known = served.known()
    assert known.steps == (
        Steps(0, 1, "final", None),
        Steps(2, 2, "trained", 0),
        Steps(3, 3, "in_file", 0),
        Steps(4, 4, "in_no_file", None),
        Steps(5, 5, "in_file", 0),
    )
    assert known.in_no_file == (Steps(4, 4, "in_no_file", None),)
    in_no_file = used.pop(4)
    assert known.ready == served.ready_but(*used)
    assert in_no_file in known.ready["math"], "it may have been any of these"
    assert SNAPSHOTS in known.snapshot


def test_groups_that_were_sealed_behind_the_snapshot_are_ready(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.seal(3)
    used = served.train(0)
    served.no_more_snapshots(monkeypatch)
    served.seal(4)
    used += served.train(1)
    served.lose_logs()
    assert served.known().ready == served.ready_but(*used)


def test_without_a_snapshot_batch_files_and_manifests_say_what_they_hold(served: Served) -> None:
    served.seal(6)
    used = served.train(0, 1, 2)
    served.sampler.checkpointed(2)
    served.lose_logs()
    for blob in [*served.world.store.list(SNAPSHOTS)]:
        served.world.store.replace(blob.path, b"damaged")
    known = served.known()
    assert known.snapshot == ""
    assert known.steps == (Steps(0, 2, "in_file", 0),)
    assert known.ready == served.ready_but(*used)
    assert set(known.unreadable.values()) == {"it is damaged"}


def test_a_rewind_behind_the_snapshot_is_known_by_what_was_decided_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.seal(9)
    used = served.train(0, 1, 2, 3)
    served.no_more_snapshots(monkeypatch)
    assert served.sampler.resume(0, later="release") == 1
    again = served.train(1)
    served.lose_logs()
    known = served.known()
    assert known.steps == (Steps(0, 0, "final", None), Steps(1, 1, "in_file", 1))
    assert known.ready == served.ready_but(used[0], *again)


def test_after_a_replay_older_batches_stand(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.seal(9)
    used = served.train(0, 1, 2)
    served.no_more_snapshots(monkeypatch)
    assert served.sampler.resume(0, later="replay") == 1
    used += served.train(3)
    served.lose_logs()
    known = served.known()
    assert known.steps == (Steps(0, 2, "trained", 0), Steps(3, 3, "in_file", 1))
    assert known.ready == served.ready_but(*used)


def test_groups_of_a_replacement_are_used_and_those_that_gave_way_before_a_file_are_said(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.seal(9)
    first = served.sampler.next_batch(0, 1)
    served.sampler.ack(served.sampler.next_batch(1, 1))
    served.no_more_snapshots(monkeypatch)
    used = [*first.sampled.group_ids, *served.sampler.replace(first, [0], "odd").sampled.group_ids]
    later = served.sampler.next_batch(2, 1)
    gave_way = later.sampled.group_ids[0]
    used += served.sampler.replace(later, [0], "odd").sampled.group_ids
    served.lose_logs()
    known = served.known()
    assert known.replaced == (2,)
    assert {*used} & {*known.ready["math"]} == set()
    assert gave_way in known.ready["math"], "no file names it"
    assert len(known.ready["math"]) == 9 - len(used) - 1


def test_damaged_files_are_passed_over_and_named(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.no_more_snapshots(monkeypatch)
    served.seal(3)
    used = served.train(0, 1)
    served.seal(2)
    served.lose_logs()
    batch = batch_path(served.world.name, 0, 1)
    served.world.store.replace(batch, b'{"groups": [')
    *_, manifest = [blob.path for blob in served.world.store.list(manifests_prefix(MATH))]
    served.world.store.replace(manifest, b"{")
    known = served.known()
    assert {*known.unreadable} == {batch, manifest}
    assert known.in_no_file == (Steps(1, 1, "in_no_file", None),)
    assert known.ready == {"math": tuple(sorted({*served.sealed[:3]} - {used[0]}))}


def test_groups_of_retired_files_are_not_ready(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.no_more_snapshots(monkeypatch)
    served.seal(1)
    flushed = served.writer.flush(GroupSpec(example_id="kept"))
    used = served.train(0)
    served.lose_logs()
    paths = [blob.path for blob in served.world.store.list(manifests_prefix(MATH))]
    offset = int(Path(paths[-1]).stem)
    file = NamedFile(offset, flushed.files[0].path)
    retired = RetiredFiles(MATH, offset + 1, offset + 1, (), (file,))
    served.world.store.create(retired_path(MATH, offset + 1), encode_retired(retired))
    known = served.known()
    assert known.ready == {}
    assert used


def test_a_root_without_a_file_of_the_sampler_is_refused(served: Served) -> None:
    served.seal(1)
    served.lose_logs()
    with pytest.raises(UnknownSampler, match="no snapshot and no batch"):
        served.known()
