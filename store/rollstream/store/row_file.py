"""Reads columns of one row file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import rollstream
from rollstream.schemas.columns import ArraySignature, Columns, Ragged, offsets_of
from rollstream.schemas.fields import REQUIRED_ARRAYS, SCHEMA, RowField, fields_of, row_fields
from rollstream.schemas.wire_schemas import WireSchema, shipped
from rollstream.store import arrow
from rollstream.store.arrow import TOKEN_ARRAY_PREFIX
from rollstream.store.errors import CorruptFile, NewerFile
from rollstream.store.footer import Stated
from rollstream.store.plain.file import MAGIC, Layout
from rollstream.store.plain.rows import chunk_indexes

Ranges = Sequence[tuple[int, int]]
"""(first row, number of rows) pairs."""


class RowFile:
    """An open file with its footer. Methods raise what pyarrow raises on damaged bytes, and
    CorruptFile.

    Attributes:
        rows: how many.
        token_arrays: the named arrays that at least one row has.
        version: of ``ingest_record``, whose fields the rows have.
    """

    def __init__(self, path: str, data: pa.Buffer) -> None:
        self._path, self._data = path, data
        layout = Layout.of(memoryview(data)) or self._layout_by_pyarrow()
        stated = Stated.of(layout.metadata)
        if not stated.environment:
            raise CorruptFile(f"{path} does not name its environment: a sealer did not write it")
        self.version = version_of(path, stated)
        self._fields = fields_of(self.version)
        self.rows = layout.rows
        self.token_arrays = dict(stated.token_arrays)
        self._environment = stated.environment
        self._schema = arrow.rows_schema(stated.token_arrays, self.version)
        # Another tool that wrote the file anew kept the metadata, but not the layout of pages.
        plain = layout.ends and stated.compression == "none"
        self._in_place = stated.in_place if plain else ()
        self._absent = stated.absent if layout.ends else ()
        self._chunk_ends = (len(MAGIC), *layout.ends)
        self._chunks = chunk_indexes(stated.token_arrays, self.version)
        self._ends: dict[str, NDArray[np.int64]] = {}

    @property
    def removed_fields(self) -> list[str]:
        """Names of the fields that the newest version has no more."""
        return [name for name in self._fields if name not in row_fields()]

    @cached_property
    def _file(self) -> pq.ParquetFile:
        # Most batches need none of the columns that pyarrow reads, and it takes 0.2 ms to open.
        return pq.ParquetFile(pa.BufferReader(self._data))

    def _layout_by_pyarrow(self) -> Layout:
        footer = self._file.metadata
        size = sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
        if footer.num_rows > size:  # pyarrow makes room for all that a footer claims.
            raise CorruptFile(f"{self._path} claims {footer.num_rows} rows in {size} bytes")
        return Layout(footer.num_rows, (), (), b"", footer.metadata or {})

    def read(self, names: Sequence[str], token_arrays: Sequence[str], ranges: Ranges) -> Columns:
        """The fields of these names, and these named arrays, of the rows of the ranges."""
        added = [row_fields()[name] for name in names if name not in self._fields]
        fields = [self._fields[name] for name in names if name in self._fields]
        fields = [field for field in fields if field.written not in self._absent]
        names = [field.name for field in fields]
        arrays = [field for field in fields if field.column == "array"]
        named = {n: self.token_arrays[n] for n in self.token_arrays if n in token_arrays}
        columns = [arrow.stored_name(f) for f in fields if f.column != "token_arrays"]
        columns += map(TOKEN_ARRAY_PREFIX.__add__, named)
        if not {*columns} - {arrow.ENVIRONMENT}:
            columns.append("token_count")  # Only what is read tells how many rows there are.
        decoded = self._decoded(columns, ranges)
        rows = sum(count for _, count in ranges)
        scalars: dict[str, Any] = {}
        for field in fields:
            if field.column in arrow.SCALARS and field.name != arrow.ENVIRONMENT:
                scalars[field.name] = arrow.scalars_of(decoded[arrow.stored_name(field)])
        found = {
            f.name: self._array(f.written, ArraySignature(f.dtype, ()), decoded, ranges)
            for f in arrays
        }
        extra = {
            name: self._array(TOKEN_ARRAY_PREFIX + name, named[name], decoded, ranges)
            for name in named
        }
        # What is made for each row comes last: by now the number of rows is what the file holds.
        if arrow.ENVIRONMENT in names:
            scalars[arrow.ENVIRONMENT] = [self._environment] * rows
        for field in added:
            if field.column in arrow.SCALARS:
                scalars[field.name] = defaults_of(field, rows)
        return Columns(
            rows,
            scalars,
            {n: r for n, r in found.items() if n in REQUIRED_ARRAYS or some_row(r)},
            {n: r for n, r in extra.items() if some_row(r)},
            arrow.components_of(decoded["rewards"]) if "rewards" in decoded else None,
            arrow.attachments_of(decoded["attachments"]) if "attachments" in decoded else None,
        )

    def _array(
        self,
        column: str,
        signature: ArraySignature,
        decoded: dict[str, pa.Array],
        ranges: Ranges,
    ) -> Ragged:
        if column in self._in_place:
            return self._rows_in_place(column, signature, ranges)
        if pa.types.is_list(decoded[column].type):
            return arrow.ragged_of(decoded[column])
        counts = self._decoded(["token_count"], ranges)["token_count"].to_numpy()
        return arrow.ragged_of_binary(decoded[column], signature, counts)

    def _decoded(self, columns: Sequence[str], ranges: Ranges) -> dict[str, pa.Array]:
        """What pyarrow reads of these columns: those in the file that are not read in place."""
        elsewhere = {arrow.ENVIRONMENT, *self._in_place}
        stored = [column for column in columns if column not in elsewhere]
        if not stored:
            return {}
        table = self._file.read(columns=stored, use_threads=False)
        if table.num_rows != self.rows:
            raise CorruptFile(
                f"{self._path}: its footer says {self.rows} rows, and it holds {table.num_rows}"
            )
        found = {}
        for name in stored:
            kind, expected = table.field(name).type, self._schema.field(name).type
            if kind != expected:
                raise CorruptFile(f"{self._path}: column {name} is {kind} instead of {expected}")
            found[name] = _rows_of(table.column(name).combine_chunks(), ranges)
        return found

    def _rows_in_place(self, column: str, signature: ArraySignature, ranges: Ranges) -> Ragged:
        ends = self._row_ends(arrow.count_of(column))
        spans = [(int(ends[first]), int(ends[first + count])) for first, count in ranges]
        total = int(ends[-1])
        if signature.dtype == "|b1" and not column.startswith(TOKEN_ARRAY_PREFIX):
            packed = self._values_of(column, -(-total // 8))
            pieces = [unpacked_bits(packed, *span) for span in spans]
        else:
            raw = self._values_of(column, total * arrow.token_bytes(signature))
            values = arrow.tokens_of(raw, signature, total)
            pieces = [values[start:stop] for start, stop in spans]
        if len(ranges) == 1:
            first, count = ranges[0]
            offsets = ends[first : first + count + 1]
            if count == self.rows:
                return Ragged(pieces[0], offsets)
            return Ragged(pieces[0].copy(), offsets - offsets[0])  # Not all is held for a part.
        lengths = [np.diff(ends[first : first + count + 1]) for first, count in ranges]
        return Ragged(_joined(pieces), offsets_of(_joined(lengths)))

    def _row_ends(self, counts: str) -> NDArray[np.int64]:
        """int64 [rows + 1]: the values of row ``i`` are those from ``[i]`` to ``[i + 1]``."""
        if counts not in self._ends:
            size = self.rows * np.dtype(np.int32).itemsize
            lengths = self._values_of(counts, size).view(np.int32)
            if (lengths < 0).any():
                raise CorruptFile(f"{self._path}: {counts} is negative somewhere")
            self._ends[counts] = offsets_of(lengths)
        return self._ends[counts]

    def _values_of(self, column: str, size: int) -> NDArray[np.uint8]:
        """The last ``size`` bytes of a column's chunk, a view of the file."""
        *_, index = self._chunks[column]
        first, end = self._chunk_ends[index : index + 2]
        if not 0 <= first <= end - size <= end <= self._data.size:
            raise CorruptFile(
                f"{self._path}: column {column}, of {size} bytes or more, is from byte {first} to "
                f"{end} of {self._data.size}"
            )
        return np.frombuffer(self._data, np.uint8, size, end - size)


def version_of(path: str, stated: Stated) -> WireSchema:
    """Whose fields the rows of a file have; raises NewerFile."""
    for schema in shipped().versions(SCHEMA):
        if schema.version == stated.rows:
            return schema
    raise NewerFile(
        f"{path}: rollstream {stated.version} wrote it, with rows of {SCHEMA}.v{stated.rows}; "
        f"rollstream {rollstream.__version__} cannot read these: upgrade this process to "
        f"{stated.version} or later"
    )


def defaults_of(field: RowField, rows: int) -> list[str] | NDArray[Any]:
    """A scalar column of rows that were written before there was the field."""
    if not field.dtype:
        return [field.default] * rows
    return np.full(rows, np.nan if field.default is None else field.default, field.dtype)


def some_row(ragged: Ragged) -> bool:
    """Whether at least one row has the array."""
    return len(ragged.offsets) > 1 and (ragged.present is None or bool(ragged.present.any()))


def unpacked_bits(packed: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.bool_]:
    """Booleans ``start`` to ``stop`` of packed ones; a copy."""
    bits = np.unpackbits(packed[start // 8 : -(-stop // 8)], bitorder="little")
    return bits[start % 8 :][: stop - start].view(np.bool_)


def _rows_of(column: pa.Array, ranges: Ranges) -> pa.Array:
    """The rows of the ranges: a view for one range, else a copy."""
    parts = [column.slice(first, count) for first, count in ranges]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
