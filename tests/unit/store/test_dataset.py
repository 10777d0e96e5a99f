"""Rows to Parquet and back: nothing changes, and other readers see lists."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.rollouts import make_segment, members, token_array
from harness.sealed_files import provenance, seal
from harness.strategies import segments
from rollstream.schemas.columns import Columns
from rollstream.schemas.digest import checksum, row_digests
from rollstream.store import (
    BlobMissing,
    Blobs,
    CorruptFile,
    LocalBlobs,
    MemoryBlobs,
    encode_rows,
    open_dataset,
    read_rows,
)

PATH = "groups/environment=math/policy_version=step-0/segment=0/7-a.parquet"
COMPRESSIONS = ("none", "lz4", "zstd")


def written(columns: Columns, blobs: Blobs | None = None, compression: str = "none") -> Blobs:
    blobs = blobs or MemoryBlobs()
    data = encode_rows(columns, provenance(columns.rows), compression=compression)
    blobs.replace(PATH, data)
    return blobs


def assert_same(found: Columns, expected: Columns) -> None:
    assert found.rows == expected.rows
    assert {k: list(v) for k, v in found.scalars.items()} == {
        k: list(v) for k, v in expected.scalars.items()
    }
    assert set(found.arrays) == set(expected.arrays)
    for name, ragged in expected.arrays.items():
        for row in range(expected.rows):
            ours, theirs = found.arrays[name].row(row), ragged.row(row)
            assert (ours is None) == (theirs is None), (name, row)
            if ours is not None and theirs is not None:
                assert ours.dtype == theirs.dtype
                assert ours.tobytes() == theirs.tobytes()
        assert found.arrays[name].offsets[0] == 0
        assert found.arrays[name].offsets[-1] == len(found.arrays[name].values)


rollouts = st.lists(segments(environment="math"), min_size=1, max_size=6)


@pytest.mark.proves("F10", "F15")
@given(rollouts, st.sampled_from(COMPRESSIONS))
@settings(max_examples=40)
def test_rows_come_back_exactly_and_keep_their_digests(drawn: list[Any], compression: str) -> None:
    columns = Columns.from_segments(drawn)
    found = read_rows(written(columns, compression=compression), PATH)
    assert_same(found, columns)
    starts = list(range(columns.rows))
    assert row_digests(found, starts) == row_digests(columns, starts)


@given(rollouts, st.data())
@settings(max_examples=40)
def test_ranges_give_the_wanted_rows_in_the_wanted_order(
    drawn: list[Any], data: st.DataObject
) -> None:
    columns = Columns.from_segments(drawn)
    firsts = data.draw(st.lists(st.integers(0, columns.rows - 1), max_size=4))
    ranges = [(first, data.draw(st.integers(0, columns.rows - first))) for first in firsts]
    found = read_rows(written(columns), PATH, ranges=ranges)
    rows = [row for first, count in ranges for row in range(first, first + count)]
    assert_same(found, Columns.from_segments([drawn[row] for row in rows]))


@given(rollouts)
@settings(max_examples=10)
def test_equal_rows_give_equal_bytes(drawn: list[Any]) -> None:
    columns = Columns.from_segments(drawn)
    once, again = (encode_rows(columns, provenance(columns.rows)) for _ in range(2))
    assert once == again


def test_only_the_requested_fields_are_read() -> None:
    blobs = written(Columns.from_segments(members(3)))
    found = read_rows(blobs, PATH, fields=["reward", "environment", "logprobs", "loss_mask"])
    assert found.scalars == {"reward": [0.0, 1.0, 0.0], "environment": ["math"] * 3}
    assert list(found.arrays) == ["logprobs"]


def test_rows_of_a_local_file_outlive_its_deletion(tmp_path: Path) -> None:
    columns = Columns.from_segments(members(3))
    blobs = written(columns, LocalBlobs(tmp_path))
    found = read_rows(blobs, PATH)
    blobs.delete(PATH)
    assert_same(found, columns)


def test_ranges_of_a_local_file_are_views_of_it(tmp_path: Path) -> None:
    drawn = [
        make_segment(rollout_uid=f"u{i}", output_tokens=range(i), loss_mask=[i % 2 == 0] * i)
        for i in range(20)
    ]
    blobs = written(Columns.from_segments(drawn), LocalBlobs(tmp_path))
    for ranges in ([(3, 4)], [(19, 1), (0, 2), (5, 0)], [(0, 20)]):
        rows = [row for first, count in ranges for row in range(first, first + count)]
        expected = Columns.from_segments([drawn[row] for row in rows])
        assert_same(read_rows(blobs, PATH, ranges=ranges), expected)
    part = read_rows(blobs, PATH, ranges=[(3, 4)], fields=["output_tokens"])
    assert not part.arrays["output_tokens"].values.flags.owndata


@pytest.mark.parametrize("byte", [0, 2, 3])
def test_array_whose_page_is_not_the_one_in_the_footer_is_corrupt(byte: int) -> None:
    blobs = written(Columns.from_segments(members(3)))
    data = bytearray(blobs.read(PATH))
    group = pq.read_metadata(pa.BufferReader(bytes(data))).row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    (chunk,) = (c for c in chunks if c.path_in_schema.startswith("output_tokens"))
    data[chunk.data_page_offset + byte] ^= 0x7F  # Its type, or its size.
    blobs.replace(PATH, bytes(data))
    with pytest.raises(CorruptFile, match="no plain page"):
        read_rows(blobs, PATH, fields=["output_tokens"])


@given(st.data())
@settings(max_examples=300)
def test_damage_is_refused_or_changes_a_digest_or_changes_no_row(data: st.DataObject) -> None:
    columns = Columns.from_segments([make_segment(rewards={"é": 0.5}), *members(2)])
    blobs = written(columns)
    raw = bytearray(blobs.read(PATH))
    places = st.integers(0, len(raw) - 1)
    flips = data.draw(st.dictionaries(places, st.integers(1, 255), min_size=1, max_size=3))
    for place, bits in flips.items():
        raw[place] ^= bits
    blobs.replace(PATH, bytes(raw))
    with suppress(CorruptFile):
        found = read_rows(blobs, PATH)
        if row_digests(found, range(found.rows)) == row_digests(columns, range(columns.rows)):
            assert_same(found, columns)
    with pytest.raises(CorruptFile, match="checksum"):
        read_rows(blobs, PATH, checksum=checksum(encode_rows(columns, provenance(3))))


def rewritten(columns: Columns, **options: Any) -> tuple[Blobs, str]:
    """The file as pyarrow writes it anew, and the checksum that it had before."""
    blobs = written(columns)
    before = blobs.read(PATH)
    sink = pa.BufferOutputStream()
    pq.write_table(pq.read_table(pa.BufferReader(before)), sink, **options)
    blobs.replace(PATH, sink.getvalue().to_pybytes())
    return blobs, checksum(before)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_file_that_another_tool_rewrote_with_dictionaries_or_compressed_is_refused(
    compression: str,
) -> None:
    blobs, _ = rewritten(Columns.from_segments(members(3)), compression=compression)
    with pytest.raises(CorruptFile, match="no plain page"):
        read_rows(blobs, PATH)


def test_file_that_another_tool_rewrote_with_plain_pages_has_the_same_rows() -> None:
    columns = Columns.from_segments(members(3))
    blobs, before = rewritten(
        columns, compression="none", use_dictionary=False, write_statistics=False
    )
    assert_same(read_rows(blobs, PATH), columns)
    with pytest.raises(CorruptFile, match="checksum"):
        read_rows(blobs, PATH, checksum=before)


def test_column_of_another_type_is_corrupt() -> None:
    blobs = written(Columns.from_segments(members(3)))
    table = pq.read_table(pa.BufferReader(blobs.read(PATH)))
    index = table.schema.get_field_index("worker_id")
    table = table.set_column(index, "worker_id", table.column(index).cast(pa.binary()))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    blobs.replace(PATH, sink.getvalue().to_pybytes())
    with pytest.raises(CorruptFile, match="worker_id is binary instead of string"):
        read_rows(blobs, PATH, fields=["worker_id"])


def test_large_rows_come_back(tmp_path: Path) -> None:
    tokens = np.arange(200_000, dtype=np.int32)
    columns = Columns.from_segments(
        [make_segment(rollout_uid=f"u{i}", output_tokens=tokens[: 50_000 * i]) for i in range(5)]
    )
    assert_same(read_rows(written(columns, LocalBlobs(tmp_path)), PATH), columns)


def test_file_that_is_cut_short_is_corrupt() -> None:
    blobs = written(Columns.from_segments(members(3)))
    data = blobs.read(PATH)
    for size in (0, 3, len(data) // 2, len(data) - 1):
        blobs.replace(PATH, data[:size])
        with pytest.raises(CorruptFile, match="is no Parquet file"):
            read_rows(blobs, PATH)


def test_parquet_of_somebody_else_is_corrupt() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1]}), sink)
    blobs = MemoryBlobs()
    blobs.create(PATH, sink.getvalue().to_pybytes())
    with pytest.raises(CorruptFile, match="a sealer did not write it"):
        read_rows(blobs, PATH)


def test_rows_beyond_the_file_are_corrupt() -> None:
    blobs = written(Columns.from_segments(members(3)))
    with pytest.raises(CorruptFile, match="has 3 rows, not 2 from 2 on"):
        read_rows(blobs, PATH, ranges=[(2, 2)])


def test_missing_file_is_typed(tmp_path: Path) -> None:
    for blobs in (MemoryBlobs(), LocalBlobs(tmp_path)):
        with pytest.raises(BlobMissing):
            read_rows(blobs, PATH)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two environments and policy versions; one row with everything that is rare."""
    blobs = LocalBlobs(tmp_path)
    for environment, version in (("math", "step-0"), ("code/2", "step 1%")):
        seal(blobs, members(4, environment=environment, policy_version=version), name="a")
    rare = make_segment(
        environment="math",
        policy_version="step-2",
        reward=None,
        rewards={"format": 0.5},
        loss_mask=[True, False, True],
        ref_logprobs=[-1.0, -2.0, -3.0],
        token_arrays=[token_array("experts", np.ones((3, 2), np.uint8))],
        attachments=[{"name": "image", "data": b"png"}],
        messages='[{"role": "user"}]',
    )
    seal(blobs, [rare], name="b", offset=10)
    # No manifest names this one: its flush ended before its event.
    orphan = encode_rows(Columns.from_segments(members(4)), provenance(4))
    blobs.create(PATH.replace("7-a", "8-orphan"), orphan)
    return tmp_path


@pytest.mark.proves("F10")
def test_duckdb_reads_partitions_and_lists(root: Path) -> None:
    rows = duckdb.sql(
        "SELECT environment, policy_version, count(*), avg(reward), sum(len(output_tokens)) "
        f"FROM read_parquet('{root}/groups/**/*.parquet', hive_partitioning=true) "
        "WHERE filename NOT LIKE '%orphan%' GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    assert rows == [
        ("code/2", "step 1%", 4, 0.5, 12),
        ("math", "step-0", 4, 0.5, 12),
        ("math", "step-2", 1, None, 3),
    ]
    row = duckdb.sql(
        "SELECT rollout_policy_version, segment, output_tokens, logprobs, loss_mask, "
        "ref_logprobs, rewards, attachments, group_id, log_offset "
        f"FROM read_parquet('{root}/groups/**/7-b.parquet')"
    ).fetchone()
    assert row is not None
    assert row[:7] == (
        "step-2",
        0,
        [21, 22, 23],
        [-0.5, -0.5, -0.5],
        [True, False, True],
        [-1.0, -2.0, -3.0],
        {"format": 0.5},
    )
    assert row[7:] == ([{"name": "image", "data": b"png"}], "group-0", 0)


@pytest.mark.proves("F10", "A10")
def test_open_dataset_has_the_files_that_manifests_name_and_no_others(root: Path) -> None:
    table = open_dataset(root).to_table(
        columns=["environment", "policy_version", "segment", "reward", "output_tokens"]
    )
    counts = table.group_by(["environment", "policy_version"]).aggregate([("reward", "mean")])
    assert sorted(counts.to_pylist(), key=str) == [
        {"environment": "code/2", "policy_version": "step 1%", "reward_mean": 0.5},
        {"environment": "math", "policy_version": "step-0", "reward_mean": 0.5},
        {"environment": "math", "policy_version": "step-2", "reward_mean": None},
    ]
    assert table.num_rows == 9
    assert table.schema.field("output_tokens").type.value_type == pa.int32()
    assert open_dataset(f"file://{root}").count_rows() == 9


@pytest.mark.parametrize("name", ["a+b", "ä/ö", "a=b", "x%2Fy", "007", "a b,c@d"])
def test_names_come_back_from_paths_as_they_were(tmp_path: Path, name: str) -> None:
    rows = members(1, environment=f"e{name}", policy_version=f"v{name}")
    seal(LocalBlobs(tmp_path), rows)
    columns = ["environment", "policy_version"]
    expected = (f"e{name}", f"v{name}")
    found = open_dataset(tmp_path).to_table(columns=columns).to_pylist()
    assert [tuple(row.values()) for row in found] == [expected]
    query = (
        f"SELECT environment, policy_version FROM read_parquet('{tmp_path}/groups/**/*.parquet')"
    )
    assert duckdb.sql(query).fetchall() == [expected]


def test_open_dataset_of_an_empty_store_has_columns_and_no_rows(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path)
    assert dataset.count_rows() == 0
    assert {"environment", "policy_version", "segment", "output_tokens"} <= set(
        dataset.schema.names
    )


def test_open_dataset_of_a_missing_root_is_typed(tmp_path: Path) -> None:
    root = tmp_path / "mistyped"
    for name in (root, root.as_uri()):
        with pytest.raises(BlobMissing, match=r"mistyped.* nothing was ever written"):
            open_dataset(name)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_one_file_alone_opens_with_pyarrow(tmp_path: Path, compression: str) -> None:
    columns = Columns.from_segments(members(3))
    blobs = LocalBlobs(tmp_path)
    written(columns, blobs, compression)
    table = pq.ParquetFile(tmp_path / PATH).read()
    assert table.column("output_tokens").to_pylist() == [[21, 22, 23]] * 3
    assert str(table.schema.field("created_ts").type) == "timestamp[us, tz=UTC]"
    assert table.column("log_offset").to_pylist() == [0, 1, 2]
    assert not table.schema.field("output_tokens").nullable
