"""Files of our own writer hold the table that pyarrow would write, for any reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from harness.sealed_files import provenance
from harness.strategies import segments
from rollstream.schemas.codec import Segment
from rollstream.schemas.columns import Columns, Ragged
from rollstream.store import arrow, encode_rows
from rollstream.store.dataset import HINTS
from rollstream.store.plain import rows as plain_rows
from rollstream.store.plain.encoding import DISTINCT_MAX
from rollstream.store.plain.file import CREATED_BY, FileShape, around_counts
from rollstream.store.plain.rows import plain_file

METADATA = {"rollstream.environment": "math", "empty": ""}


def sources(rows: int) -> dict[str, Sequence[Any]]:
    return {
        "group_id": [f"group-{row // 2}" for row in range(rows)],
        "log_generation": [1] * rows,
        "log_partition": [3] * rows,
        "log_offset": list(range(rows)),
        "log_epoch": [-7] * rows,
    }


def both(columns: Columns, given: Mapping[str, Sequence[Any]]) -> tuple[Any, Any]:
    """Our file of the rows, and pyarrow's."""
    ours = plain_file(columns, given, METADATA, HINTS)
    assert ours is not None
    sink = pa.BufferOutputStream()
    pq.write_table(
        arrow.to_table(columns, given),
        sink,
        use_dictionary=list(HINTS.repetitive),
        write_statistics=list(HINTS.filtered),
        compression="none",
        store_schema=False,
    )
    opened = [pq.ParquetFile(pa.BufferReader(data)) for data in (ours, sink.getvalue())]
    return opened[0], opened[1]


def stated(statistics: Any) -> str:
    bounds = (statistics.min_raw, statistics.max_raw) if statistics.has_min_max else ()
    return repr((bounds, statistics.null_count, statistics.num_values))  # Tells -0.0 from 0.0.


def assert_same_file(columns: Columns, given: Mapping[str, Sequence[Any]] | None = None) -> None:
    ours, theirs = both(columns, given or sources(columns.rows))
    assert ours.schema.equals(theirs.schema)
    assert ours.read().equals(theirs.read())
    assert ours.metadata.metadata == {k.encode(): v.encode() for k, v in METADATA.items()}
    assert ours.metadata.created_by.encode() == CREATED_BY
    at = 4
    for index in range(len(ours.schema)):
        mine, other = (f.metadata.row_group(0).column(index) for f in (ours, theirs))
        for fact in ("num_values", "is_stats_set", "has_dictionary_page", "physical_type"):
            assert getattr(mine, fact) == getattr(other, fact), (fact, mine.path_in_schema)
        assert set(mine.encodings) == set(other.encodings), mine.path_in_schema
        if mine.is_stats_set:
            assert stated(mine.statistics) == stated(other.statistics), mine.path_in_schema
        # Chunks follow one another, and a dictionary stands in front of what it explains.
        assert mine.total_compressed_size == mine.total_uncompressed_size
        begin = mine.dictionary_page_offset if mine.has_dictionary_page else mine.data_page_offset
        assert begin == at
        assert (mine.data_page_offset > begin) == mine.has_dictionary_page
        at += mine.total_compressed_size
    assert ours.metadata.row_group(0).total_byte_size == at - 4


def without_nested(segment: Segment) -> Segment:
    extras = segment.body["extras"]
    if extras is None:
        return segment
    plain = {**extras, "token_arrays": [], "attachments": []}
    return segment._replace(body={**segment.body, "extras": plain})


@pytest.mark.proves("F10")
@given(st.lists(segments(environment="math").map(without_nested), min_size=1, max_size=8))
@settings(max_examples=150)
def test_any_plain_rows_are_the_table_that_pyarrow_writes(drawn: list[Segment]) -> None:
    assert_same_file(Columns.from_segments(drawn))


@given(st.lists(st.sampled_from([0.0, -0.0, 1.5, -2.5, None]), min_size=1))
@settings(max_examples=50)
def test_bounds_of_rewards_are_those_of_pyarrow(rewards: list[float | None]) -> None:
    assert_same_file(Columns.from_segments([make_segment(reward=r) for r in rewards]))


@pytest.mark.parametrize("lengths", [[1], [0], [63, 64, 65], [8_191, 8_192, 0, 1_100_000, 2]])
def test_arrays_of_any_length_keep_their_rows(lengths: list[int]) -> None:
    drawn = [
        make_segment(output_tokens=range(n), logprobs=None if n == 64 else [-0.5] * n)
        for n in lengths
    ]
    assert_same_file(Columns.from_segments(drawn))


def repeated(rows: int) -> Columns:
    """The same row many times."""
    one = Columns.from_segments(members(1))
    return Columns(
        rows,
        {name: list(values) * rows for name, values in one.scalars.items()},
        {
            name: Ragged(
                np.tile(ragged.values, rows), np.arange(rows + 1) * len(ragged.values), None
            )
            for name, ragged in one.arrays.items()
        },
    )


@pytest.mark.parametrize("distinct", [1, 2, 255, 256, 257, DISTINCT_MAX])
def test_any_number_of_distinct_texts_comes_back(distinct: int) -> None:
    rows = distinct + 3
    ids = [f"g{row % distinct}" for row in range(rows)]
    assert_same_file(repeated(rows), {**sources(rows), "group_id": ids})


def test_more_distinct_texts_have_no_dictionary() -> None:
    rows = DISTINCT_MAX + 1
    ids = [f"g{row}" for row in range(rows)]
    file, _ = both(repeated(rows), {**sources(rows), "group_id": ids})
    assert file.read(columns=["group_id"]).column(0).to_pylist() == ids
    group = file.metadata.row_group(0)
    chunks = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert not chunks["group_id"].has_dictionary_page


@pytest.mark.parametrize(
    "names", [["x" * 4_096], ["x" * 4_097], ["a", "x" * 4_097], ["a" * 4_097, "x"]]
)
def test_long_text_has_no_bound_in_the_statistics(names: list[str]) -> None:
    assert_same_file(Columns.from_segments([make_segment(example_id=name) for name in names]))


def test_hints_name_columns_of_their_kind() -> None:
    schema = arrow.rows_schema()
    assert {*HINTS.repetitive, *HINTS.filtered} <= set(schema.names)
    assert all(schema.field(name).type == pa.string() for name in HINTS.repetitive)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_files_follow_their_hints_whoever_writes_them(compression: str) -> None:
    data = encode_rows(Columns.from_segments(members(3)), provenance(3), compression=compression)
    group = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    coded = {column.path_in_schema for column in columns if column.has_dictionary_page}
    ranged = {column.path_in_schema for column in columns if column.is_stats_set}
    assert (coded, ranged) == (set(HINTS.repetitive), set(HINTS.filtered))


@pytest.mark.parametrize(
    "nested",
    [
        {},
        {"attachments": [{"name": "image", "data": b"png"}]},
        {"token_arrays": [token_array("experts", np.ones((3, 2), np.uint8))]},
    ],
    ids=str,
)
def test_rows_with_nested_rare_fields_are_left_to_pyarrow(nested: dict[str, Any]) -> None:
    columns = Columns.from_segments([make_segment(), make_segment(**nested)])
    assert (plain_file(columns, sources(2), METADATA, HINTS) is None) == bool(nested)
    table = pq.read_table(pa.BufferReader(encode_rows(columns, provenance(2, first_offset=40))))
    expected: dict[str, Sequence[Any]] = {
        "group_id": ["group-40", "group-40"],
        "log_generation": [1, 1],
        "log_partition": [0, 0],
        "log_offset": [40, 41],
        "log_epoch": [7, 7],
    }
    assert table.equals(arrow.to_table(columns, expected))


@pytest.mark.parametrize(
    "field",
    [
        pa.field("x", pa.list_(pa.uint8())),
        pa.field("x", pa.decimal128(5)),
        pa.field("x", pa.binary()),
        pa.field("x", pa.struct([pa.field("y", pa.int32())])),
        pa.field("x", pa.list_(pa.list_(pa.int32()))),
    ],
    ids=lambda field: str(field.type),
)
def test_schema_with_a_type_that_is_not_written_here_is_left_to_pyarrow(
    field: pa.Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = arrow.rows_schema().append(field)
    monkeypatch.setattr(arrow, "rows_schema", lambda: schema)
    assert plain_rows._shape_and_writers.__wrapped__() is None


def test_footer_with_another_layout_is_left_to_pyarrow() -> None:
    schema = pa.schema([pa.field("x", pa.int32())])
    assert FileShape.of(schema) is not None
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()  # With Arrow's schema among the pairs.
    assert around_counts(sink.getvalue().to_pybytes()) is None


def test_duckdb_reads_nulls_empty_lists_and_maps(tmp_path: Path) -> None:
    drawn = [
        make_segment(rewards={"format": 0.5, "length": -1.0}, logprobs=None),
        make_segment(output_tokens=[], logprobs=[], reward=None),
        make_segment(rewards={"format": 1.0}, loss_mask=[True, False, True], example_id="é"),
    ]
    path = tmp_path / "rows.parquet"
    data = plain_file(Columns.from_segments(drawn), sources(3), METADATA, HINTS)
    assert data is not None
    path.write_bytes(data)
    rows = duckdb.sql(
        "SELECT rewards, len(output_tokens), logprobs, loss_mask, reward, example_id, group_id, "
        f"log_offset FROM read_parquet('{path}') ORDER BY log_offset"
    ).fetchall()
    tokens = [len(segment.body["output_tokens"]) // 4 for segment in drawn]
    assert rows == [
        ({"format": 0.5, "length": -1.0}, tokens[0], None, None, 1.0, "ex-1", "group-0", 0),
        ({}, 0, [], None, None, "ex-1", "group-0", 1),
        ({"format": 1.0}, 3, [-0.5] * 3, [True, False, True], 1.0, "é", "group-1", 2),
    ]
    assert duckdb.sql(
        f"SELECT count(*) FROM read_parquet('{path}') WHERE reward >= 0 AND example_id > 'x'"
    ).fetchone() == (1,)
