"""A Parquet file around column chunks: one row group, and the footer that says where they lie.

Which columns there are is said in pyarrow's own words: the schema's bytes are those of an empty
file that pyarrow wrote.

Source: Apache Parquet format, ``parquet.thrift``, ``FileMetaData``, ``RowGroup``, ``ColumnChunk``,
``ColumnMetaData``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rollstream.schemas.varint import varint
from rollstream.store.plain.chunks import Chunk

_MAGIC = b"PAR1"
_ENDS = b"\x00"
_FOOTER_SIZE_BYTES = 4
_STRUCT, _BINARY, _I32 = 12, 8, 5  # Thrift's types of a list's items.
_SHORT_LIST_MAX = 14
# FileMetaData: 3 num_rows and 4 row_groups of a file without rows.
_NO_ROWS = b"\x16\x00\x19\x0c"
_CREATED_BY_AFTER_GROUPS, _CREATED_BY_AFTER_PAIRS = b"\x28", b"\x18"
_PHYSICAL = {"BOOLEAN": 0, "INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6}
_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8


class Leaf(NamedTuple):
    """A column of the file: what holds values, not the lists and records around it.

    Attributes:
        path: names from the field down, joined by dots.
        physical: Parquet's type.
        repeated: whether a row may have several.
        nullable: whether a row may have none.
    """

    path: str
    physical: str
    repeated: bool
    nullable: bool


class FileShape:
    """What all files of one schema share.

    Args:
        schema: of the table that readers see.

    Attributes:
        leaves: in the order of the file.
    """

    def __init__(self, schema: pa.Schema) -> None:
        sink = pa.BufferOutputStream()
        pq.ParquetWriter(sink, schema, store_schema=False).close()
        empty = sink.getvalue()
        stored = pq.ParquetFile(pa.BufferReader(empty)).schema
        self.leaves = tuple(_leaf(stored.column(i)) for i in range(len(stored)))
        self._columns = tuple(
            (_fixed_metadata(leaf, _PLAIN), _fixed_metadata(leaf, _RLE_DICTIONARY))
            for leaf in self.leaves
        )
        self._head, self._tail = _around_counts(empty.to_pybytes())

    def file_bytes(self, chunks: Sequence[Chunk], rows: int, metadata: Mapping[str, str]) -> bytes:
        """The whole file.

        Args:
            chunks: one for each leaf.
            rows: one or more.
            metadata: key-value pairs of the footer, one or more.
        """
        pieces: list[bytes | memoryview] = [_MAGIC]
        columns: list[bytes] = []
        at = len(_MAGIC)
        for chunk, fixed in zip(chunks, self._columns, strict=True):
            pieces += chunk.pages
            columns.append(_column(chunk, fixed, at))
            at += chunk.size
        footer = (
            self._head,
            b"\x16" + varint(rows << 1),
            b"\x19" + _list_head(1, _STRUCT),
            # RowGroup: 1 columns, 2 bytes in all, 3 rows.
            b"\x19" + _list_head(len(columns), _STRUCT),
            *columns,
            b"\x16" + varint(at - len(_MAGIC) << 1) + b"\x16" + varint(rows << 1) + _ENDS,
            b"\x19" + _list_head(len(metadata), _STRUCT),
            *(b"\x18" + _text(key) + b"\x18" + _text(metadata[key]) + _ENDS for key in metadata),
            self._tail,
        )
        size = sum(map(len, footer))
        return b"".join((*pieces, *footer, size.to_bytes(_FOOTER_SIZE_BYTES, "little"), _MAGIC))


def _leaf(column: pq.ColumnSchema) -> Leaf:
    repeated, nullable = column.max_repetition_level > 0, column.max_definition_level > 0
    return Leaf(column.path, column.physical_type, repeated, nullable)


def _around_counts(empty: bytes) -> tuple[bytes, bytes]:
    """The footer of a file without rows: what stands before the counts, and what behind them."""
    end = len(empty) - len(_MAGIC) - _FOOTER_SIZE_BYTES
    size = int.from_bytes(empty[end : end + _FOOTER_SIZE_BYTES], "little")
    head, *tails = empty[end - size : end].split(_NO_ROWS)
    assert len(tails) == 1, "pyarrow's footer of an empty file has its counts in another place"
    (tail,) = tails
    assert tail.startswith(_CREATED_BY_AFTER_GROUPS), "pyarrow's footer has something else there"
    return head, _CREATED_BY_AFTER_PAIRS + tail[1:]


def _column(chunk: Chunk, fixed: tuple[bytes, bytes], at: int) -> bytes:
    """ColumnChunk: 2 an offset that nobody uses, 3 ColumnMetaData (5 values, 6 and 7 the sizes, 9
    where data begin, 11 where the dictionary does, 12 statistics)."""
    size = varint(chunk.size << 1)
    places = b"\x26" + varint((at + chunk.dictionary) << 1)
    if chunk.dictionary:
        places += b"\x26" + varint(at << 1)
    if chunk.statistics:
        places += (b"\x1c" if chunk.dictionary else b"\x3c") + chunk.statistics
    counts = b"\x16" + varint(chunk.slots << 1) + b"\x16" + size + b"\x16" + size
    return b"".join((fixed[chunk.dictionary > 0], counts, places, _ENDS, _ENDS))


def _fixed_metadata(leaf: Leaf, of_values: int) -> bytes:
    """Up to the counts. ColumnMetaData: 1 type, 2 encodings, 3 path, 4 codec (none)."""
    encodings = (_PLAIN, _RLE) if of_values == _PLAIN else (_PLAIN, _RLE, _RLE_DICTIONARY)
    numbers = b"".join(varint(encoding << 1) for encoding in encodings)
    names = leaf.path.split(".")
    return b"".join(
        (
            b"\x26\x00\x1c",  # ColumnChunk: 2, 3.
            b"\x15" + varint(_PHYSICAL[leaf.physical] << 1),
            b"\x19" + _list_head(len(encodings), _I32) + numbers,
            b"\x19" + _list_head(len(names), _BINARY) + b"".join(map(_text, names)),
            b"\x15\x00",
        )
    )


def _list_head(items: int, kind: int) -> bytes:
    if items <= _SHORT_LIST_MAX:
        return bytes((items << 4 | kind,))
    return bytes((0xF0 | kind,)) + varint(items)


def _text(value: str) -> bytes:
    raw = value.encode()
    return varint(len(raw)) + raw
