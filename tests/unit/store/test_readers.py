"""Sealed files as other tools open them: by their paths, and through the list of the command line.

Files are written by our own writer and by pyarrow, hold several environments, and have every kind
of column: lists with and without nulls, structs, and named arrays as lists and as bytes.
"""

from __future__ import annotations

import datetime as dt
import weakref
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.columns import assert_same_ragged
from harness.command_line import CommandLine
from harness.rollouts import CREATED_TS, make_columns, make_entry, members
from harness.sealed_files import provenance, seal
from rollstream.schemas.ingest.entry import Entry
from rollstream.store import (
    BlobMissing,
    Blobs,
    LocalBlobs,
    NoTokenArray,
    encode_rows,
    open_dataset,
    token_array,
    visible_files,
)
from rollstream.store.dataset import open_rows, read_rows
from rollstream.store.row_file import RowFile

ENVIRONMENTS = ("code/2", "math")
ROWS = 5  # Of each file.
COLUMNS = (
    *("rollout_uid", "reward", "rewards", "loss_mask", "output_tokens", "attachments"),
    *("token_array_experts", "token_array_entropy", "token_array_half", "log_offset", "log_entry"),
)


def experts(row: int) -> Any:
    return (np.arange(12, dtype=np.uint8) + row).reshape(3, 2, 2)


def rollout(environment: str, row: int) -> Entry:
    """Every second row has components and a mask, one in three no entropy and no half."""
    named: dict[str, Any] = {"experts": experts(row)}
    if row % 3:
        named["entropy"] = np.array([row, 0.5, 0.25], np.float32)
        named["half"] = np.array([row, 0.5, 0.25], np.float16)
    return make_entry(
        rollout_uid=f"{environment}-{row}",
        reward=None if row == 0 else row / 2,
        rewards={"format": 0.5, "length": float(row)} if row % 2 else {},
        loss_mask=[True, False, row > 1] if row % 2 else None,
        token_arrays=named,
    )


def expected(environment: str) -> list[tuple[Any, ...]]:
    """The ``COLUMNS`` of each row, as plain values."""
    found: list[tuple[Any, ...]] = []
    for row in range(ROWS):
        odd, some = row % 2, row % 3
        half = np.array([row, 0.5, 0.25], np.float16).tobytes()
        components = [{"name": "format", "value": 0.5}, {"name": "length", "value": float(row)}]
        found.append(
            (
                f"{environment}-{row}",
                None if row == 0 else row / 2,
                components if odd else [],
                [True, False, row > 1] if odd else None,
                [21, 22, 23],
                [],
                experts(row).tobytes(),
                [float(row), 0.5, 0.25] if some else None,
                half if some else None,
                row // 2,
                row % 2,
            )
        )
    return found


EXPECTED = [row for environment in ENVIRONMENTS for row in expected(environment)]


@pytest.fixture(scope="module", params=["none", "zstd"])
def line(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A store with one file an environment, and one that no manifest names."""
    line = CommandLine(tmp_path_factory.mktemp("sealed"))
    for environment in ENVIRONMENTS:
        rows = [rollout(environment, row) for row in range(ROWS)]
        path = seal(line.blobs, rows, environment=environment, compression=request.param)
    # Its flush ended before its event.
    orphan = encode_rows(make_columns(members(4)), provenance(4))
    line.blobs.create(path.replace("7-a", "8-orphan"), orphan)
    return line


@pytest.fixture
def files(line: CommandLine) -> list[str]:
    """What ``rollstream files`` prints."""
    listed = line.run("files").stdout.splitlines()
    assert len(listed) == len(ENVIRONMENTS)
    return listed


def plain(value: Any) -> Any:
    """NumPy's values, and those of pandas for none, as Python's."""
    if isinstance(value, np.ndarray):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and np.isnan(value) else value


@pytest.mark.proves("F10")
def test_duckdb_reads_every_value(files: list[str]) -> None:
    rows = duckdb.sql(
        f"SELECT {', '.join(COLUMNS)} FROM read_parquet({files}) ORDER BY rollout_uid"
    ).fetchall()
    assert rows == EXPECTED
    for file, environment in zip(files, ENVIRONMENTS, strict=True):
        rows = duckdb.sql(f"SELECT {', '.join(COLUMNS)} FROM '{file}'").fetchall()
        assert rows == expected(environment)
    groups = duckdb.sql(
        "SELECT environment, policy_version, count(*), avg(reward), sum(len(output_tokens)) "
        f"FROM read_parquet({files}, hive_partitioning = true) GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    assert groups == [(name, "step-0", ROWS, 1.25, 3 * ROWS) for name in ENVIRONMENTS]


@pytest.mark.proves("F10")
def test_polars_reads_every_value(files: list[str]) -> None:
    frame = pl.scan_parquet(files, hive_partitioning=True)
    assert frame.select(COLUMNS).collect().rows() == EXPECTED
    counts = frame.group_by("environment").agg(pl.len()).sort("environment").collect()
    assert counts.rows() == [(name, ROWS) for name in ENVIRONMENTS]
    for file, environment in zip(files, ENVIRONMENTS, strict=True):
        assert pl.read_parquet(file).select(COLUMNS).rows() == expected(environment)
    times = frame.select("created_ts").collect().to_series()
    assert times[0] == dt.datetime.fromtimestamp(CREATED_TS / 1e6, dt.UTC)


@pytest.mark.proves("F10")
def test_pandas_reads_every_value(files: list[str]) -> None:
    frame = pd.read_parquet(files)[list(COLUMNS)]
    assert [tuple(map(plain, row)) for row in frame.itertuples(index=False)] == EXPECTED
    for file, environment in zip(files, ENVIRONMENTS, strict=True):
        frame = pd.read_parquet(file)[list(COLUMNS)]
        rows = [tuple(map(plain, row)) for row in frame.itertuples(index=False)]
        assert rows == expected(environment)


@pytest.mark.proves("F10")
def test_hugging_face_datasets_reads_every_value(files: list[str], tmp_path: Path) -> None:
    for given, rows in ((files, EXPECTED), (files[0], expected(ENVIRONMENTS[0]))):
        loaded = datasets.Dataset.from_parquet(given, cache_dir=str(tmp_path / "cache"))
        assert [tuple(row[name] for name in COLUMNS) for row in loaded] == rows


@pytest.mark.parametrize("row", [0, 1])
def test_one_line_of_numpy_opens_a_named_array_of_any_reader(files: list[str], row: int) -> None:
    stated = pq.read_metadata(files[0]).metadata[b"rollstream.token_arrays"]
    assert stated == (
        b'{"entropy": {"dtype": "<f4", "shape": []}, '
        b'"experts": {"dtype": "|u1", "shape": [2, 2]}, '
        b'"half": {"dtype": "<f2", "shape": []}}'
    )
    frame = pl.read_parquet(files[0])
    values = np.frombuffer(frame["token_array_experts"][row], "u1").reshape(-1, 2, 2)
    assert values.tolist() == experts(row).tolist()


@pytest.mark.proves("F10", "A10")
def test_open_dataset_has_the_files_that_manifests_name_and_no_others(line: CommandLine) -> None:
    root = line.blobs.root
    dataset = open_dataset(root)
    table = dataset.to_table().sort_by("rollout_uid")
    found = [tuple(row.values()) for row in table.select(COLUMNS).to_pylist()]
    assert found == EXPECTED
    assert table["environment"].to_pylist() == [n for n in ENVIRONMENTS for _ in range(ROWS)]
    assert set(table["policy_version"].to_pylist()) == {"step-0"}
    assert table.schema.field("output_tokens").type.value_type == pa.int32()
    assert open_dataset(f"file://{root}").count_rows() == len(EXPECTED)


@pytest.mark.parametrize("name", ["experts", "entropy", "half"])
def test_a_named_array_of_a_table_is_as_it_was_published(
    line: CommandLine, files: list[str], name: str
) -> None:
    drawn = make_columns([rollout("math", row) for row in range(ROWS)])
    for table in (
        pq.read_table(files[1]),
        pq.ParquetFile(files[1]).read(columns=[f"token_array_{name}", "token_count"]),
        open_dataset(line.blobs.root).to_table().filter(pa.compute.field("environment") == "math"),
    ):
        assert_same_ragged(token_array(table, name), drawn.token_arrays[name])
    both = open_dataset(line.blobs.root).to_table()
    found = token_array(both, name)
    uids = both["rollout_uid"].to_pylist()
    for index, uid in enumerate(uids):
        row, expected_row = found.row(index), drawn.token_arrays[name].row(int(uid[-1]))
        assert (row is None) == (expected_row is None)
        if row is not None and expected_row is not None:
            assert row.tolist() == expected_row.tolist()
    assert token_array(both.slice(0, 0), name).values.shape[0] == 0
    assert token_array(both.schema.empty_table(), name).values.dtype == found.values.dtype


def test_a_named_array_of_a_local_file_is_a_view_of_the_table(files: list[str]) -> None:
    table = pq.read_table(files[0])
    for name in ("experts", "half"):
        (chunk,) = table.column(f"token_array_{name}").chunks
        held = np.frombuffer(chunk.buffers()[-1], np.uint8)
        assert np.shares_memory(token_array(table, name).values, held)


def test_a_table_without_what_a_named_array_needs_is_refused(files: list[str]) -> None:
    table = pq.read_table(files[0])
    with pytest.raises(NoTokenArray, match="no column token_array_missing"):
        token_array(table, "missing")
    with pytest.raises(NoTokenArray, match="read the column token_count"):
        token_array(table.drop_columns("token_count"), "experts")
    bare = pa.table({name: table[name] for name in ("token_array_experts", "token_count")})
    with pytest.raises(NoTokenArray, match="another tool made it"):
        token_array(bare, "experts")
    assert token_array(table.drop_columns("token_count"), "entropy").row(1) is not None


def named(uid: str, **token_arrays: Any) -> list[Entry]:
    return [make_entry(rollout_uid=uid, token_arrays=token_arrays)]


def test_open_dataset_joins_files_with_differing_named_arrays(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    seal(blobs, members(1), name="none", offset=1)
    seal(blobs, named("a", a=np.ones((3, 2), "u1")), name="a", offset=2)
    seal(blobs, named("b", b=np.full(3, 2.0)), name="b", offset=3)
    table = open_dataset(tmp_path).to_table().sort_by("rollout_uid")
    a, b = (token_array(table, name) for name in ("a", "b"))
    assert [None if a.row(i) is None else a.row(i).tolist() for i in range(3)] == [  # type: ignore[union-attr]
        [[1, 1]] * 3,
        None,
        None,
    ]
    assert [None if b.row(i) is None else b.row(i).tolist() for i in range(3)] == [  # type: ignore[union-attr]
        None,
        [2.0] * 3,
        None,
    ]


def test_open_dataset_refuses_to_mix_dtypes_and_shapes_of_a_name(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    arrays = [np.ones((3, 2), "u1"), np.ones((3, 4), "u1"), np.ones(3, "f4")]
    for offset, values in enumerate(arrays):
        one = {"same": np.ones(3), **({"wide": values} if offset < 2 else {}), "kinds": values}
        seal(blobs, named(f"u{offset}", **one), name=str(offset), offset=offset)
    table = open_dataset(tmp_path).to_table()
    assert "token_array_kinds" not in table.column_names  # Bytes in one, lists in another.
    assert table["token_array_wide"].null_count == 1
    with pytest.raises(NoTokenArray, match="its files differ in them"):
        token_array(table, "wide")
    assert token_array(table, "same").values.tolist() == [1.0] * 9
    for path, values in zip(visible_files(blobs), arrays, strict=True):
        file = pq.read_table(tmp_path / path)
        assert token_array(file, "kinds").values.tolist() == values.tolist()
        assert read_rows(blobs, path).token_arrays["kinds"].values.tolist() == values.tolist()


@pytest.mark.parametrize("name", ["a+b", "ä/ö", "a=b", "x%2Fy", "007", "a b,c@d"])
def test_names_come_back_from_paths_as_they_were(tmp_path: Path, name: str) -> None:
    rows = members(1, policy_version=f"v{name}")
    seal(LocalBlobs(tmp_path), rows, environment=f"e{name}")
    columns = ["environment", "policy_version"]
    expected = (f"e{name}", f"v{name}")
    found = open_dataset(tmp_path).to_table(columns=columns).to_pylist()
    assert [tuple(row.values()) for row in found] == [expected]
    query = (
        f"SELECT environment, policy_version FROM read_parquet('{tmp_path}/groups/**/*.parquet')"
    )
    assert duckdb.sql(query).fetchall() == [expected]


def test_open_dataset_keeps_no_footer_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = LocalBlobs(tmp_path)
    for number in range(8):
        seal(blobs, members(2), name=str(number), offset=number)
    opened, most = weakref.WeakSet[RowFile](), 0

    def open_and_count(blobs: Blobs, path: str) -> RowFile:
        nonlocal most
        file = open_rows(blobs, path)
        opened.add(file)
        most = max(most, len(opened))
        return file

    monkeypatch.setattr("rollstream.store.visible_rows.open_rows", open_and_count)
    assert open_dataset(tmp_path).count_rows() == 16
    assert most <= 2


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


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_one_file_alone_opens_with_pyarrow(tmp_path: Path, compression: str) -> None:
    seal(LocalBlobs(tmp_path), members(3, attachments={"image": b"png"}), compression=compression)
    (path,) = visible_files(LocalBlobs(tmp_path))
    table = pq.ParquetFile(tmp_path / path).read()
    assert table.column("output_tokens").to_pylist() == [[21, 22, 23]] * 3
    assert table.column("attachments").to_pylist() == [[{"name": "image", "data": b"png"}]] * 3
    assert str(table.schema.field("created_ts").type) == "timestamp[us, tz=UTC]"
    assert table.column("log_offset").to_pylist() == [0, 0, 1]
    assert table.column("log_entry").to_pylist() == [0, 1, 0]
    assert not table.schema.field("output_tokens").nullable
