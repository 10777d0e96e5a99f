"""Ranks that read their shares from the store themselves: the same bytes, the same errors."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from harness.groups import EVERY_COLUMN, GroupSpec, every_extra, routed_experts
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld, SecondClient, log_end, memory_world
from rollstream.sampler import (
    ArrayMissing,
    Batch,
    GroupsUnreadable,
    InvalidRequest,
    Sampler,
    SamplerApi,
)
from rollstream.sampler.rows.rank_reader import RankReader
from rollstream.schemas.events import Flushed
from rollstream.store import MemoryBlobs

WAIT_S = 30.0
RANKS = 2
ALL_COLUMNS: tuple[tuple[str, ...], ...] = ((), *((name,) for name in EVERY_COLUMN), EVERY_COLUMN)
pytestmark = pytest.mark.proves("I6")


def specs(count: int, first: int = 0, **fields: Any) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{first + i}", **fields) for i in range(count)]


def share(sampler: SamplerApi, rank: int, **how: Any) -> Batch:
    return sampler.next_batch(0, 2, timeout_s=WAIT_S, dp_rank=rank, dp_size=RANKS, **how)


def contents(batch: Batch) -> dict[str, Any]:
    """All that a batch is but how long it was waited for."""
    fields = {
        field.name: getattr(batch, field.name)
        for field in dataclasses.fields(batch)
        if field.name not in ("waited_s", "read_group", "token_arrays")
    }
    arrays = {name: array.tobytes() for name, array in batch.arrays().items()}
    kinds = {name: (array.dtype, array.shape) for name, array in batch.arrays().items()}
    return {
        **{name: value for name, value in fields.items() if name not in arrays},
        "reward_components": sorted(batch.reward_components),
        "arrays": arrays,
        "kinds": kinds,
    }


def lose(world: SamplerWorld, event: Flushed) -> None:
    world.store.delete(event.files[0].path)


def damage(world: SamplerWorld, event: Flushed) -> None:
    """Its size stays, so that only who reads it sees it."""
    path = event.files[0].path
    content = bytearray(world.store.read(path))
    content[content.index(b"rollstream.layout")] ^= 0xFF  # Its footer, so all its groups.
    world.store.delete(path)
    world.store.create(path, bytes(content))


def test_a_share_is_the_same_bytes_whoever_reads_it(world: SamplerWorld) -> None:
    components = {"rewards": {"length": 0.5}}
    world.writer("math").flush(*specs(1, extras=(every_extra(), components)))
    world.writer("code").flush(*specs(1, extras=(routed_experts(),)))
    sampler = world.open()
    sampler.resume(None)
    for rank in range(RANKS):
        for columns in ALL_COLUMNS:
            own = share(sampler, rank, columns=columns, payloads="rank")
            theirs = share(sampler, rank, columns=columns)
            assert contents(own) == contents(theirs)
    assert own.records(0)[0].rollout_uid in own.uids
    with pytest.raises(ArrayMissing, match="'weigths'"):
        share(sampler, 0, columns=("weigths",), payloads="rank").token_arrays["weigths"]
    with pytest.raises(InvalidRequest, match="payloads 'ranks' is unknown"):
        share(sampler, 0, payloads="ranks")


@WITHOUT_RAY
def test_the_sampler_reads_nothing_of_what_ranks_read(world: SamplerWorld) -> None:
    world.writer().flush(*specs(2))
    sampler = world.open()
    for rank in range(RANKS):
        assert share(sampler, rank, payloads="rank").num_groups == 1
    assert sampler.stats().cached_bytes == 0
    share(sampler, 0)
    assert sampler.stats().cached_bytes > 0


@WITHOUT_RAY
def test_a_missing_file_gives_way_before_a_share_is_handed_out(world: SamplerWorld) -> None:
    writer = world.writer()
    lose(world, writer.flush(*specs(1)))
    writer.flush(*specs(1, first=1))
    writer.flush(*specs(1, first=2))
    shares = [share(world.open(), rank, payloads="rank") for rank in range(RANKS)]
    assert {batch.batch_id[-3:] for batch in shares} == {"-r1"}
    assert {uid for batch in shares for uid in batch.example_ids} == {"ex-1", "ex-2"}


def test_what_one_rank_finds_damaged_every_rank_is_told_from_then_on(world: SamplerWorld) -> None:
    writer = world.writer()
    files = [writer.flush(*specs(1, first=i)) for i in range(RANKS)]
    sampler = world.open()
    sampler.resume(None)
    first = share(sampler, 0, payloads="rank")
    lost = first.sampled.group_ids[1]
    damage(world, next(event for event in files if event.groups[0].group_id == lost))
    written = log_end(world)
    told = []
    for rank in (1, 0, 1):
        for payloads in ("rank", "sampler"):
            with pytest.raises(GroupsUnreadable, match=rf"groups 1 \({lost}\)") as raised:
                share(sampler, rank, payloads=payloads)
            told.append(str(raised.value))
    assert len(set(told)) == 1
    assert log_end(world) == written
    writer.flush(*specs(1, first=7))
    sampler.replace(0, [1], "its file is lost", timeout_s=WAIT_S)
    assert contents(share(sampler, 1, payloads="rank")) == contents(share(sampler, 1))


def test_what_a_rank_cannot_read_where_it_runs_the_sampler_reads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = memory_world()
    world.writer().flush(*specs(2))
    sampler = world.open()
    assert isinstance(sampler, Sampler)
    elsewhere = SecondClient(sampler, RankReader(MemoryBlobs(), 0))
    with caplog.at_level(logging.WARNING):
        own = share(elsewhere, 1, payloads="rank")
    assert contents(own) == contents(share(sampler, 1))
    assert "rank 1 of 2 cannot read its share of step 0 here" in caplog.text
    world.close()
