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
from rollstream.store.plain import thrift
from rollstream.store.plain.chunks import PLAIN, RLE, RLE_DICTIONARY, Chunk

CREATED_BY = b"rollstream version 1 (build plain)"
_MAGIC = b"PAR1"
_FOOTER_SIZE_BYTES = 4
_TYPES = {"BOOLEAN": 0, "INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6}
_UNCOMPRESSED = 0
_SHORT_TEXT_MAX = 127  # Its length is one byte.
# FileMetaData: 1 version, 2 schema, 3 rows, 4 row groups, 5 pairs, 6 created by, 7 column orders.
_NO_ROWS = thrift.i64(1, 0) + thrift.list_of(1, thrift.STRUCT, ())
_CREATED_BY_BEHIND_GROUPS = thrift.field(2, thrift.BINARY)


class Leaf(NamedTuple):
    """A column of the file: what holds values, not the lists and records around it.

    Attributes:
        path: names from the field down, joined by dots.
        physical: Parquet's type.
        text: whether it is UTF-8.
        definition: the level of a value; 0: there is always one.
    """

    path: str
    physical: str
    text: bool
    definition: int


class FileShape(NamedTuple):
    """What all files of one schema share.

    Attributes:
        leaves: in the order of the file.
        head: the footer up to the number of rows.
        tail: its last field, and its end.
        fixed: of each leaf's metadata, up to the counts: without and with a dictionary.
    """

    leaves: tuple[Leaf, ...]
    head: bytes
    tail: bytes
    fixed: tuple[tuple[bytes, bytes], ...]

    @classmethod
    def of(cls, schema: pa.Schema) -> FileShape | None:
        """None: pyarrow's footers look otherwise than they did up to now, or a column has a type
        that has no place here."""
        sink = pa.BufferOutputStream()
        pq.ParquetWriter(sink, schema, store_schema=False).close()
        empty = sink.getvalue()
        stored = pq.ParquetFile(pa.BufferReader(empty)).schema
        leaves = tuple(_leaf(stored.column(i)) for i in range(len(stored)))
        around = around_counts(empty.to_pybytes())
        if around is None or not {leaf.physical for leaf in leaves} <= _TYPES.keys():
            return None
        fixed = [
            (_fixed(leaf, PLAIN, RLE), _fixed(leaf, PLAIN, RLE, RLE_DICTIONARY)) for leaf in leaves
        ]
        return cls(leaves, *around, tuple(fixed))

    def file_bytes(self, chunks: Sequence[Chunk], rows: int, metadata: Mapping[str, str]) -> bytes:
        """The whole file.

        Args:
            chunks: one for each leaf.
            rows: one or more.
            metadata: key-value pairs of the footer.
        """
        pieces: list[bytes | memoryview] = [_MAGIC]
        columns: list[bytes] = []
        at = len(_MAGIC)
        for chunk, (plain, with_dictionary) in zip(chunks, self.fixed, strict=True):
            pieces += chunk.pages
            columns.append(_column(chunk, with_dictionary if chunk.dictionary_size else plain, at))
            at += chunk.size
        # RowGroup: 1 columns, 2 bytes in all, 3 rows.
        group = (
            thrift.list_of(1, thrift.STRUCT, columns),
            thrift.i64(1, at - len(_MAGIC)),
            thrift.i64(1, rows),
            thrift.STOP,
        )
        pairs = [
            thrift.binary(1, key.encode()) + thrift.binary(1, value.encode()) + thrift.STOP
            for key, value in metadata.items()
        ]
        footer = b"".join(
            (
                self.head,
                thrift.i64(1, rows),
                thrift.list_of(1, thrift.STRUCT, (b"".join(group),)),
                thrift.list_of(1, thrift.STRUCT, pairs),
                thrift.binary(1, CREATED_BY),
                self.tail,
            )
        )
        size = len(footer).to_bytes(_FOOTER_SIZE_BYTES, "little")
        return b"".join((*pieces, footer, size, _MAGIC))


def _leaf(column: pq.ColumnSchema) -> Leaf:
    return Leaf(
        column.path,
        column.physical_type,
        column.logical_type.type == "STRING",
        column.max_definition_level,
    )


def _fixed(leaf: Leaf, *encodings: int) -> bytes:
    """ColumnChunk up to the counts: 2 an offset that nobody uses, 3 ColumnMetaData (1 type, 2
    encodings, 3 path, 4 codec)."""
    names = [thrift.sized(name.encode()) for name in leaf.path.split(".")]
    return b"".join(
        (
            thrift.i64(2, 0),
            thrift.field(1, thrift.STRUCT),
            thrift.i32(1, _TYPES[leaf.physical]),
            thrift.list_of(1, thrift.I32, [varint(encoding << 1) for encoding in encodings]),
            thrift.list_of(1, thrift.BINARY, names),
            thrift.i32(1, _UNCOMPRESSED),
        )
    )


def _column(chunk: Chunk, fixed: bytes, at: int) -> bytes:
    """ColumnMetaData from the counts on: 5 values, 6 and 7 the size before and after compression, 9
    where data begin, 11 where the dictionary does, 12 statistics."""
    counts = thrift.i64(1, chunk.slots) + thrift.i64(1, chunk.size) * 2
    places = thrift.i64(2, at + chunk.dictionary_size)
    if chunk.dictionary_size:
        places += thrift.i64(2, at)
    if chunk.statistics:
        places += thrift.struct(1 if chunk.dictionary_size else 3, chunk.statistics)
    return b"".join((fixed, counts, places, thrift.STOP, thrift.STOP))


def around_counts(empty: bytes) -> tuple[bytes, bytes] | None:
    """The footer of a file without rows that pyarrow wrote: what stands before the number of rows,
    and what behind the name of who wrote it. None: it is not laid out like that."""
    end = len(empty) - len(_MAGIC) - _FOOTER_SIZE_BYTES
    size = int.from_bytes(empty[end : end + _FOOTER_SIZE_BYTES], "little")
    head, *tails = empty[end - size : end].split(_NO_ROWS)
    if len(tails) != 1 or not tails[0].startswith(_CREATED_BY_BEHIND_GROUPS):
        return None
    name_size = tails[0][1]
    return None if name_size > _SHORT_TEXT_MAX else (head, tails[0][2 + name_size :])
