"""Rows to Parquet bytes and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollstream.schemas.columns import REQUIRED_ARRAYS, Columns, Ragged, array_fields, scalar_fields
from rollstream.store import arrow
from rollstream.store.blobs import Blobs
from rollstream.store.errors import CorruptFile

PAGE_BYTES = 1 << 30  # A column chunk is one page: pages of their own cost time and help nobody.
ENVIRONMENT_KEY = "rollstream.environment"
_REPETITIVE = (
    "example_id",
    "group_uid",
    "lineage",
    "rollout_policy_version",
    "replica_id",
    "worker_id",
    "split",
    "stop_reason",
    "actor_policy_version",
    "group_id",
)
_FILTERED = ("example_id", "rollout_policy_version", "weight_step", "created_ts", "reward")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where each row came from.

    Attributes:
        group_ids: one a row.
        policy_versions: of the row's group (``mixed`` where members differ), one a row.
        generation, partition, epoch: of the source log and the claim, the same for all rows.
        offsets: int64 [rows], in the source partition.
    """

    group_ids: Sequence[str]
    policy_versions: Sequence[str]
    generation: int
    partition: int
    epoch: int
    offsets: NDArray[np.int64]


def encode_rows(
    columns: Columns, provenance: Provenance, *, compression: str = "none"
) -> pa.Buffer:
    """The rows as one Parquet file. Equal arguments give equal bytes.

    Columns are the fields of ``RolloutRecord`` plus ``group_id``, ``log_generation``,
    ``log_partition``, ``log_offset``, ``log_epoch``; arrays are lists that any reader opens. The
    environment and the group's policy version are in the file's path (``layout.rows_path``).

    Args:
        columns: at least one row, all of one environment.
        provenance: of each row.
        compression: ``none``, ``lz4`` or ``zstd``.
    """
    assert columns.rows > 0, "a file holds at least one row"
    table = arrow.to_table(
        columns,
        {
            "group_id": provenance.group_ids,
            "log_generation": provenance.generation,
            "log_partition": provenance.partition,
            "log_offset": provenance.offsets,
            "log_epoch": provenance.epoch,
        },
    )
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression=compression,
        use_dictionary=list(_REPETITIVE),
        write_statistics=list(_FILTERED),
        data_page_size=PAGE_BYTES,
        store_schema=False,
    ) as writer:
        writer.add_key_value_metadata({ENVIRONMENT_KEY: columns.scalars[arrow.ENVIRONMENT][0]})
        writer.write_table(table, row_group_size=columns.rows)
    return sink.getvalue()


def read_rows(
    blobs: Blobs,
    path: str,
    *,
    ranges: Sequence[tuple[int, int]] | None = None,
    fields: Sequence[str] | None = None,
) -> Columns:
    """Rows of one file, exactly as they were encoded.

    Args:
        blobs: where.
        path: of the file.
        ranges: (first row, rows) pairs in the wanted order; None: all rows.
        fields: names of the ``rollout`` schema to read; None: all. What is not read is not there.

    Raises:
        BlobMissing: nothing lies there.
        CorruptFile: no Parquet file of ours, or a range beyond its rows.
    """
    try:
        with _open(blobs, path) as file:
            return _read(file, path, ranges, fields)
    except pa.ArrowInvalid as error:
        raise CorruptFile(f"{path} is no Parquet file: {error}") from error


def _open(blobs: Blobs, path: str) -> pq.ParquetFile:
    local = blobs.local_path(path)
    if local is not None and local.is_file():
        return pq.ParquetFile(pa.memory_map(str(local)), memory_map=True)
    return pq.ParquetFile(pa.BufferReader(blobs.read(path)))


def _read(
    file: pq.ParquetFile,
    path: str,
    ranges: Sequence[tuple[int, int]] | None,
    fields: Sequence[str] | None,
) -> Columns:
    total = file.metadata.num_rows
    wanted = [(0, total)] if ranges is None else list(ranges)
    for first, rows in wanted:
        if first < 0 or rows < 0 or first + rows > total:
            raise CorruptFile(f"{path} has {total} rows, not {rows} from {first} on")
    environment = (file.metadata.metadata or {}).get(ENVIRONMENT_KEY.encode())
    if environment is None:
        raise CorruptFile(f"{path} does not name its environment: no file of a sealer's")
    names = [*scalar_fields(), *array_fields()] if fields is None else list(fields)
    stored = [arrow.stored_name(name) for name in names if name != arrow.ENVIRONMENT]
    table = file.read(columns=stored, use_threads=False)
    rows = sum(count for _, count in wanted)
    scalars: dict[str, Sequence[Any]] = {}
    arrays: dict[str, Ragged] = {}
    for name in names:
        if name == arrow.ENVIRONMENT:
            scalars[name] = [environment.decode()] * rows
            continue
        column = table.column(arrow.stored_name(name)).combine_chunks()
        if name in scalar_fields():
            values = arrow.scalars_of(column)
            scalars[name] = [v for first, count in wanted for v in values[first : first + count]]
            continue
        ragged = arrow.rows_of(arrow.ragged_of(column), wanted)
        everywhere = ragged.present is None and rows > 0
        if (
            name in REQUIRED_ARRAYS
            or everywhere
            or (ragged.present is not None and ragged.present.any())
        ):
            arrays[name] = ragged
    return Columns(rows, scalars, arrays)
