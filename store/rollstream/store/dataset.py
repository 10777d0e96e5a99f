"""Encodes rows as Parquet files and reads them back."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollstream.schemas import digest
from rollstream.schemas.columns import (
    REQUIRED_ARRAYS,
    Columns,
    Ragged,
    array_fields,
    collection_fields,
    scalar_fields,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import arrow
from rollstream.store.blobs import Blobs, Bytes
from rollstream.store.errors import CorruptFile
from rollstream.store.plain.rows import Hints, plain_bytes, plain_file, unpacked_bits

PAGE_BYTES = 1 << 30  # A column chunk is one page; several would cost time and serve no reader.
# Keys of a file's metadata; all but the first list fields, joined by commas.
ENVIRONMENT_KEY = "rollstream.environment"
IN_PLACE_KEY = "rollstream.in_place"  # Arrays that every row has, with as many values as its count.
ABSENT_KEY = "rollstream.absent"  # Arrays that no row has.
EMPTY_KEY = "rollstream.empty"  # Maps and lists that are empty in each row.
# pyarrow raises these, besides its own errors, on damaged bytes.
_DAMAGED = (pa.ArrowException, OSError, ValueError, LookupError, TypeError)
HINTS = Hints(
    repetitive=(
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
    ),
    filtered=("example_id", "rollout_policy_version", "weight_step", "created_ts", "reward"),
)


@dataclass(frozen=True, slots=True)
class Provenance:
    """The group and the source record of each row.

    Attributes:
        group_ids: one a row.
        address: of the ingest log, the same for all rows.
        epoch: of the claim under which the rows are sealed, the same for all rows.
        offsets: int64 [rows], in that partition of the ingest log.
    """

    group_ids: Sequence[str]
    address: PartitionAddress
    epoch: int
    offsets: NDArray[np.int64]


def encode_rows(columns: Columns, provenance: Provenance, *, compression: str = "none") -> Bytes:
    """Encodes rows as one Parquet file. Equal arguments give equal bytes.

    Columns are the fields of ``RolloutRecord`` plus ``group_id``, ``log_generation``,
    ``log_partition``, ``log_offset``, ``log_epoch``; arrays are Parquet lists. The environment and
    the group's policy version are in the file's path (``layout.rows_path``).

    Args:
        columns: at least one row, all of one environment.
        provenance: of each row.
        compression: ``none``, ``lz4`` or ``zstd``.
    """
    assert columns.rows > 0, "a file holds at least one row"
    environment, *others = set(columns.scalars[arrow.ENVIRONMENT])
    assert not others, f"a file holds rows of one environment, not {environment} and {others}"
    compressed = compression != "none"
    metadata = {
        ENVIRONMENT_KEY: environment,
        IN_PLACE_KEY: "" if compressed else ",".join(_counted_arrays(columns)),
        ABSENT_KEY: ",".join(name for name in array_fields() if name not in columns.arrays),
        EMPTY_KEY: ",".join(name for name in collection_fields() if not any(columns.scalars[name])),
    }
    sources = {
        "group_id": provenance.group_ids,
        "log_generation": [provenance.address.generation] * columns.rows,
        "log_partition": [provenance.address.partition] * columns.rows,
        "log_offset": provenance.offsets.tolist(),
        "log_epoch": [provenance.epoch] * columns.rows,
    }
    if not compressed:
        plain = plain_file(columns, sources, metadata, HINTS)
        if plain is not None:
            return plain
    table = arrow.to_table(columns, sources)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression=compression,
        use_dictionary=list(HINTS.repetitive),
        write_statistics=list(HINTS.filtered),
        data_page_size=PAGE_BYTES,
        max_rows_per_page=columns.rows,
        store_schema=False,
    ) as writer:
        writer.add_key_value_metadata(metadata)
        writer.write_table(table, row_group_size=columns.rows)
    return memoryview(sink.getvalue()).cast("B")


def _counted_arrays(columns: Columns) -> list[str]:
    """The arrays that every row has, with as many values as the row's count: a reader finds their
    rows without decoding levels (``plain.rows.plain_bytes``)."""
    return [
        name
        for name, ragged in columns.arrays.items()
        if (ragged.present is None or ragged.present.all())
        and np.array_equal(np.diff(ragged.offsets), columns.scalars[_count_of(name)])
    ]


def _count_of(array: str) -> str:
    return "prompt_count" if array == "prompt_tokens" else "token_count"


def read_rows(
    blobs: Blobs,
    path: str,
    *,
    checksum: str | None = None,
    ranges: Sequence[tuple[int, int]] | None = None,
    fields: Sequence[str] | None = None,
) -> Columns:
    """Reads rows of one file, exactly as they were encoded.

    Arrays of one range are views of the file where it is not compressed. A local file stays mapped
    for as long as such an array lives, and may be deleted meanwhile. A damaged file is refused
    where ``checksum`` is given; without it damage may go unnoticed and change values.

    Args:
        blobs: the store.
        path: of the file.
        checksum: that its bytes must have (``SealedFile.checksum``); None: not compared.
        ranges: (first row, number of rows) pairs in the wanted order; None: all rows.
        fields: names of the ``rollout`` schema; the result holds these alone; None: all.

    Raises:
        BlobMissing: there is no such file.
        CorruptFile: another checksum, not a file that a sealer wrote, or a range beyond its rows.
    """
    data = _mapped(blobs, path)
    if checksum is not None:  # Over all bytes: cheap beside a training step.
        found = digest.checksum(memoryview(data))
        if found != checksum:
            raise CorruptFile(
                f"{path} has checksum {found}, but its event names {checksum}; "
                "restore the file from a copy"
            )
    names = [*scalar_fields(), *array_fields()] if fields is None else list(fields)
    assert {*names} <= {*scalar_fields(), *array_fields()}, names
    try:
        file = _RowFile(path, data)
        wanted = [(0, file.rows)] if ranges is None else list(ranges)
        for first, count in wanted:
            if first < 0 or count < 0 or first + count > file.rows:
                raise CorruptFile(f"{path} has {file.rows} rows, not {count} from {first} on")
        return file.read(names, wanted)
    except _DAMAGED as error:
        raise CorruptFile(f"{path} is no Parquet file, or a damaged one: {error}") from error


class _RowFile:
    """An open file with its footer."""

    def __init__(self, path: str, data: pa.Buffer) -> None:
        self._path, self._data = path, data
        self._file = pq.ParquetFile(pa.BufferReader(data))
        footer = self._file.metadata
        stated = {key.decode(): text.decode() for key, text in (footer.metadata or {}).items()}
        if ENVIRONMENT_KEY not in stated or footer.num_row_groups != 1:
            raise CorruptFile(f"{path} does not name its environment: a sealer did not write it")
        self.rows: int = footer.num_rows
        self._environment = stated[ENVIRONMENT_KEY]
        self._in_place, self._absent, self._empty = (
            frozenset(stated.get(key, "").split(","))
            for key in (IN_PLACE_KEY, ABSENT_KEY, EMPTY_KEY)
        )
        self._ends: dict[str, NDArray[np.int64]] = {}

    def read(self, names: Sequence[str], wanted: Sequence[tuple[int, int]]) -> Columns:
        rows = sum(count for _, count in wanted)
        scalars: dict[str, Sequence[Any]] = {}
        arrays: dict[str, Ragged] = {}
        not_decoded = {arrow.ENVIRONMENT, *self._in_place, *self._absent, *self._empty}
        decoded = self._decoded([name for name in names if name not in not_decoded])
        for name in names:
            if name == arrow.ENVIRONMENT:
                scalars[name] = [self._environment] * rows
            elif name in self._empty and name in collection_fields():
                scalars[name] = [collection_fields()[name]() for _ in range(rows)]
            elif name in scalar_fields():
                values = arrow.scalars_of(decoded[name])
                scalars[name] = [
                    v for first, count in wanted for v in values[first : first + count]
                ]
            elif name not in self._absent:
                if name in self._in_place:
                    ragged = self._rows_in_place(name, wanted)
                else:
                    ragged = arrow.rows_of(arrow.ragged_of(decoded[name]), wanted)
                in_some_row = rows > 0 and (ragged.present is None or bool(ragged.present.any()))
                if name in REQUIRED_ARRAYS or in_some_row:
                    arrays[name] = ragged
        return Columns(rows, scalars, arrays)

    def _decoded(self, names: Sequence[str]) -> dict[str, pa.Array]:
        if not names:
            return {}
        stored = [arrow.stored_name(name) for name in names]
        table = self._file.read(columns=stored, use_threads=False)
        for name in stored:
            found, expected = table.field(name).type, arrow.rows_schema().field(name).type
            if found != expected:
                raise CorruptFile(f"{self._path}: column {name} is {found} instead of {expected}")
        columns = (table.column(name).combine_chunks() for name in stored)
        return dict(zip(names, columns, strict=True))

    def _rows_in_place(self, name: str, ranges: Sequence[tuple[int, int]]) -> Ragged:
        ends = self._row_ends(_count_of(name))
        values = int(ends[-1])
        dtype = np.dtype(array_fields()[name])
        chunk = self._chunk(name)
        if dtype == np.bool_:
            packed = plain_bytes(self._path, self._data, chunk, -(-values // 8))
            return arrow.rows_taken(ends, lambda a, z: unpacked_bits(packed, a, z), ranges)
        plain = plain_bytes(self._path, self._data, chunk, values * dtype.itemsize).view(dtype)
        return arrow.rows_taken(ends, lambda a, z: plain[a:z], ranges)

    def _row_ends(self, counts: str) -> NDArray[np.int64]:
        """int64 [rows + 1]: the values of row ``i`` are those from ``[i]`` to ``[i + 1]``."""
        if counts not in self._ends:
            size = self.rows * np.dtype(np.int32).itemsize
            lengths = plain_bytes(self._path, self._data, self._chunk(counts), size).view(np.int32)
            if (lengths < 0).any():
                raise CorruptFile(f"{self._path}: {counts} is negative somewhere")
            self._ends[counts] = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        return self._ends[counts]

    def _chunk(self, name: str) -> pq.ColumnChunkMetaData:
        group = self._file.metadata.row_group(0)
        first = min(arrow.leaf_index(name), group.num_columns - 1)
        # At the newest schema's index first; a file of an older one has it at another.
        for index in (first, *range(group.num_columns)):
            chunk = group.column(index)
            if chunk.path_in_schema.partition(".")[0] == name:
                return chunk
        raise CorruptFile(f"{self._path} has no column {name}, which its footer names")


def _mapped(blobs: Blobs, path: str) -> pa.Buffer:
    """The file's bytes, mapped where it is a local file."""
    local = blobs.local_path(path)
    if local is None:
        return pa.py_buffer(blobs.read(path))
    try:
        with local.open("rb") as file:
            return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):  # Missing, a folder, or empty: the store raises its own error.
        return pa.py_buffer(blobs.read(path))
