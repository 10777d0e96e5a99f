"""Files of our own writing hold what pyarrow would have written, for any reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from harness.strategies import segments
from rollstream.schemas.columns import Columns
from rollstream.store import arrow
from rollstream.store.plain.rows import Hints, is_plain, plain_file

METADATA = {"rollstream.environment": "math", "empty": ""}
HINTS = Hints(
    repetitive=("example_id", "rollout_policy_version", "group_id"),
    filtered=("example_id", "rollout_policy_version", "weight_step", "created_ts", "reward"),
)


def sources(rows: int) -> dict[str, Sequence[Any]]:
    return {
        "group_id": [f"group-{row // 2}" for row in range(rows)],
        "log_generation": [1] * rows,
        "log_partition": [3] * rows,
        "log_offset": list(range(rows)),
        "log_epoch": [-7] * rows,
    }


def both(
    columns: Columns, provenance: Mapping[str, Sequence[Any]] | None = None
) -> tuple[Any, Any]:
    """Our file of the rows, and pyarrow's."""
    provenance = provenance or sources(columns.rows)
    ours = plain_file(columns, provenance, METADATA, HINTS)
    table = arrow.to_table(columns, provenance)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        use_dictionary=list(HINTS.repetitive),
        write_statistics=list(HINTS.filtered),
        compression="none",
        store_schema=False,
    )
    opened = (pq.ParquetFile(pa.BufferReader(data)) for data in (ours, sink.getvalue()))
    ours, theirs = opened
    return ours, theirs


def stated(statistics: Any) -> str:
    bounds = (statistics.min_raw, statistics.max_raw) if statistics.has_min_max else ()
    return repr((bounds, statistics.null_count, statistics.num_values))  # Tells -0.0 from 0.0.


def assert_same_file(
    columns: Columns, provenance: Mapping[str, Sequence[Any]] | None = None
) -> None:
    ours, theirs = both(columns, provenance)
    assert ours.schema.equals(theirs.schema)
    assert ours.read().equals(theirs.read())
    assert ours.metadata.metadata == {k.encode(): v.encode() for k, v in METADATA.items()}
    for index in range(len(ours.schema)):
        mine, other = (f.metadata.row_group(0).column(index) for f in (ours, theirs))
        assert mine.num_values == other.num_values, mine.path_in_schema
        assert mine.is_stats_set == other.is_stats_set, mine.path_in_schema
        if mine.is_stats_set:
            assert stated(mine.statistics) == stated(other.statistics), mine.path_in_schema


@pytest.mark.proves("F10")
@given(st.lists(segments(environment="math"), min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_any_plain_rows_are_the_table_that_pyarrow_writes(drawn: list[Any]) -> None:
    columns = Columns.from_segments(drawn)
    if is_plain(columns):
        assert_same_file(columns)


@given(st.lists(st.sampled_from([0.0, -0.0, 1.5, -2.5, None]), min_size=1))
@settings(max_examples=50, deadline=None)
def test_range_of_rewards_is_what_pyarrow_says(rewards: list[float | None]) -> None:
    assert_same_file(Columns.from_segments([make_segment(reward=r) for r in rewards]))


@pytest.mark.parametrize("lengths", [[1], [0], [63, 64, 65], [8_191, 8_192, 0, 1_100_000, 2]])
def test_arrays_of_any_length_keep_their_rows(lengths: list[int]) -> None:
    drawn = [
        make_segment(output_tokens=range(n), logprobs=None if n == 64 else [-0.5] * n)
        for n in lengths
    ]
    assert_same_file(Columns.from_segments(drawn))


@pytest.mark.parametrize("distinct", [1, 2, 255, 256, 257, 65_536, 65_537])
def test_any_number_of_distinct_words_comes_back(distinct: int) -> None:
    rows = distinct + 3
    one = Columns.from_segments(members(1))
    columns = replace(
        one,
        rows=rows,
        scalars={name: list(values) * rows for name, values in one.scalars.items()},
        arrays={
            name: replace(
                ragged,
                values=np.tile(ragged.values, rows),
                offsets=np.arange(rows + 1) * len(ragged.values),
            )
            for name, ragged in one.arrays.items()
        },
    )
    ids = [f"g{row % distinct}" for row in range(rows)]
    assert_same_file(columns, {**sources(rows), "group_id": ids})


def test_long_text_bounds_a_range_only_where_pyarrow_lets_it() -> None:
    for size in (4_096, 4_097):
        assert_same_file(Columns.from_segments([make_segment(example_id="x" * size)]))


def test_nested_rare_fields_are_left_to_pyarrow() -> None:
    nested = (
        {"attachments": [{"name": "image", "data": b"png"}]},
        {"token_arrays": [token_array("experts", np.ones((3, 2), np.uint8))]},
    )
    for fields in nested:
        assert not is_plain(Columns.from_segments([make_segment(), make_segment(**fields)]))
    assert is_plain(Columns.from_segments([make_segment(messages="[]", rewards={"format": 1.0})]))


def test_duckdb_reads_what_is_null_empty_and_mapped(tmp_path: Path) -> None:
    drawn = [
        make_segment(rewards={"format": 0.5, "length": -1.0}, logprobs=None),
        make_segment(output_tokens=[], logprobs=[], reward=None),
        make_segment(rewards={"format": 1.0}, loss_mask=[True, False, True], example_id="é"),
    ]
    path = tmp_path / "rows.parquet"
    path.write_bytes(plain_file(Columns.from_segments(drawn), sources(3), METADATA, HINTS))
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
