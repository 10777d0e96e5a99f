"""The cache of payloads: its bound, and that it never believes a file it has not checked."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.batches import batch_event
from harness.failing_blobs import PassingBlobs
from harness.groups import GroupSpec, every_extra, flush_of, routed_experts
from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known import KnownGroup, known_groups
from rollstream.sampler.batch.decided import Decided
from rollstream.sampler.batch.joining import GroupRows
from rollstream.sampler.errors import BatchUnsettled, GroupsUnreadable
from rollstream.sampler.rows.handed_out import HandedOut
from rollstream.sampler.rows.payloads import Payloads
from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.fields import REQUIRED_ARRAYS
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import BlobMissing, Blobs, CorruptFile, LocalBlobs, MemoryBlobs

LOG = PartitionAddress("math", 1, 0)


@pytest.fixture(params=["memory", "disk"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return MemoryBlobs() if request.param == "memory" else LocalBlobs(tmp_path)


class CountingBlobs(PassingBlobs):
    """Counts reads by range."""

    reads = 0

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        self.reads += 1
        return super().read_ranges(path, spans)


def sealed(
    blobs: Blobs, name: str, *, output: int = 64, offset: int = 0, **fields: Any
) -> list[KnownGroup]:
    specs = [GroupSpec(example_id=f"ex-{i}", output=output, **fields) for i in range(4)]
    return known_groups(LOG, offset, flush_of(specs, name=name, blobs=blobs))


def test_rows_are_those_of_the_group(blobs: Blobs) -> None:
    groups = sealed(blobs, "a")
    part = Payloads(blobs, 1 << 20).parts(0, [(7, groups[2])])[0]
    assert (part.slot, part.span) == (7, (0, 2))
    assert set(REQUIRED_ARRAYS) <= set(part.columns.arrays)
    uids = Payloads(blobs, 0).all_fields(groups[2]).scalars["rollout_uid"]
    assert list(part.columns.scalars["rollout_uid"]) == list(uids) == ["a-g2-0", "a-g2-1"]


@pytest.mark.proves("I8", "A21")
def test_a_group_is_read_once_while_there_is_room_and_never_held_beyond_it(blobs: Blobs) -> None:
    groups = sealed(blobs, "a")
    one = Payloads(blobs, 1 << 30)
    one.parts(0, [(0, groups[0])])
    size = one.cached_bytes
    cache = Payloads(blobs, int(2.5 * size))
    for number, group in enumerate(groups):
        cache.parts(0, [(number, group)])
        assert cache.cached_bytes <= 2.5 * size
    assert cache.groups_read == 4
    cache.parts(0, [(0, groups[3]), (1, groups[2])])
    assert cache.groups_read == 4, "the two newest are held"
    cache.parts(0, [(0, groups[0])])
    assert cache.groups_read == 5, "the oldest made room"


def test_a_batch_leaves_when_another_step_is_asked_for(blobs: Blobs) -> None:
    first, second = sealed(blobs, "a"), sealed(blobs, "b", offset=1)
    cache = Payloads(blobs, 1 << 30)
    cache.parts(0, list(enumerate(first[:3])))
    held = cache.cached_bytes
    for _ in range(3):  # Ranks that share a model ask for the same groups.
        cache.parts(1, [(0, first[3]), (1, second[0])])
    assert cache.groups_read == 5, "nothing of the step was read again"
    assert 0 < cache.cached_bytes < held
    part = cache.parts(0, [(0, first[1])])[0]
    assert cache.groups_read == 6
    assert part.columns.arrays["output_tokens"].row(0) is not None


def test_a_batch_larger_than_the_cache_reads_each_group_once(blobs: Blobs) -> None:
    cache = Payloads(blobs, 0)
    groups = sealed(blobs, "a")
    cache.parts(0, list(enumerate(groups)))
    assert (cache.groups_read, cache.cached_bytes) == (4, 0)


def test_only_the_columns_that_are_asked_for_are_read_and_each_set_of_them_is_held(
    blobs: Blobs,
) -> None:
    groups = sealed(blobs, "a", extras=(every_extra(64),))
    asked = [(0, groups[0])]
    cache = Payloads(blobs, 1 << 30)
    plain = cache.parts(0, asked)[0].columns
    assert (set(plain.arrays), plain.token_arrays) == ({*REQUIRED_ARRAYS, "logprobs"}, {})
    size = cache.cached_bytes
    wide = cache.parts(0, asked, ["routed_experts", "metadata"])[0].columns
    assert (cache.groups_read, list(wide.token_arrays)) == (2, ["routed_experts"])
    assert set(plain.arrays) == set(wide.arrays)
    assert wide.rewards is not None
    rows = 2
    of_metadata = sum(len(text) for text in wide.scalars["metadata"])
    assert cache.cached_bytes >= 2 * size + wide.token_arrays["routed_experts"].values.nbytes
    assert cache.cached_bytes >= 2 * size + 64 * 2 + of_metadata
    assert len(wide.scalars["metadata"]) == rows
    for columns in ([], ["metadata", "routed_experts"], ["routed_experts", "metadata"]):
        cache.parts(0, asked, columns)
    assert cache.groups_read == 2
    both = cache.parts(0, asked, ["ref_logprobs", "other"])[0].columns
    assert {"ref_logprobs", *plain.arrays} == set(both.arrays)
    cache.parts(0, asked, ["ref_logprobs", "other"])
    assert cache.groups_read == 3, "that a file has no such array is remembered"
    for name in plain.arrays:
        assert np.array_equal(plain.arrays[name].values, both.arrays[name].values)


def test_columns_beyond_the_bound_are_not_held_and_nothing_makes_room_for_them(
    blobs: Blobs,
) -> None:
    groups = sealed(blobs, "a", extras=(every_extra(64),) * 2)
    cache = Payloads(blobs, 1 << 30)
    cache.parts(0, [(0, groups[0])])
    held = cache.cached_bytes
    tight = Payloads(blobs, held + 100)
    tight.parts(0, [(0, groups[0])])
    part = tight.parts(0, [(0, groups[0])], ["routed_experts"])[0]
    assert "routed_experts" in part.columns.token_arrays
    assert tight.cached_bytes == held
    tight.parts(0, [(0, groups[0])])
    assert (tight.cached_bytes, tight.groups_read) == (held, 2)


def test_a_group_whose_file_is_gone_is_still_served_from_the_cache(blobs: Blobs) -> None:
    groups = sealed(blobs, "a", extras=(every_extra(64),))
    cache = Payloads(blobs, 1 << 30)
    cache.parts(0, [(0, groups[0])])
    held = cache.cached_bytes
    blobs.delete(groups[0].file.path)
    with pytest.raises(BlobMissing):
        cache.parts(0, [(0, groups[0])], ["metadata"])
    assert cache.cached_bytes == held
    assert cache.parts(0, [(0, groups[0])])[0].columns.rows == 2


def test_token_arrays_of_a_file_are_known_without_its_rows(blobs: Blobs) -> None:
    with_array = sealed(blobs, "a", extras=({}, routed_experts(64)))
    without = sealed(blobs, "b")
    cache = Payloads(blobs, 1 << 20)
    assert cache.token_arrays(with_array[0].file.path) == {
        "routed_experts": ArraySignature("|u1", (2,))
    }
    assert cache.token_arrays(without[0].file.path) == {}
    assert (cache.groups_read, cache.cached_bytes) == (0, 0)
    with pytest.raises(BlobMissing):
        cache.token_arrays("groups/none.parquet")


def test_a_file_that_is_not_what_its_event_names_is_refused(blobs: Blobs) -> None:
    groups = sealed(blobs, "a")
    other = sealed(blobs, "b")
    blobs.replace(groups[0].file.path, blobs.read(other[0].file.path))
    with pytest.raises(CorruptFile, match="is not what was sealed"):
        Payloads(blobs, 1 << 20).parts(0, [(0, groups[0])])
    with pytest.raises(CorruptFile, match="rows from 0 on is not what was sealed"):
        Payloads(blobs, 1 << 20).all_fields(groups[0])
    blobs.delete(groups[0].file.path)
    with pytest.raises(BlobMissing):
        Payloads(blobs, 1 << 20).parts(0, [(0, groups[0])])


def batch_of(step: int) -> Decided:
    return Decided.of(ServedBatch.of(batch_event(step), 0))


def batch(
    cache: Payloads,
    step: int,
    groups: Sequence[KnownGroup],
    ready: int | None = None,
    columns: Sequence[str] = (),
) -> list[GroupRows]:
    """Asks for the batch of a step."""
    return cache.parts_of_batch(batch_of(step), groups, range(len(groups)), columns, ready)


@pytest.mark.proves("A21")
def test_what_was_read_ahead_is_there_when_it_is_asked_for_and_leaves_with_its_step(
    tmp_path: Path,
) -> None:
    groups = sealed(LocalBlobs(tmp_path), "a")
    cache = Payloads(LocalBlobs(tmp_path), 1 << 20)
    batch(cache, 0, groups[:1])
    ahead = cache.read_ahead(1, list(enumerate(groups[1:3])), ())
    assert ahead is not None
    assert [(part.slot, part.group) for part in ahead] == list(enumerate(groups[1:3]))
    batch(cache, 1, groups[1:2])
    assert cache.groups_read == 3, "it was there"
    batch(cache, 2, groups[3:])
    batch(cache, 3, groups[2:3])
    assert cache.groups_read == 5, "what step 1 did not have has left"
    assert cache.read_ahead(3, [(0, groups[3])], ()) is None, "the step was asked for"


def test_what_few_ready_groups_are_in_is_read_whole_and_held_until_all_were_served(
    blobs: Blobs,
) -> None:
    groups = sealed(blobs, "a")
    counting = CountingBlobs(blobs)
    cache = Payloads(counting, 1 << 20)
    batch(cache, 0, groups[:1], ready=3)
    held, reads = cache.cached_bytes, counting.reads
    for step, group in enumerate(groups[1:], start=1):
        (part,) = batch(cache, step, [group], ready=3 - step)
        own = Payloads(blobs, 0).all_fields(group).arrays["output_tokens"].values
        start, stop = part.columns.arrays["output_tokens"].offsets[list(part.span)]
        assert np.array_equal(part.columns.arrays["output_tokens"].values[start:stop], own)
    assert (counting.reads, cache.cached_bytes, cache.groups_read) == (reads, held, 4)
    batch(cache, 4, sealed(blobs, "b")[:1])
    assert cache.cached_bytes < held, "its last group was served at the step before"


@pytest.mark.parametrize(("ready", "room"), [(17, 1.0), (3, 0.3)])
def test_of_a_file_that_other_batches_do_not_soon_need_or_that_has_no_room_groups_are_read_alone(
    ready: int, room: float, blobs: Blobs
) -> None:
    groups = sealed(blobs, "a")
    whole = Payloads(blobs, 1 << 30)
    batch(whole, 0, groups[:1], ready=3)
    cache = Payloads(blobs, int(room * whole.cached_bytes))
    batch(cache, 0, groups[:1], ready=ready)
    assert 0 < cache.cached_bytes < whole.cached_bytes / 2


def test_a_damaged_group_of_a_file_that_was_read_whole_costs_no_other(blobs: Blobs) -> None:
    groups = sealed(blobs, "a", output=512)
    path = groups[0].file.path
    raw = blobs.read(path)
    values = Payloads(blobs, 0).all_fields(groups[2]).arrays["output_tokens"].values
    at = raw.index(values.tobytes())
    blobs.replace(path, raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    cache = Payloads(blobs, 1 << 20)
    batch(cache, 0, groups[:2], ready=2)
    with pytest.raises(GroupsUnreadable) as error:
        batch(cache, 1, groups[2:], ready=0)
    assert list(error.value.groups) == [0]
    blobs.replace(path, raw)
    batch(cache, 1, groups[2:], ready=0)


@pytest.mark.parametrize("cut", [True, False])
def test_what_was_read_whole_stays_what_it_was_when_its_file_is_damaged(
    cut: bool, tmp_path: Path
) -> None:
    blobs = LocalBlobs(tmp_path)
    groups = sealed(blobs, "a", output=4_096)
    own = [Payloads(blobs, 0).all_fields(group).arrays for group in groups]
    cache = Payloads(blobs, 1 << 24)
    batch(cache, 0, groups[:1], ready=3)
    with open(tmp_path / groups[0].file.path, "r+b") as file:
        if cut:
            file.truncate(0)
        else:
            file.write(bytes(groups[0].file.size))
    for step, group in enumerate(groups[1:], start=1):
        (part,) = batch(cache, step, [group], ready=3 - step)
        for name, found in part.columns.arrays.items():
            start, stop = found.offsets[list(part.span)]
            assert np.array_equal(found.values[start:stop], own[step][name].values)


@pytest.mark.proves("A21")
@pytest.mark.parametrize("columns", [(), ("routed_experts",)])
def test_what_is_held_of_files_read_whole_is_what_the_bound_counts(
    columns: Sequence[str], tmp_path: Path
) -> None:
    blobs = LocalBlobs(tmp_path)
    large = (routed_experts(2_000, 24),) * 2
    files = [sealed(blobs, name, output=2_000, extras=large) for name in "abcdef"]
    room = 3 * files[0][0].file.size
    batch(Payloads(blobs, room), 0, files[0][:1], ready=3, columns=columns)  # Schemas are kept.
    tracemalloc.start()
    cache = Payloads(blobs, room)
    for step, groups in enumerate(files):
        batch(cache, step, groups[:1], ready=3, columns=columns)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cache.groups_read == 4 * len(files), "they were read whole"
    assert held < 1.1 * cache.cached_bytes


def test_nothing_is_read_ahead_that_would_push_out_what_is_held(tmp_path: Path) -> None:
    groups = sealed(LocalBlobs(tmp_path), "a", output=512)
    one = Payloads(LocalBlobs(tmp_path), 1 << 20)
    batch(one, 0, groups[:1])
    cache = Payloads(LocalBlobs(tmp_path), one.cached_bytes + 1_000)
    batch(cache, 0, groups[:1])
    assert cache.read_ahead(1, [(0, groups[1])], ()) is None
    assert (cache.hold_beside(1_001), cache.hold_beside(1_000)) == (False, True)
    assert cache.groups_read == 1
    batch(cache, 0, groups[:1])
    assert cache.groups_read == 1
    cache.note_served([], 1_000)
    assert cache.cached_bytes == one.cached_bytes


def test_no_share_is_handed_out_of_a_batch_whose_groups_give_way_unless_they_stay() -> None:
    shares, batch = HandedOut(), batch_of(3)
    assert not shares.begin_replacing(3, batch.digest), "somebody may have it"
    shares.decide(3, batch.digest)
    assert shares.begin_replacing(3, batch.digest)
    with pytest.raises(BatchUnsettled, match="step 3 cannot be read"):
        shares.add(batch)
    shares.settle({3: b"another"})
    with pytest.raises(BatchUnsettled):
        shares.add(batch)
    shares.settle({3: batch.digest})
    shares.add(batch)
    assert not shares.begin_replacing(3, batch.digest), "it was handed out"


def test_threads_may_note_at_one_time_what_they_hand_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollstream.sampler.rows.handed_out.BATCHES_KEPT", 4)
    shares = HandedOut()

    def hand_out(first: int) -> None:
        for step in range(first, 40_000, 4):
            shares.add(batch_of(step))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(hand_out, range(4)))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.proves("D2")
@pytest.mark.parametrize("ready", [0, 1_000])
def test_what_a_step_carries_is_not_read_again(tmp_path: Path, ready: int) -> None:
    """However files were read; and what it does not carry is not held."""
    payloads = Payloads(store := LocalBlobs(tmp_path), 1 << 20)
    first, second = sealed(store, "a"), sealed(store, "b", offset=1)
    payloads.parts_of_batch(batch_of(0), first, range(4), (), ready)
    held, read = payloads.cached_bytes, payloads.groups_read
    parts = payloads.parts_of_batch(batch_of(1), [*second, first[3]], range(5), (), ready)
    assert payloads.groups_read == read + 4
    uids = parts[4].columns.scalars["rollout_uid"]
    assert list(uids[slice(*parts[4].span)]) == ["a-g3-0", "a-g3-1"]
    payloads.parts_of_batch(batch_of(2), [second[0]], range(1), (), ready)
    assert payloads.groups_read == read + 4
    assert payloads.cached_bytes <= held
