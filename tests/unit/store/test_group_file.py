"""Groups are read one by one, and are those of their digests or refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.columns import assert_same, columns
from harness.examples import examples
from harness.failing_blobs import PassingBlobs
from harness.rollouts import make_columns, make_entry, members
from harness.sealed_files import provenance
from rollstream.schemas.columns import Columns
from rollstream.schemas.digest import checksum, row_digests
from rollstream.schemas.fields import row_fields
from rollstream.store import (
    BlobMissing,
    Blobs,
    CorruptFile,
    FileGroup,
    LocalBlobs,
    MemoryBlobs,
    encode_rows,
)
from rollstream.store.file_rows import FileRows, StoredGroup
from rollstream.store.group_file import GroupFile

PATH = "groups/environment=math/policy_version=step-0/segment=0/7-a.parquet"
COMPRESSIONS = ("none", "lz4", "zstd")
ALL = list(row_fields())


def written(
    blobs: Blobs, rows: Columns, starts: Sequence[int], compression: str = "none"
) -> list[StoredGroup]:
    """The groups of a file, of which each of ``starts`` begins one."""
    bounds = list(pairwise([*starts, rows.rows]))
    digests = row_digests(rows, starts)
    stored = [
        StoredGroup(start, stop - start, digest)
        for (start, stop), digest in zip(bounds, digests, strict=True)
    ]
    groups = [FileGroup(group.rows, group.digest) for group in stored]
    data = encode_rows(rows, provenance(rows.rows), groups=groups, compression=compression)
    blobs.replace(PATH, data)
    return stored


def opened(blobs: Blobs) -> GroupFile:
    found = blobs.info(PATH)
    assert found is not None
    return GroupFile(blobs, PATH, found.size)


def read_whole(blobs: Blobs, file: GroupFile, token_arrays: Sequence[str] = ()) -> FileRows | None:
    """All of a file that is as it was sealed."""
    return file.read_whole(checksum(blobs.read(PATH)), ALL, token_arrays)


class CountingBlobs(PassingBlobs):
    """Counts the bytes that are read by range."""

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self.count = 0

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        self.count += sum(stop - start for start, stop in spans)
        return super().read_ranges(path, spans)


@pytest.mark.proves("F10", "F15")
@given(columns(), st.data(), st.sampled_from(COMPRESSIONS))
@settings(max_examples=examples(120))
def test_any_groups_of_a_file_are_the_rows_that_were_sealed(
    drawn: Columns, data: st.DataObject, compression: str
) -> None:
    starts = data.draw(st.sets(st.integers(0, drawn.rows - 1)))
    blobs = MemoryBlobs()
    groups = written(blobs, drawn, sorted(starts | {0}), compression)
    wanted = data.draw(st.lists(st.sampled_from(groups), min_size=1, unique=True))
    file = opened(blobs)
    whole = read_whole(blobs, file, list(drawn.token_arrays))
    assert (whole is None) == (compression != "none"), "each group of a compressed file is alone"
    reads = [
        (asked, file.read(asked, ALL, list(drawn.token_arrays)))
        for asked in (sorted(wanted), groups)
    ]
    if whole is not None:
        reads.append((wanted, whole.groups(wanted)))
    for asked, read in reads:
        for group, (shared, start) in zip(asked, read, strict=True):
            found = shared.part(start, start + group.rows)
            assert_same(found, drawn.part(group.row_start, group.row_start + group.rows))
            assert row_digests(found, [0]) == [group.digest]


@given(st.data(), st.sampled_from(COMPRESSIONS))
@settings(max_examples=examples(300))
def test_damage_is_refused_or_changes_no_row(data: st.DataObject, compression: str) -> None:
    array = {"experts": np.ones((3, 2), np.uint8)}
    rare = make_entry(rewards={"é": 0.5}, loss_mask=[True, False, True], token_arrays=array)
    drawn = make_columns([rare, *members(3, token_arrays=array)])
    blobs = MemoryBlobs()
    groups = written(blobs, drawn, [0, 2], compression)
    raw = bytearray(blobs.read(PATH))
    places = st.integers(0, len(raw) - 1)
    for place, bits in data.draw(
        st.dictionaries(places, st.integers(1, 255), min_size=1, max_size=3)
    ).items():
        raw[place] ^= bits
    blobs.replace(PATH, bytes(raw))
    with suppress(CorruptFile):
        file = opened(blobs)
        for group in groups:
            with suppress(CorruptFile):
                ((found, _),) = file.read([group], ALL, ["experts"])
                assert_same(found, drawn.part(group.row_start, group.row_start + group.rows))


def test_a_damaged_group_leaves_the_others_readable() -> None:
    drawn = make_columns(members(6))
    blobs = MemoryBlobs()
    groups = written(blobs, drawn, [0, 2, 4])
    raw, sealed = blobs.read(PATH), checksum(blobs.read(PATH))
    values = drawn.arrays["logprobs"].values
    at = raw.index(values.tobytes()) + values[:7].nbytes
    blobs.replace(PATH, raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    file = opened(blobs)
    with pytest.raises(CorruptFile, match="logprobs of the rows from 2 on"):
        file.read(groups, ALL, [])
    assert file.read_whole(sealed, ALL, []) is None
    for group in (groups[0], groups[2]):
        ((found, _),) = file.read([group], ALL, [])
        assert_same(found, drawn.part(group.row_start, group.row_start + 2))
    blobs.replace(PATH, raw)
    whole = file.read_whole(sealed, ALL, [])
    assert whole is not None
    ((found, start),) = whole.groups([groups[1]])
    assert_same(found.part(start, start + 2), drawn.part(2, 4))


def test_another_file_in_its_place_is_refused() -> None:
    blobs = MemoryBlobs()
    groups = written(blobs, make_columns(members(4)), [0, 2])
    written(blobs, make_columns(members(4, reward=0.25)), [0, 2])
    with pytest.raises(CorruptFile, match="not what was sealed"):
        opened(blobs).read(groups[:1], ALL, [])
    written(blobs, make_columns(members(4)), [0, 1])
    with pytest.raises(CorruptFile, match="no group of 2 rows from row 0"):
        opened(blobs).read(groups[:1], ALL, [])
    whole = read_whole(blobs, opened(blobs))
    assert whole is not None
    with pytest.raises(CorruptFile, match="no group of 2 rows from row 0"):
        whole.groups(groups[:1])


def test_a_file_that_ends_too_early_or_is_gone_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    rows = members(64, output_tokens=range(400), logprobs=[-0.5] * 400)
    groups = written(blobs, make_columns(rows), range(0, 64, 8))
    file = opened(blobs)
    file.read(groups[:1], ["rollout_uid", "output_tokens"], [])
    with open(tmp_path / PATH, "r+b") as cut:
        cut.truncate(20_000)
    with pytest.raises(CorruptFile, match="ends before byte"):
        file.read(groups[-1:], ["rollout_uid", "output_tokens"], [])
    with pytest.raises(CorruptFile):
        opened(blobs).read(groups[:1], ALL, [])
    blobs.delete(PATH)
    with pytest.raises(BlobMissing):
        file.read(groups[:1], ["rollout_uid", "output_tokens"], [])


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_groups_of_a_file_that_another_tool_wrote_anew_are_compared_by_their_digests(
    compression: str,
) -> None:
    drawn = make_columns(members(4, rewards={"x": 1.0}))
    blobs = MemoryBlobs()
    groups = written(blobs, drawn, [0, 2])
    sink = pa.BufferOutputStream()
    pq.write_table(pq.read_table(pa.BufferReader(blobs.read(PATH))), sink, compression=compression)
    blobs.replace(PATH, sink.getvalue().to_pybytes())
    ((found, _),) = opened(blobs).read(groups[1:], ["output_tokens", "reward"], [])
    assert (set(found.arrays), set(found.scalars)) == ({"output_tokens"}, {"reward"})
    other = groups[1]._replace(digest=groups[0].digest)
    with pytest.raises(CorruptFile, match="rows from 2 on"):
        opened(blobs).read([other], ALL, [])


@pytest.mark.proves("A21")
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_group_costs_its_own_bytes_and_not_its_files(compression: str) -> None:
    tokens = np.random.default_rng(0).integers(0, 150_000, 64 * 500)
    rows = [make_entry(output_tokens=tokens[500 * i :][:500]) for i in range(64)]
    blobs = CountingBlobs(MemoryBlobs())
    groups = written(blobs, make_columns(rows), range(0, 64, 8), compression)
    file = opened(blobs)
    file.read(groups[:1], ["rollout_uid", "output_tokens"], [])
    for group in groups[1:]:
        blobs.count = 0
        file.read([group], ["rollout_uid", "output_tokens"], [])
        assert blobs.count <= 8 * 500 * 4 + 200, "its tokens and a page's header"


@pytest.mark.proves("F18")
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_columns_of_all_rows_cost_their_own_bytes_and_damage_in_them_is_refused(
    compression: str,
) -> None:
    tokens = np.arange(500)
    rows = make_columns(
        [make_entry(rollout_uid=f"u-{i}", reward=i / 4, output_tokens=tokens) for i in range(64)]
    )
    blobs = CountingBlobs(MemoryBlobs())
    written(blobs, rows, range(0, 64, 8), compression)
    file = opened(blobs)
    blobs.count = 0
    found = file.scalars(["reward", "environment", "rollout_uid"])
    assert blobs.count <= 64 * (8 + 4 + len("u-10")) + 200, "these columns and their pages' headers"
    assert list(found["reward"]) == [i / 4 for i in range(64)]
    assert list(found["environment"]) == ["math"] * 64
    assert list(found["rollout_uid"]) == [f"u-{i}" for i in range(64)]
    if compression == "none":
        raw = blobs.read(PATH)
        blobs.replace(PATH, raw.replace(np.float64(7 / 4).tobytes(), np.float64(9).tobytes()))
        with pytest.raises(CorruptFile, match="not what was sealed"):
            opened(blobs).scalars(["reward"])
