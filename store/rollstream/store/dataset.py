"""Rows to Parquet bytes and back."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from rollstream.store import arrow
from rollstream.store.blobs import Blobs, Bytes
from rollstream.store.errors import CorruptFile
from rollstream.store.plain.in_place import plain_bytes, unpacked_bits
from rollstream.store.plain.rows import Hints, plain_file

PAGE_BYTES = 1 << 30  # A column chunk is one page: pages of their own cost time and help nobody.
ENVIRONMENT_KEY = "rollstream.environment"
IN_PLACE_KEY = "rollstream.in_place"  # The arrays that every row has, as long as its count says.
ABSENT_KEY = "rollstream.absent"  # The arrays that no row has.
EMPTY_KEY = "rollstream.empty"  # The maps and lists that are empty in each row.
# What pyarrow raises on bytes that are damaged, besides its own errors.
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
    """Where each row came from.

    Attributes:
        group_ids: one a row.
        generation, partition, epoch: of the source log and the claim, the same for all rows.
        offsets: int64 [rows], in the source partition.
    """

    group_ids: Sequence[str]
    generation: int
    partition: int
    epoch: int
    offsets: NDArray[np.int64]


def encode_rows(columns: Columns, provenance: Provenance, *, compression: str = "none") -> Bytes:
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
    environment, *others = set(columns.scalars[arrow.ENVIRONMENT])
    assert not others, f"a file holds rows of one environment, not {environment} and {others}"
    compressed = compression != "none"
    metadata = {
        ENVIRONMENT_KEY: environment,
        IN_PLACE_KEY: "" if compressed else ",".join(_in_place(columns)),
        ABSENT_KEY: ",".join(name for name in array_fields() if name not in columns.arrays),
        EMPTY_KEY: ",".join(name for name in collection_fields() if not any(columns.scalars[name])),
    }
    sources = {
        "group_id": provenance.group_ids,
        "log_generation": [provenance.generation] * columns.rows,
        "log_partition": [provenance.partition] * columns.rows,
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


def _in_place(columns: Columns) -> list[str]:
    """The arrays whose values can be used where they lie (``plain.in_place``)."""
    found = []
    for name, ragged in columns.arrays.items():
        counts = columns.scalars[_count_of(name)]
        everywhere = ragged.present is None or ragged.present.all()
        if everywhere and np.array_equal(np.diff(ragged.offsets), counts):
            found.append(name)
    return found


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
    """Rows of one file, exactly as they were encoded.

    Args:
        blobs: where.
        path: of the file.
        checksum: that its bytes must have (``SealedFile.checksum``); None: not asked for.
        ranges: (first row, rows) pairs in the wanted order; None: all rows.
        fields: names of the ``rollout`` schema to read; None: all. What is not read is not there.

    Raises:
        BlobMissing: nothing lies there.
        CorruptFile: another checksum, no Parquet file of ours, or a range beyond its rows.
    """
    return RowFile(blobs, path, checksum).read(ranges=ranges, fields=fields)


class RowFile:
    """One file, opened once, to be read many times: what it holds in memory is its footer.

    A local file stays mapped for as long as this object, or an array that it handed out, lives;
    deleting the file meanwhile does no harm. Not shared between threads.

    Attributes:
        rows: in the file.
        environment: of every row.
    """

    def __init__(self, blobs: Blobs, path: str, checksum: str | None = None) -> None:
        """Raises: BlobMissing, CorruptFile (see ``read_rows``)."""
        self.path = path
        self._data = _bytes(blobs, path)
        if checksum is not None:
            self._compare(checksum)
        with _damage_told(path):
            self._file = pq.ParquetFile(pa.BufferReader(self._data))
            footer = self._file.metadata
            stated = {key.decode(): text.decode() for key, text in (footer.metadata or {}).items()}
        if ENVIRONMENT_KEY not in stated or footer.num_row_groups != 1:
            raise CorruptFile(f"{path} does not name its environment: no file of a sealer's")
        self.rows: int = footer.num_rows
        self.environment = stated[ENVIRONMENT_KEY]
        self._in_place, self._absent, self._empty = (
            frozenset(stated.get(key, "").split(","))
            for key in (IN_PLACE_KEY, ABSENT_KEY, EMPTY_KEY)
        )
        self._ends: dict[str, NDArray[np.int64]] = {}

    def read(
        self,
        *,
        ranges: Sequence[tuple[int, int]] | None = None,
        fields: Sequence[str] | None = None,
    ) -> Columns:
        """As ``read_rows``. Arrays of one range are views of the file where it is not compressed.

        Raises:
            CorruptFile: a range beyond the rows, or bytes that are no column.
        """
        wanted = [(0, self.rows)] if ranges is None else list(ranges)
        for first, count in wanted:
            if first < 0 or count < 0 or first + count > self.rows:
                raise CorruptFile(f"{self.path} has {self.rows} rows, not {count} from {first} on")
        names = [*scalar_fields(), *array_fields()] if fields is None else list(fields)
        assert {*names} <= {*scalar_fields(), *array_fields()}, names
        with _damage_told(self.path):
            return self._read(names, wanted)

    def _read(self, names: Sequence[str], wanted: Sequence[tuple[int, int]]) -> Columns:
        rows = sum(count for _, count in wanted)
        scalars: dict[str, Sequence[Any]] = {}
        arrays: dict[str, Ragged] = {}
        ready = {arrow.ENVIRONMENT, *self._in_place, *self._absent, *self._empty}
        decoded = self._decoded([name for name in names if name not in ready])
        for name in names:
            if name == arrow.ENVIRONMENT:
                scalars[name] = [self.environment] * rows
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
                somewhere = rows > 0 and (ragged.present is None or bool(ragged.present.any()))
                if name in REQUIRED_ARRAYS or somewhere:
                    arrays[name] = ragged
        return Columns(rows, scalars, arrays)

    def _compare(self, checksum: str) -> None:
        """The whole file: cheap beside what a training step costs."""
        found = digest.checksum(memoryview(self._data))
        if found != checksum:
            raise CorruptFile(
                f"{self.path} has checksum {found}, but its event names {checksum}; "
                "restore the file from a copy"
            )

    def _decoded(self, names: Sequence[str]) -> dict[str, pa.Array]:
        if not names:
            return {}
        stored = [arrow.stored_name(name) for name in names]
        table = self._file.read(columns=stored, use_threads=False)
        return {name: table.column(arrow.stored_name(name)).combine_chunks() for name in names}

    def _rows_in_place(self, name: str, ranges: Sequence[tuple[int, int]]) -> Ragged:
        ends = self._row_ends(_count_of(name))
        values = int(ends[-1])
        dtype = np.dtype(array_fields()[name])
        chunk = self._chunk(name)
        if dtype == np.bool_:
            packed = plain_bytes(self.path, self._data, chunk, -(-values // 8))
            return arrow.rows_taken(ends, lambda a, z: unpacked_bits(packed, a, z), ranges)
        plain = plain_bytes(self.path, self._data, chunk, values * dtype.itemsize).view(dtype)
        return arrow.rows_taken(ends, lambda a, z: plain[a:z], ranges)

    def _row_ends(self, counts: str) -> NDArray[np.int64]:
        """int64 [rows + 1]: where the values of each row end."""
        if counts not in self._ends:
            size = self.rows * np.dtype(np.int32).itemsize
            lengths = plain_bytes(self.path, self._data, self._chunk(counts), size).view(np.int32)
            if (lengths < 0).any():
                raise CorruptFile(f"{self.path}: {counts} is negative somewhere")
            self._ends[counts] = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        return self._ends[counts]

    def _chunk(self, name: str) -> pq.ColumnChunkMetaData:
        group = self._file.metadata.row_group(0)
        first = min(arrow.leaf_index(name), group.num_columns - 1)
        # The newest schema's place first; a file of an older one has it elsewhere.
        for index in (first, *range(group.num_columns)):
            chunk = group.column(index)
            if chunk.path_in_schema.partition(".")[0] == name:
                return chunk
        raise CorruptFile(f"{self.path} has no column {name}, which its footer names")


@contextmanager
def _damage_told(path: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise CorruptFile(f"{path} is no Parquet file, or a damaged one: {error}") from error


def _bytes(blobs: Blobs, path: str) -> pa.Buffer:
    local = blobs.local_path(path)
    if local is None:
        return pa.py_buffer(blobs.read(path))
    try:
        with local.open("rb") as file:
            return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):  # Nothing there, a folder, or empty: the store says what.
        return pa.py_buffer(blobs.read(path))
