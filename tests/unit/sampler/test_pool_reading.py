"""A fetch from a pool reads each group's rows once; and how many groups a pool keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from harness.failing_blobs import PassingBlobs
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of, new_name
from rollstream.sampler import InvalidRequest, TrajectoryPool
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.memory import MemoryBroker, MemoryLogs

WAIT_S = 30.0
GROUPS = 4


class CountingBlobs(PassingBlobs):
    """Counts how often files of rows are read from."""

    def __init__(self) -> None:
        super().__init__(MemoryBlobs())
        self.reads = 0

    def read(self, path: str) -> bytes:
        self.reads += path.endswith(".parquet")
        return super().read(path)

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        self.reads += path.endswith(".parquet")
        return super().read_ranges(path, spans)


@pytest.fixture
def blobs() -> CountingBlobs:
    return CountingBlobs()


@pytest.fixture
def world(blobs: CountingBlobs) -> Iterator[LocalWorld]:
    made = LocalWorld(MemoryBroker(MemoryLogs()), blobs, config_of("file:///unused", new_name()))
    made.configure(order="ready", max_policy_lag=-1, off_branch="keep")
    yield made
    made.close()


def test_groups_of_one_file_are_fetched_with_one_reading_of_it(
    world: LocalWorld, blobs: CountingBlobs
) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"p{n}") for n in range(GROUPS)))
    pool = TrajectoryPool(world.open())
    first = pool.fetch_batch(timeout_s=WAIT_S)
    assert first is not None
    of_first = blobs.reads
    others = [pool.fetch_batch(timeout_s=WAIT_S) for _ in range(GROUPS - 1)]
    assert blobs.reads == of_first
    found = [first, *(one for one in others if one is not None)]
    assert len({one.prompt_uid for one in found}) == GROUPS
    for one in found:
        assert one.prompt_uid == one.batch.records(0)[0].group_uid


def test_a_pool_without_a_size_of_its_own_keeps_all_that_the_sampler_keeps(
    world: LocalWorld,
) -> None:
    world.writer().flush(*(GroupSpec(example_id=name) for name in "abcd"))
    pool = TrajectoryPool(world.open(), max_queue_size=None)
    found = [pool.fetch_batch(timeout_s=WAIT_S) for _ in range(4)]
    assert [one.batch.example_ids[0] for one in found if one is not None] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("size", [0, -1, 2.0, "2", True])
def test_a_pool_of_no_size_is_refused(world: LocalWorld, size: Any) -> None:
    with pytest.raises(InvalidRequest, match="max_queue_size is "):
        TrajectoryPool(world.open(), max_queue_size=size)
