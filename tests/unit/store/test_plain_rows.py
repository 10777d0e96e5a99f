"""Row files hold the table that pyarrow would write, for any reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.arrow_tables import to_table
from harness.columns import columns
from harness.examples import examples
from harness.rollouts import make_columns, make_entry, members
from harness.sealed_files import provenance
from rollstream.schemas.columns import Columns
from rollstream.store import encode_rows
from rollstream.store.plain.encoding import plain
from rollstream.store.plain.file import CREATED_BY, Layout
from rollstream.store.plain.rows import FILTERED, plain_file

METADATA = {"rollstream.environment": "math", "empty": ""}


def sources(rows: int) -> dict[str, Any]:
    return {
        "group_id": [f"group-{row // 2}" for row in range(rows)],
        "log_generation": np.full(rows, 1, np.int32),
        "log_partition": np.full(rows, 3, np.int32),
        "log_offset": np.arange(rows),
        "log_entry": np.arange(rows, dtype=np.int32) % 7,
        "log_epoch": np.full(rows, -7),
    }


def both(columns: Columns, given: Mapping[str, Any], ours: bytes, compression: str) -> list[Any]:
    """Our file of the rows, and pyarrow's."""
    sink = pa.BufferOutputStream()
    table = to_table(columns, given)
    binaries = [f.name for f in table.schema if pa.types.is_binary(f.type)]
    pq.write_table(
        table,
        sink,
        use_dictionary=False,
        column_encoding=dict.fromkeys(binaries, "DELTA_LENGTH_BYTE_ARRAY"),
        write_statistics=list(FILTERED),
        compression=compression,
        store_schema=False,
    )
    return [pq.ParquetFile(pa.BufferReader(data)) for data in (ours, sink.getvalue())]


def stated(statistics: Any) -> Any:
    bounds = (statistics.min_raw, statistics.max_raw)
    return bounds, statistics.null_count, statistics.num_values


def assert_same_file(
    columns: Columns, given: Mapping[str, Any] | None = None, compression: str = "none"
) -> None:
    given = given or sources(columns.rows)
    data = bytes(plain_file(columns, given, METADATA, compression))
    ours, theirs = both(columns, given, data, compression)
    assert ours.schema.equals(theirs.schema)
    assert ours.read().equals(theirs.read())
    layout = Layout.of(memoryview(data))
    assert layout is not None
    assert layout.metadata == {k.encode(): v.encode() for k, v in METADATA.items()}
    assert layout.metadata.items() <= ours.metadata.metadata.items()
    assert layout.rows == columns.rows
    assert ours.metadata.created_by == CREATED_BY
    at, plain, ends = 4, 0, []
    for index in range(len(ours.schema)):
        mine, other = (f.metadata.row_group(0).column(index) for f in (ours, theirs))
        for fact in ("num_values", "is_stats_set", "physical_type"):
            assert getattr(mine, fact) == getattr(other, fact), (fact, mine.path_in_schema)
        assert set(mine.encodings) == set(other.encodings), mine.path_in_schema
        assert mine.compression == other.compression
        if mine.is_stats_set:
            assert stated(mine.statistics) == stated(other.statistics), mine.path_in_schema
        # Chunks follow one another.
        if compression == "none":
            assert mine.total_compressed_size == mine.total_uncompressed_size
        assert mine.data_page_offset == at
        at += mine.total_compressed_size
        ends.append(at)
        plain += mine.total_uncompressed_size
    assert ours.metadata.row_group(0).total_byte_size == plain
    assert layout.ends == ends


@pytest.mark.proves("F10")
@given(columns(), st.sampled_from(["none", "lz4", "zstd"]))
@settings(max_examples=examples(200))
def test_any_rows_are_the_table_that_pyarrow_writes(drawn: Columns, compression: str) -> None:
    assert_same_file(drawn, compression=compression)


@pytest.mark.parametrize("lengths", [[1], [0], [63, 64, 65], [8_191, 8_192, 0, 1_100_000, 2]])
def test_arrays_of_any_length_keep_their_rows(lengths: list[int]) -> None:
    drawn = [
        make_entry(output_tokens=range(n), logprobs=None if n == 64 else [-0.5] * n)
        for n in lengths
    ]
    assert_same_file(make_columns(drawn))


@pytest.mark.parametrize("rows", [1, 32, 33, 128, 129, 130, 400])
@pytest.mark.parametrize("step", [0, 1, 7])
def test_binaries_of_any_number_and_length_keep_their_rows(rows: int, step: int) -> None:
    drawn = []
    for row in range(rows):
        count = 5 + step * (row * row % 61)
        arrays = {"experts": np.full((count, 2), row % 251, np.uint8)}
        present = arrays if row % 3 or step != 7 else {}
        drawn.append(make_entry(output_tokens=range(count), token_arrays=present))
    assert_same_file(make_columns(drawn))


@given(st.lists(st.text("aé€", max_size=2)) | st.lists(st.binary(max_size=2)))
def test_values_are_their_lengths_and_their_bytes(values: list[str] | list[bytes]) -> None:
    encoded = [one if isinstance(one, bytes) else one.encode() for one in values]
    expected = b"".join(len(one).to_bytes(4, "little") + one for one in encoded)
    assert bytes(plain(np.array(values, object))) == expected


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_minimum_and_maximum_are_where_readers_look_for_them(compression: str) -> None:
    drawn = make_columns(members(3, rewards={"format": 0.5}))
    data = bytes(encode_rows(drawn, provenance(3), compression=compression))
    group = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    ranged = {column.path_in_schema for column in columns if column.is_stats_set}
    assert ranged == FILTERED


def test_rows_of_a_file_name_their_source() -> None:
    drawn = make_columns([make_entry(), make_entry(attachments={"image": b"png"})])
    data = bytes(encode_rows(drawn, provenance(2, first_offset=40)))
    expected = {
        "group_id": ["group-40", "group-40"],
        "log_generation": [1, 1],
        "log_partition": [0, 0],
        "log_offset": [40, 40],
        "log_entry": [0, 1],
        "log_epoch": [7, 7],
    }
    assert pq.read_table(pa.BufferReader(data)).equals(to_table(drawn, expected))


def test_a_name_may_hold_what_a_footer_is_split_by() -> None:
    named = {"\x16\x00\x19\x0c": np.ones((3, 2), np.uint8)}
    assert_same_file(make_columns([make_entry(token_arrays=named)]))


def test_duckdb_reads_nulls_and_empty_lists(tmp_path: Path) -> None:
    drawn = [
        make_entry(rewards={"format": 0.5, "length": -1.0}, logprobs=None),
        make_entry(output_tokens=[], logprobs=[], reward=None),
        make_entry(rewards={"format": 1.0}, loss_mask=[True, False, True], example_id="é"),
    ]
    path = tmp_path / "rows.parquet"
    path.write_bytes(bytes(plain_file(make_columns(drawn), sources(3), METADATA)))
    rows = duckdb.sql(
        "SELECT rewards, len(output_tokens), logprobs, loss_mask, reward, example_id, group_id, "
        f"log_offset FROM read_parquet('{path}') ORDER BY log_offset"
    ).fetchall()
    half, length = {"name": "format", "value": 0.5}, {"name": "length", "value": -1.0}
    whole, mask = {"name": "format", "value": 1.0}, [True, False, True]
    assert rows == [
        ([half, length], 3, None, None, 1.0, "ex-1", "group-0", 0),
        ([], 0, [], None, None, "ex-1", "group-0", 1),
        ([whole], 3, [-0.5] * 3, mask, 1.0, "é", "group-1", 2),
    ]
    assert duckdb.sql(
        f"SELECT count(*) FROM read_parquet('{path}') WHERE reward >= 0 AND example_id > 'x'"
    ).fetchone() == (1,)
