"""A Parquet file: column chunks, and the footer that names their offsets.

There is one row group, and a chunk is one data page, preceded by a dictionary page where values
repeat. The schema's bytes in the footer are pyarrow's, from an empty file that it wrote.

Source: Apache Parquet format, "Data pages", "Dictionary encoding", "Statistics", and
``parquet.thrift``: ``PageHeader``, ``Statistics``, ``FileMetaData``, ``RowGroup``, ``ColumnChunk``,
``ColumnMetaData``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollstream.store.blobs import Bytes, Pieces
from rollstream.store.plain.encoding import (
    BINARY,
    I32,
    STOP,
    STRUCT,
    Dictionary,
    Levels,
    absent_levels,
    binary,
    delta_lengths,
    dictionary_of,
    field,
    i32,
    i64,
    list_of,
    optional_levels,
    plain_numbers,
    plain_texts,
    sized,
    struct,
)
from rollstream.store.plain.varint import varint

PLAIN, RLE, DELTA_LENGTH, RLE_DICTIONARY = 0, 3, 6, 8  # Parquet's encodings.
CODECS = {"none": (0, None), "lz4": (7, "lz4_raw"), "zstd": (6, "zstd")}
"""Compressions: Parquet's number and pyarrow's name of each."""
_PAGE_BYTES_MAX = 2**31 - 1  # A page's size is an int32; the configuration keeps a flush smaller.
_BOUND_BYTES_MAX = 4_096  # Longer texts are left out of the statistics, as pyarrow does.
_HEADERS_KEPT = 64
# PageHeader: 1 type, 2 and 3 the size before and after compression, 5 DataPageHeader (1 values, 2
# encoding, 3 and 4 how levels are encoded) or 7 DictionaryPageHeader (1 values, 2 encoding).
_DATA_PAGE, _DICTIONARY_PAGE = i32(1, 0), i32(1, 2)
_LEVELS_AS_RUNS = i32(1, RLE) * 2


class Chunk(NamedTuple):
    """A column chunk: one data page, behind a dictionary page where texts repeat."""

    body: tuple[Bytes, ...]  # Levels, then values; large arrays are not copied.
    slots: int  # Number of values, nulls and empty lists.
    encoding: int = PLAIN  # Of the values.
    dictionary: Dictionary | None = None
    statistics: bytes = b""  # The fields of ``Statistics``; empty where there are none.


def absent_chunk(rows: int) -> Chunk:
    """A chunk of lists that are null or empty in each row."""
    levels = absent_levels(rows)
    return Chunk((levels.encoded,), levels.slots)


def number_chunk(values: NDArray[Any], *, statistics: bool) -> Chunk:
    """A chunk of one number a row."""
    stated = _number_statistics(values, 0) if statistics else b""
    return Chunk((plain_numbers(values),), len(values), statistics=stated)


def optional_number_chunk(values: NDArray[np.float64], *, statistics: bool) -> Chunk:
    """A chunk of one number a row, null where it is NaN."""
    present = ~np.isnan(values)
    non_null = values[present]
    levels = optional_levels(present)
    stated = _number_statistics(non_null, len(values) - len(non_null)) if statistics else b""
    return Chunk((levels.encoded, plain_numbers(non_null)), levels.slots, statistics=stated)


def text_chunk(texts: Sequence[str], *, statistics: bool) -> Chunk:
    """A chunk of one text a row."""
    stated = _text_statistics(texts) if statistics else b""
    return Chunk((plain_texts(texts),), len(texts), statistics=stated)


def dictionary_chunk(texts: Sequence[str], *, statistics: bool) -> Chunk:
    """A chunk of one text a row, dictionary-encoded unless too many differ."""
    dictionary = dictionary_of(texts)
    if dictionary is None:
        return text_chunk(texts, statistics=statistics)
    stated = _text_statistics(dictionary.texts) if statistics else b""
    return coded_chunk(Levels(b"", len(texts)), dictionary, stated)


def coded_chunk(levels: Levels, dictionary: Dictionary, statistics: bytes = b"") -> Chunk:
    """A chunk of texts, dictionary-encoded."""
    body = (levels.encoded, dictionary.indices)
    return Chunk(body, levels.slots, RLE_DICTIONARY, dictionary, statistics)


def list_chunk(levels: Levels, values: NDArray[Any]) -> Chunk:
    """A chunk of a list a row (booleans are packed)."""
    return Chunk((levels.encoded, plain_numbers(values)), levels.slots)


def binary_chunk(levels: Levels, lengths: NDArray[np.int64], values: Bytes) -> Chunk:
    """A chunk of binaries; ``lengths`` are those of all that there are, ``values`` their bytes."""
    return Chunk((levels.encoded, delta_lengths(lengths), values), levels.slots, DELTA_LENGTH)


def _text_statistics(texts: Sequence[str]) -> bytes:
    return _statistics(0, min(texts).encode(), max(texts).encode())


def _number_statistics(values: NDArray[Any], nulls: int) -> bytes:
    """``Statistics`` of finite numbers."""
    if not len(values):
        return i64(3, nulls)
    low, high = values.min(), values.max()
    if values.dtype == np.float64:
        # -0.0 equals 0.0, so a bound of zero must include both: the low one is -0.0.
        low, high = low or np.float64(-0.0), high or np.float64(0.0)
    return _statistics(nulls, low.tobytes(), high.tobytes())


def _statistics(nulls: int, low: bytes, high: bytes) -> bytes:
    """``Statistics``: 3 null count, 5 largest value, 6 smallest value."""
    stated = i64(3, nulls)
    with_high = len(high) <= _BOUND_BYTES_MAX
    if with_high:
        stated += binary(2, high)
    if len(low) <= _BOUND_BYTES_MAX:
        stated += binary(1 if with_high else 3, low)
    return stated


CREATED_BY = b"rollstream version 1 (build plain)"
_MAGIC = b"PAR1"
_FOOTER_SIZE_BYTES = 4
_TYPES = {"BOOLEAN": 0, "INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6}
_SHORT_TEXT_MAX = 127  # Its length is one byte.
# FileMetaData: 1 version, 2 schema, 3 rows, 4 row groups, 5 metadata, 6 created_by, 7 orders.
_NO_ROWS = i64(1, 0) + list_of(1, STRUCT, ())
_CREATED_BY_AFTER_GROUPS = field(2, BINARY)


class Leaf(NamedTuple):
    """A leaf column: one that holds values itself, not lists or records of them."""

    field: str  # The name of the table's column.
    inside: tuple[str, ...]  # Names from there down.
    physical: str  # Parquet's type.
    text: bool  # True for UTF-8 text.
    definition: int  # The definition level of a value; 0 where every row has one.

    @classmethod
    def of(cls, field: str, column: pq.ColumnSchema) -> Leaf:
        # The name of a column may have dots in it.
        inside = column.path.removeprefix(field).split(".")[1:]
        text = column.logical_type.type == "STRING"
        return cls(field, tuple(inside), column.physical_type, text, column.max_definition_level)


class FileShape(NamedTuple):
    """The parts of a file that depend only on its schema."""

    leaves: tuple[Leaf, ...]  # In the order of the file.
    head: bytes  # The footer's bytes up to the number of rows.
    tail: bytes  # The footer's bytes from its last field on.
    # For each leaf, the bytes of its metadata up to the codec, by the encoding of its values.
    fixed: tuple[Mapping[int, bytes], ...]

    @classmethod
    def of(cls, schema: pa.Schema) -> FileShape:
        """The shape of files with this schema."""
        sink = pa.BufferOutputStream()
        pq.ParquetWriter(sink, schema, store_schema=False).close()
        empty = sink.getvalue()
        stored = pq.ParquetFile(pa.BufferReader(empty)).schema
        fields = [column.name for column in schema for _ in range(leaves_of(column.type))]
        leaves = tuple(Leaf.of(name, stored.column(i)) for i, name in enumerate(fields))
        return cls(leaves, *_around_counts(empty.to_pybytes()), tuple(map(_fixed, leaves)))

    def file_pieces(
        self, chunks: Sequence[Chunk], rows: int, metadata: Mapping[str, str], compression: str
    ) -> Pieces:
        """A file with a chunk for each leaf; ``metadata`` is in its footer."""
        number, name = CODECS[compression]
        codec = None if name is None else pa.Codec(name)
        pieces: list[Bytes] = [_MAGIC]
        columns: list[bytes] = []
        at, plain = len(_MAGIC), 0
        for chunk, fixed in zip(chunks, self.fixed, strict=True):
            dictionary = _dictionary_page(chunk, codec)
            data = _page(_DATA_PAGE, _of_page(chunk.slots, chunk.encoding), chunk.body, codec)
            pieces += (*dictionary.buffers, *data.buffers)
            before = fixed[chunk.encoding] + i32(1, number)
            columns.append(before + _counts(chunk, dictionary, data, at))
            at += dictionary.stored + data.stored
            plain += dictionary.plain + data.plain
        # RowGroup: 1 columns, 2 total bytes, 3 rows.
        group = (list_of(1, STRUCT, columns), i64(1, plain), i64(1, rows), STOP)
        pairs = [
            binary(1, key.encode()) + binary(1, value.encode()) + STOP
            for key, value in metadata.items()
        ]
        footer = b"".join(
            (
                self.head,
                i64(1, rows),
                list_of(1, STRUCT, (b"".join(group),)),
                list_of(1, STRUCT, pairs),
                binary(1, CREATED_BY),
                self.tail,
            )
        )
        pieces += (footer, len(footer).to_bytes(_FOOTER_SIZE_BYTES, "little"), _MAGIC)
        return Pieces.joined(pieces)


def leaves_of(kind: pa.DataType) -> int:
    """How many leaf columns a column of this type has."""
    return sum(leaves_of(kind.field(i).type) for i in range(kind.num_fields)) or 1


def _fixed(leaf: Leaf) -> Mapping[int, bytes]:
    """``ColumnChunk`` up to the codec, by encoding: 2 an offset that readers ignore, 3
    ``ColumnMetaData`` (1 type, 2 encodings, 3 path; 4, the codec, follows)."""
    names = [sized(name.encode()) for name in (leaf.field, *leaf.inside)]
    before = i64(2, 0) + field(1, STRUCT) + i32(1, _TYPES[leaf.physical])
    behind = list_of(1, BINARY, names)
    return {
        encodings[-1]: before + list_of(1, I32, [varint(one << 1) for one in encodings]) + behind
        for encodings in ((RLE, PLAIN), (RLE, DELTA_LENGTH), (PLAIN, RLE, RLE_DICTIONARY))
    }


class _Page(NamedTuple):
    buffers: tuple[Bytes, ...] = ()
    stored: int = 0  # Bytes in the file, with the header.
    plain: int = 0  # The same before compression.


def _page(kind: bytes, of_page: bytes, body: tuple[Bytes, ...], codec: pa.Codec | None) -> _Page:
    size = stored = sum(map(len, body))
    assert size <= _PAGE_BYTES_MAX, size
    if codec is not None:
        body = (codec.compress(b"".join(body), asbytes=True),)
        stored = len(body[0])
    head = b"".join((kind, i32(1, size), i32(1, stored), of_page))
    return _Page((head, *body), len(head) + stored, len(head) + size)


def _dictionary_page(chunk: Chunk, codec: pa.Codec | None) -> _Page:
    if chunk.dictionary is None:
        return _Page()
    of_page = struct(4, i32(1, len(chunk.dictionary.texts)), i32(1, PLAIN)) + STOP
    return _page(_DICTIONARY_PAGE, of_page, (chunk.dictionary.plain,), codec)


@lru_cache(_HEADERS_KEPT)
def _of_page(slots: int, encoding: int) -> bytes:
    return struct(2, i32(1, slots), i32(1, encoding), _LEVELS_AS_RUNS) + STOP


def _counts(chunk: Chunk, dictionary: _Page, data: _Page, at: int) -> bytes:
    """``ColumnMetaData`` behind the codec: 5 values, 6 and 7 size before and after compression,
    9 offset of the data page, 11 offset of the dictionary page, 12 statistics."""
    pieces = [
        i64(1, chunk.slots),
        i64(1, dictionary.plain + data.plain),
        i64(1, dictionary.stored + data.stored),
        i64(2, at + dictionary.stored),
    ]
    if dictionary.stored:
        pieces.append(i64(2, at))
    if chunk.statistics:
        pieces.append(struct(1 if dictionary.stored else 3, chunk.statistics))
    return b"".join((*pieces, STOP, STOP))


def _around_counts(empty: bytes) -> tuple[bytes, bytes]:
    """Splits the footer of a file without rows that pyarrow wrote: the bytes before the number of
    rows and those after ``created_by``."""
    end = len(empty) - len(_MAGIC) - _FOOTER_SIZE_BYTES
    size = int.from_bytes(empty[end : end + _FOOTER_SIZE_BYTES], "little")
    # The last: a column's name may have these bytes too.
    head, _, tail = empty[end - size : end].rpartition(_NO_ROWS)
    assert tail.startswith(_CREATED_BY_AFTER_GROUPS), "a footer of a pyarrow that is not supported"
    assert tail[1] <= _SHORT_TEXT_MAX, "a footer of a pyarrow that is not supported"
    return head, tail[2 + tail[1] :]
