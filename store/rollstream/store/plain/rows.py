"""Writes columns as a Parquet file with plain arrays, and returns such arrays as views.

The file holds the table that pyarrow would write. Where it is not compressed, an array that every
row has is one page which ends with its values one after the other. So a reader uses them in place:
reading a row of a mapped file costs what touching its bytes costs.

Source: Apache Parquet format, "Data pages", "Plain encoding", "Delta-length byte array";
``PageHeader`` in Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollstream.schemas.columns import ArraySignature, Columns, Ragged
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
    plain_texts,
    repetition_levels,
)
from rollstream.store.plain.file import Chunk, FileShape, Leaf
from rollstream.store.plain.varint import read_number

# Text columns with few distinct values, which are dictionary-encoded.
REPETITIVE = frozenset(
    {
        *("example_id", "group_uid", "lineage", "rollout_policy_version", "replica_id"),
        *("worker_id", "split", "stop_reason", "actor_policy_version", "group_id"),
    }
)
# Columns with their minimum and maximum in the footer.
FILTERED = frozenset(
    {"example_id", "rollout_policy_version", "weight_step", "created_ts", "reward"}
)
_LAYOUTS_KEPT = 64


def plain_file(
    columns: Columns,
    provenance: Mapping[str, Any],
    metadata: Mapping[str, str],
    compression: str = "none",
) -> Pieces:
    """A file with one row or more. Equal arguments give equal bytes.

    ``provenance`` holds the columns that follow those of a segment, one value a row; ``metadata``
    is in the footer.
    """
    rows = _Rows(columns, provenance)
    odd = {name: len(values) for name, values in rows.stored.items() if len(values) != rows.rows}
    assert not odd, f"columns of {odd} rows instead of {rows.rows}"
    shape, writers = _layout(arrow.signatures_of(columns))
    chunks = [write(rows) for write in writers]
    return shape.file_pieces(chunks, columns.rows, metadata, compression)


class _Rows:
    """The rows to write. Levels are computed once for arrays of equal lengths."""

    def __init__(self, columns: Columns, provenance: Mapping[str, Any]) -> None:
        self.columns = columns
        self.rows = columns.rows
        self.stored: dict[str, Any] = {
            arrow.stored_name(name): values for name, values in columns.scalars.items()
        }
        self.stored.update(provenance)
        self._repetition: dict[bytes, Levels] = {}
        self._definition: dict[tuple[bytes, bytes, int], bytes] = {}

    def levels_of(
        self, offsets: NDArray[np.int64], present: NDArray[np.bool_] | None, depth: int
    ) -> Levels:
        assert len(offsets) == self.rows + 1, len(offsets)
        ends, mask = offsets.tobytes(), b"" if present is None else present.tobytes()
        repetition = self._repetition.get(ends)
        definition = self._definition.get((ends, mask, depth))
        if repetition is None or definition is None:
            lengths = np.diff(offsets)
            repetition = repetition or repetition_levels(lengths)
            definition = definition or definition_levels(lengths, present, depth)
            self._repetition[ends] = repetition
            self._definition[ends, mask, depth] = definition
        return Levels(repetition.encoded + definition, repetition.slots)


_Writer = Callable[[_Rows], Chunk]
_LeafWriter = Callable[[Leaf, _Rows], Chunk]


@lru_cache(_LAYOUTS_KEPT)
def _layout(token_arrays: arrow.Signatures) -> tuple[FileShape, list[_Writer]]:
    """The shape of files with these named arrays, and a writer for each leaf column."""
    shape = FileShape.of(arrow.rows_schema(token_arrays))
    special: dict[str, _LeafWriter] = {"rewards": _components, "attachments": _attachments}
    special |= {name: partial(_array, dtype) for name, dtype in array_fields().items()}
    for name, signature in token_arrays:
        write = partial(_token_array, name, signature)
        special[arrow.TOKEN_ARRAY_PREFIX + name] = write
    return shape, [partial(special.get(leaf.field, _scalar), leaf) for leaf in shape.leaves]


def _scalar(leaf: Leaf, rows: _Rows) -> Chunk:
    values, statistics = rows.stored[leaf.field], leaf.field in FILTERED
    if leaf.text:
        write_text = file.dictionary_chunk if leaf.field in REPETITIVE else file.text_chunk
        return write_text(values, statistics=statistics)
    write = file.optional_number_chunk if leaf.definition else file.number_chunk
    return write(values, statistics=statistics)


def _absent(leaf: Leaf, rows: _Rows) -> Chunk:
    return file.absent_chunk(rows.rows)


def _array(dtype: str, leaf: Leaf, rows: _Rows) -> Chunk:
    ragged = rows.columns.arrays.get(leaf.field)
    if ragged is None:
        return _absent(leaf, rows)
    assert ragged.values.dtype == dtype, (leaf.field, ragged.values.dtype)
    return _list(ragged, leaf, rows)


def _list(ragged: Ragged, leaf: Leaf, rows: _Rows) -> Chunk:
    levels = rows.levels_of(ragged.offsets, ragged.present, leaf.definition)
    return file.list_chunk(levels, ragged.values)


def _token_array(name: str, signature: ArraySignature, leaf: Leaf, rows: _Rows) -> Chunk:
    ragged = rows.columns.token_arrays[name]
    if leaf.inside:
        return _list(ragged, leaf, rows)
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
    levels = rows.levels_of(components.offsets, None, leaf.definition)
    names, indexes = components.names, components.indexes
    if not leaf.text:
        return file.list_chunk(levels, components.values)
    if len(names) <= DISTINCT_MAX:
        return file.coded_chunk(levels, coded(names, indexes))
    texts = [names[index] for index in indexes.tolist()]
    return Chunk((levels.encoded, plain_texts(texts)), levels.slots)


def _attachments(leaf: Leaf, rows: _Rows) -> Chunk:
    """The names, or the bytes, of the attachments."""
    attachments = rows.columns.attachments
    if attachments is None or not any(attachments):
        return _absent(leaf, rows)
    offsets = arrow.ends_of(np.fromiter(map(len, attachments), np.int64, rows.rows))
    levels = rows.levels_of(offsets, None, leaf.definition)
    if leaf.text:
        names = list(chain.from_iterable(attachments))
        return Chunk((levels.encoded, plain_texts(names)), levels.slots)
    data = [value for row in attachments for value in row.values()]
    lengths = np.fromiter(map(len, data), np.int64, len(data))
    return file.binary_chunk(levels, lengths, b"".join(data))


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
