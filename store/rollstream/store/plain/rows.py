"""Writes columns as a Parquet file with plain arrays, and returns such arrays as views.

The file holds the same table as pyarrow writes (``arrow.to_table``), for rows without attachments
and token arrays. An array that every row has is one plain, uncompressed page, which ends with its
values one after the other. So a reader uses them in place: reading a row of a mapped file costs
what touching its bytes costs.

Source: Apache Parquet format, "Data pages", "Plain encoding"; ``PageHeader`` in Thrift's compact
protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollstream.schemas.columns import Columns, Ragged, array_fields, collection_fields
from rollstream.store import arrow
from rollstream.store.errors import CorruptFile
from rollstream.store.plain import file
from rollstream.store.plain.encoding import TYPECODES, Levels, list_levels
from rollstream.store.plain.file import Chunk, FileShape, Leaf
from rollstream.store.plain.varint import read_number

_ARRAY_TYPES = {"|b1": "BOOLEAN", "<i4": "INT32", "<i8": "INT64", "<f4": "FLOAT", "<f8": "DOUBLE"}
_SIDES: Mapping[str, Callable[[Any], Any]] = {
    "key_value.key": dict.keys,
    "key_value.value": dict.values,
}
_MAP_DEPTH = 1  # The definition level of a value in a map that is never null.


class Hints(NamedTuple):
    """How columns, by their names, are stored for readers."""

    repetitive: Collection[str]  # Text columns with few distinct values: dictionary-encoded.
    filtered: Collection[str]  # Columns with their minimum and maximum in the footer.


def plain_file(
    columns: Columns,
    provenance: Mapping[str, Sequence[Any]],
    metadata: Mapping[str, str],
    hints: Hints,
) -> bytes | None:
    """The bytes of a file with one row or more; None where a row has attachments or token arrays,
    which pyarrow writes. Equal arguments give equal bytes.

    ``provenance`` holds the columns that follow those of the ``rollout`` schema, one value a row;
    ``metadata`` is in the footer.
    """
    layout = _shape_and_writers()
    if layout is None or any(any(columns.scalars[name]) for name in _nested()):
        return None
    rows = _Rows(columns, provenance, hints)
    odd = {name: len(values) for name, values in rows.stored.items() if len(values) != rows.rows}
    assert not odd, f"columns of {odd} rows instead of {rows.rows}"
    shape, writers = layout
    return shape.file_bytes([write(rows) for write in writers], columns.rows, metadata)


class _Rows:
    """The rows to write. Levels are computed once for arrays of equal lengths."""

    def __init__(
        self, columns: Columns, provenance: Mapping[str, Sequence[Any]], hints: Hints
    ) -> None:
        self.rows = columns.rows
        self.arrays = columns.arrays
        self.hints = hints
        self.stored = {arrow.stored_name(name): v for name, v in columns.scalars.items()}
        self.stored.update(provenance)
        self._levels: dict[tuple[bytes, bytes, int], Levels] = {}

    def levels_of(self, ragged: Ragged, depth: int) -> Levels:
        present = b"" if ragged.present is None else ragged.present.tobytes()
        key = (ragged.offsets.tobytes(), present, depth)
        if key not in self._levels:
            lengths = np.diff(ragged.offsets)
            self._levels[key] = list_levels(lengths, ragged.present, depth)
        return self._levels[key]


_Writer = Callable[[_Rows], Chunk]


@cache
def _shape_and_writers() -> tuple[FileShape, list[_Writer]] | None:
    """The shape of every file, with a writer for each leaf column; None where the schema has a
    column without a writer here, so that pyarrow writes all files."""
    shape = FileShape.of(arrow.rows_schema())
    if shape is None:
        return None
    writers = [writer for leaf in shape.leaves if (writer := _writer_of(leaf)) is not None]
    return (shape, writers) if len(writers) == len(shape.leaves) else None


@cache
def _nested() -> tuple[str, ...]:
    """Fields with lists of records, which must be empty in rows that are written here."""
    return tuple(name for name, empty in collection_fields().items() if empty is list)


def _writer_of(leaf: Leaf) -> _Writer | None:
    name, _, inner = leaf.path.partition(".")
    if name in array_fields():
        known = _ARRAY_TYPES.get(array_fields()[name]) == leaf.physical
        return partial(_list, name, leaf.definition) if known else None
    if name in _nested():
        return _absent
    number = leaf.physical in TYPECODES or leaf.physical == "BOOLEAN"
    if not (number or leaf.text):
        return None
    if inner:
        side = _SIDES.get(inner) if leaf.definition == _MAP_DEPTH else None
        return partial(_map, name, leaf.physical, side) if side is not None else None
    if leaf.definition:
        return partial(_optional, name, leaf.physical)
    return partial(_text, name) if leaf.text else partial(_number, name, leaf.physical)


def _absent(rows: _Rows) -> Chunk:
    return file.absent_chunk(rows.rows)


def _list(name: str, depth: int, rows: _Rows) -> Chunk:
    ragged = rows.arrays.get(name)
    if ragged is None:
        return _absent(rows)
    assert len(ragged.offsets) == rows.rows + 1, (name, len(ragged.offsets))
    assert ragged.values.dtype == array_fields()[name], (name, ragged.values.dtype)
    return file.list_chunk(rows.levels_of(ragged, depth), ragged.values)


def _map(name: str, physical: str, side: Callable[[Any], Any], rows: _Rows) -> Chunk:
    """The keys, or the values, of a map."""
    values = rows.stored[name]
    if not any(values):
        return _absent(rows)
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    inside = list(chain.from_iterable(map(side, values)))
    return file.map_chunk(list_levels(sizes, None, _MAP_DEPTH), inside, physical)


def _optional(name: str, physical: str, rows: _Rows) -> Chunk:
    return file.optional_chunk(rows.stored[name], physical, statistics=name in rows.hints.filtered)


def _number(name: str, physical: str, rows: _Rows) -> Chunk:
    return file.scalar_chunk(rows.stored[name], physical, statistics=name in rows.hints.filtered)


def _text(name: str, rows: _Rows) -> Chunk:
    statistics = name in rows.hints.filtered
    if name in rows.hints.repetitive:
        return file.dictionary_chunk(rows.stored[name], statistics=statistics)
    return file.scalar_chunk(rows.stored[name], "BYTE_ARRAY", statistics=statistics)


# PageHeader: 1 type (data page), 2 and 3 the size before and after compression, 5 DataPageHeader (1
# values, 2 encoding).
_DATA_PAGE, _OF_PAGE, _IS_PLAIN = b"\x15\x00\x15", b"\x2c\x15", b"\x15\x00"
_HEADER_BYTES_MAX = 64  # Of a page without statistics.


def plain_bytes(
    path: str, data: pa.Buffer, chunk: pq.ColumnChunkMetaData, size: int
) -> NDArray[np.uint8]:
    """The values of a chunk that is one plain page: its last ``size`` bytes, as a view of ``data``,
    the file at ``path``.

    Raises:
        CorruptFile: the chunk is not such a page, or the file ends before it does.
    """
    start = chunk.data_page_offset
    end = start + chunk.total_compressed_size
    if not 0 <= start <= end <= data.size:
        raise CorruptFile(f"{path}: a column from byte {start} to {end} of {data.size}")
    head = data.slice(start, min(_HEADER_BYTES_MAX, end - start)).to_pybytes()
    page = _plain_page_bytes(head.ljust(_HEADER_BYTES_MAX, b"\x00"))
    if page is not None and size <= page and 0 < end - start - page <= _HEADER_BYTES_MAX:
        return np.frombuffer(data.slice(end - size, size), np.uint8)
    raise CorruptFile(f"{path}: column {chunk.path_in_schema} is no plain page with {size} bytes")


def unpacked_bits(packed: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.bool_]:
    """Booleans ``start`` to ``stop`` of a plain page of bits; a copy."""
    bits = np.unpackbits(packed[start // 8 : -(-stop // 8)], bitorder="little")
    return bits[start % 8 :][: stop - start].view(np.bool_)


def _plain_page_bytes(head: bytes) -> int | None:
    """Bytes after the header of a plain, uncompressed page; None where it is another kind of page.

    Equal sizes show that it is uncompressed: to ask pyarrow for the codec ends the process where
    a damaged footer names one that it does not know.
    """
    if not head.startswith(_DATA_PAGE):
        return None
    before, at = read_number(head, len(_DATA_PAGE))
    after, at = read_number(head, at + 1)
    if before != after or not head.startswith(_OF_PAGE, at):
        return None
    _, at = read_number(head, at + len(_OF_PAGE))
    return after if head.startswith(_IS_PLAIN, at) else None
