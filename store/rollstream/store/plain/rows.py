"""Writes columns as a Parquet file with plain arrays, and returns such arrays as views.

The file holds the same table as pyarrow writes (``arrow.to_table``), for rows without attachments.
An array that every row has is one uncompressed page, which ends with its values one after the
other. So a reader uses them in place: reading a row of a mapped file costs what touching its bytes
costs.

Source: Apache Parquet format, "Data pages", "Plain encoding", "Delta-length byte array";
``PageHeader`` in Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollstream.schemas.columns import ArraySignature, Columns, Components, Ragged
from rollstream.schemas.fields import array_fields
from rollstream.store import arrow
from rollstream.store.blobs import Pieces
from rollstream.store.errors import CorruptFile
from rollstream.store.plain import file
from rollstream.store.plain.encoding import (
    DISTINCT_MAX,
    Levels,
    coded,
    definition_levels,
    optional_levels,
    repetition_levels,
)
from rollstream.store.plain.file import Chunk, FileShape, Leaf
from rollstream.store.plain.varint import read_number

_NUMBERS = ("BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE")
_LAYOUTS_KEPT = 64


class Hints(NamedTuple):
    """How columns, by their names, are stored for readers."""

    repetitive: Collection[str]  # Text columns with few distinct values: dictionary-encoded.
    filtered: Collection[str]  # Columns with their minimum and maximum in the footer.


def plain_file(
    columns: Columns, provenance: Mapping[str, Any], metadata: Mapping[str, str], hints: Hints
) -> Pieces | None:
    """A file with one row or more; None where pyarrow writes it: a row has attachments. Equal
    arguments give equal bytes.

    ``provenance`` holds the columns that follow those of a segment, one value a row; ``metadata``
    is in the footer.
    """
    layout = _layout(arrow.signatures_of(columns))
    components = columns.rewards
    if layout is None or columns.attachments is not None:
        return None
    if components is not None and len(components.names) > DISTINCT_MAX:
        return None
    rows = _Rows(columns, provenance, hints)
    odd = {name: len(values) for name, values in rows.stored.items() if len(values) != rows.rows}
    assert not odd, f"columns of {odd} rows instead of {rows.rows}"
    shape, writers = layout
    return shape.file_pieces([write(rows) for write in writers], columns.rows, metadata)


class _Rows:
    """The rows to write. Levels are computed once for arrays of equal lengths."""

    def __init__(self, columns: Columns, provenance: Mapping[str, Any], hints: Hints) -> None:
        self.columns = columns
        self.rows = columns.rows
        self.hints = hints
        self.stored: dict[str, Any] = {
            arrow.stored_name(name): values for name, values in columns.scalars.items()
        }
        self.stored.update(provenance)
        self._repetition: dict[bytes, Levels] = {}
        self._definition: dict[tuple[bytes, bytes, int], bytes] = {}

    def levels_of(self, of: Ragged | Components, depth: int) -> Levels:
        assert len(of.offsets) == self.rows + 1, len(of.offsets)
        present = of.present if isinstance(of, Ragged) else None
        ends, mask = of.offsets.tobytes(), b"" if present is None else present.tobytes()
        repetition = self._repetition.get(ends)
        definition = self._definition.get((ends, mask, depth))
        if repetition is None or definition is None:
            lengths = np.diff(of.offsets)
            repetition = repetition or repetition_levels(lengths)
            definition = definition or definition_levels(lengths, present, depth)
            self._repetition[ends] = repetition
            self._definition[ends, mask, depth] = definition
        return Levels(repetition.encoded + definition, repetition.slots)


_Writer = Callable[[_Rows], Chunk]
_LeafWriter = Callable[[Leaf, _Rows], Chunk]


@lru_cache(_LAYOUTS_KEPT)
def _layout(token_arrays: arrow.Signatures) -> tuple[FileShape, list[_Writer]] | None:
    """The shape of files with these named arrays, and a writer for each leaf column; None where the
    schema has a column without a writer here, so that pyarrow writes such files."""
    shape = FileShape.of(arrow.rows_schema(token_arrays))
    if shape is None:
        return None
    special: dict[str, _LeafWriter] = {"rewards": _components, "attachments": _absent}
    special |= {name: partial(_array, dtype) for name, dtype in array_fields().items()}
    for name, signature in token_arrays:
        write = partial(_token_array, name, signature)
        special[arrow.TOKEN_ARRAY_PREFIX + name] = write
    known = [leaf.field in special or _is_scalar(leaf) for leaf in shape.leaves]
    writers: list[_Writer] = [
        partial(special.get(leaf.field, _scalar), leaf) for leaf in shape.leaves
    ]
    return (shape, writers) if all(known) else None


def _is_scalar(leaf: Leaf) -> bool:
    if leaf.inside:
        return False
    return not leaf.definition if leaf.text else leaf.physical in _NUMBERS


def _scalar(leaf: Leaf, rows: _Rows) -> Chunk:
    name, values = leaf.field, rows.stored[leaf.field]
    statistics = name in rows.hints.filtered
    if not leaf.text:
        write = file.optional_number_chunk if leaf.definition else file.number_chunk
        return write(values, statistics=statistics)
    write_text = file.dictionary_chunk if name in rows.hints.repetitive else file.text_chunk
    return write_text(values, statistics=statistics)


def _absent(leaf: Leaf, rows: _Rows) -> Chunk:
    return file.absent_chunk(rows.rows)


def _array(dtype: str, leaf: Leaf, rows: _Rows) -> Chunk:
    ragged = rows.columns.arrays.get(leaf.field)
    if ragged is None:
        return _absent(leaf, rows)
    assert ragged.values.dtype == dtype, (leaf.field, ragged.values.dtype)
    return file.list_chunk(rows.levels_of(ragged, leaf.definition), ragged.values)


def _token_array(name: str, signature: ArraySignature, leaf: Leaf, rows: _Rows) -> Chunk:
    ragged = rows.columns.token_arrays[name]
    if leaf.inside:
        return file.list_chunk(rows.levels_of(ragged, leaf.definition), ragged.values)
    lengths = np.diff(ragged.offsets) * arrow.token_bytes(signature)
    present = ragged.present
    if present is None:
        present = np.ones(rows.rows, np.bool_)
    levels = optional_levels(present)
    return file.binary_chunk(levels, lengths[present], arrow.raw_bytes(ragged.values))


def _components(leaf: Leaf, rows: _Rows) -> Chunk:
    """The names, or the values, of the rewards."""
    components = rows.columns.rewards
    if components is None:
        return _absent(leaf, rows)
    levels = rows.levels_of(components, leaf.definition)
    if leaf.text:
        return file.coded_chunk(levels, coded(components.names, components.indexes))
    return file.list_chunk(levels, components.values)


# PageHeader: 1 type (data page), 2 and 3 the size before and after compression, 5 DataPageHeader (1
# values, 2 encoding).
_DATA_PAGE, _OF_PAGE = b"\x15\x00\x15", b"\x2c\x15"
_ENCODINGS = (b"\x15\x00", b"\x15\x0c")  # Plain, or delta-length: both end with the values.
_HEADER_BYTES_MAX = 64  # Of a page without statistics.


def plain_bytes(
    path: str, data: pa.Buffer, chunk: pq.ColumnChunkMetaData, size: int
) -> NDArray[np.uint8]:
    """The values of a chunk that is one uncompressed page: its last ``size`` bytes, as a view of
    ``data``, the file at ``path``.

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
    """Bytes after the header of an uncompressed page; None where it is another kind of page.

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
    return after if head.startswith(_ENCODINGS, at) else None
