"""Reads columns of one row file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollstream.schemas.columns import ArraySignature, Columns, Ragged
from rollstream.schemas.fields import REQUIRED_ARRAYS, array_fields, scalar_fields
from rollstream.store import arrow
from rollstream.store.arrow import TOKEN_ARRAY_PREFIX, Signatures
from rollstream.store.errors import CorruptFile
from rollstream.store.footer import Stated
from rollstream.store.plain.file import leaves_of
from rollstream.store.plain.rows import plain_bytes, unpacked_bits

Ranges = Sequence[tuple[int, int]]
"""(first row, number of rows) pairs."""
_SCHEMAS_KEPT = 64


class RowFile:
    """An open file with its footer. Methods raise what pyarrow raises on damaged bytes, and
    CorruptFile.

    Attributes:
        rows: how many.
        token_arrays: the named arrays that at least one row has.
    """

    def __init__(self, path: str, data: pa.Buffer) -> None:
        self._path, self._data = path, data
        self._file = pq.ParquetFile(pa.BufferReader(data))
        self._footer = self._file.metadata
        self._stated = Stated.of(self._footer.metadata)
        if self._stated.environment is None or self._footer.num_row_groups != 1:
            raise CorruptFile(f"{path} does not name its environment: a sealer did not write it")
        self.rows: int = self._footer.num_rows
        self.token_arrays = dict(self._stated.token_arrays)
        self._ends: dict[str, NDArray[np.int64]] = {}

    def read(self, names: Sequence[str], token_arrays: Sequence[str], ranges: Ranges) -> Columns:
        """The fields of these names, and these named arrays, of the rows of the ranges."""
        rows = sum(count for _, count in ranges)
        signatures = {
            **{n: ArraySignature(dtype, ()) for n, dtype in array_fields().items() if n in names},
            **{
                TOKEN_ARRAY_PREFIX + n: s for n, s in self.token_arrays.items() if n in token_arrays
            },
        }
        stored = [arrow.stored_name(name) for name in names if name not in signatures]
        decoded = self._decoded([*stored, *signatures], ranges)
        scalars: dict[str, Any] = {}
        for field in scalar_fields():
            if field.name == arrow.ENVIRONMENT and field.name in names:
                scalars[field.name] = [self._stated.environment] * rows
            elif field.name in names:
                scalars[field.name] = arrow.scalars_of(decoded[arrow.stored_name(field.name)])
        arrays: dict[str, Ragged] = {}
        for name, signature in signatures.items():
            ragged = self._array(name, signature, decoded.get(name), ranges)
            if ragged is not None:
                arrays[name] = ragged
        return Columns(
            rows,
            scalars,
            {name: ragged for name, ragged in arrays.items() if name in array_fields()},
            {
                name.removeprefix(TOKEN_ARRAY_PREFIX): ragged
                for name, ragged in arrays.items()
                if name not in array_fields()
            },
            arrow.components_of(decoded["rewards"]) if "rewards" in decoded else None,
            arrow.attachments_of(decoded["attachments"]) if "attachments" in decoded else None,
        )

    def _array(
        self, name: str, signature: ArraySignature, decoded: pa.Array | None, ranges: Ranges
    ) -> Ragged | None:
        """One array; None where no row has it."""
        if name in self._stated.absent:
            return None
        if decoded is None:
            ragged = self._rows_in_place(name, signature, ranges)
        elif pa.types.is_list(decoded.type):
            ragged = arrow.ragged_of(decoded)
        else:
            counts = self._decoded(["token_count"], ranges)["token_count"]
            ragged = arrow.ragged_of_binary(decoded, signature, counts.to_numpy())
        some_row = len(ragged.offsets) > 1 and (ragged.present is None or ragged.present.any())
        return ragged if some_row or name in REQUIRED_ARRAYS else None

    def _decoded(self, names: Sequence[str], ranges: Ranges) -> dict[str, pa.Array]:
        """What is neither absent nor in place, by column, as pyarrow reads it."""
        elsewhere = {arrow.ENVIRONMENT, *self._stated.in_place, *self._stated.absent}
        stored = [name for name in names if name not in elsewhere]
        if not stored:
            return {}
        table = self._file.read(columns=stored, use_threads=False)
        schema = arrow.rows_schema(self._stated.token_arrays)
        columns = {}
        for name in stored:
            found, expected = table.field(name).type, schema.field(name).type
            if found != expected:
                raise CorruptFile(f"{self._path}: column {name} is {found} instead of {expected}")
            columns[name] = _rows_of(table.column(name).combine_chunks(), ranges)
        return columns

    def _rows_in_place(self, name: str, signature: ArraySignature, ranges: Ranges) -> Ragged:
        ends = self._row_ends("prompt_count" if name == "prompt_tokens" else "token_count")
        total = int(ends[-1])
        chunk = self._chunk(name)
        if signature.dtype == "|b1" and name in array_fields():
            packed = plain_bytes(self._path, self._data, chunk, -(-total // 8))
            pieces = [unpacked_bits(packed, *_span(ends, span)) for span in ranges]
        else:
            size = total * arrow.token_bytes(signature)
            raw = plain_bytes(self._path, self._data, chunk, size)
            values = arrow.tokens_of(raw, signature, total)
            pieces = [values[slice(*_span(ends, span))] for span in ranges] or [values[:0]]
        lengths = [np.diff(ends[first : first + count + 1]) for first, count in ranges]
        offsets = arrow.ends_of(_joined(lengths or [ends[:0]]))
        return Ragged(_joined(pieces or [np.empty(0, np.bool_)]), offsets)

    def _row_ends(self, counts: str) -> NDArray[np.int64]:
        """int64 [rows + 1]: the values of row ``i`` are those from ``[i]`` to ``[i + 1]``."""
        if counts not in self._ends:
            size = self.rows * np.dtype(np.int32).itemsize
            lengths = plain_bytes(self._path, self._data, self._chunk(counts), size).view(np.int32)
            if (lengths < 0).any():
                raise CorruptFile(f"{self._path}: {counts} is negative somewhere")
            self._ends[counts] = arrow.ends_of(lengths)
        return self._ends[counts]

    def _chunk(self, name: str) -> pq.ColumnChunkMetaData:
        group = self._footer.row_group(0)
        first = _leaf_indexes(self._stated.token_arrays).get(name, 0)
        # Where the schema has it; another version's file may have it elsewhere.
        for index in (min(first, group.num_columns - 1), *range(group.num_columns)):
            chunk = group.column(index)
            if chunk.path_in_schema in (name, f"{name}.list.element"):
                return chunk
        raise CorruptFile(f"{self._path} has no column {name}, which its footer names")


@lru_cache(_SCHEMAS_KEPT)
def _leaf_indexes(token_arrays: Signatures) -> Mapping[str, int]:
    """The index of each column's first leaf."""
    indexes, at = {}, 0
    for field in arrow.rows_schema(token_arrays):
        indexes[field.name] = at
        at += leaves_of(field.type)
    return indexes


def _rows_of(column: pa.Array, ranges: Ranges) -> pa.Array:
    """The rows of the ranges: a view for one range, else a copy."""
    parts = [column.slice(first, count) for first, count in ranges] or [column.slice(0, 0)]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _span(ends: NDArray[np.int64], rows: tuple[int, int]) -> tuple[int, int]:
    first, count = rows
    return int(ends[first]), int(ends[first + count])


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
