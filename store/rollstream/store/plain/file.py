"""A Parquet file: column chunks, and the footer that names their offsets.

There is one row group, and a chunk is one data page. The schema's bytes in the footer are
pyarrow's, from an empty file that it wrote. The first pair of its metadata names the end of each
chunk, so that a reader of ours need not decode the rest.

Source: Apache Parquet format, "Data pages", "Statistics", and ``parquet.thrift``: ``PageHeader``,
``Statistics``, ``FileMetaData``, ``RowGroup``, ``ColumnChunk``, ``ColumnMetaData``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from rollstream.store.blobs import Bytes, Pieces
from rollstream.store.plain.encoding import (
    BINARY,
    I32,
    STOP,
    STRUCT,
    binary,
    field,
    i32,
    i64,
    list_of,
    read_sized,
    read_varint,
    sized,
    struct,
    varint,
)

CODECS = {"none": (0, None), "lz4": (7, "lz4_raw"), "zstd": (6, "zstd")}
"""Compressions: Parquet's number and pyarrow's name of each."""
CREATED_BY = "rollstream version 1 (build plain)"
LAYOUT_KEY = "rollstream.layout"  # The number of rows, then the end of each chunk; JSON.
_PAGES_KEY = "rollstream.pages"  # The end of each page, where a chunk has several; JSON.
_SUMS_KEY = "rollstream.sums"  # See ``sums``.
_CHECK_KEY = "rollstream.check"  # xxh3-64 of these pairs, hexadecimal; the last of them.
_PLAIN, _RLE, _DELTA_LENGTH = 0, 3, 6  # Parquet's encodings.
_TYPES = {"BOOLEAN": 0, "INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6}
_PAGE_BYTES_MAX = 2**31 - 1  # A page's size is an int32; the configuration keeps a flush smaller.
MAGIC = b"PAR1"
_FOOTER_SIZE_BYTES = 4
_JOINED_BYTES_MAX = 16_384  # Smaller buffers are copied into one.
_KEPT = 4_096  # A file has some forty columns, and what is constant among files is their sizes.
_PAIRS_KEPT = 256
_SHORT_TEXT_MAX = 127  # Its length is one byte.
# FileMetaData: 1 version, 2 schema, 3 rows, 4 row groups, 5 metadata, 6 created_by, 7 orders.
_NO_ROWS = i64(1, 0) + list_of(1, STRUCT, ())
_CREATED_BY_AFTER_GROUPS = field(2, BINARY)
_CREATED_BY = binary(1, CREATED_BY.encode())
_LAYOUT = binary(1, LAYOUT_KEY.encode())


# The bytes before the numbers of a page's header that differ among pages (``_page``): size, stored
# size, slots, encoding; and those behind them.
_PAGE_FIELDS = (
    i32(1, 0) + field(1, I32),
    field(1, I32),
    field(2, STRUCT) + field(1, I32),
    field(1, I32),
)
_PAGE_END = i32(1, _RLE) * 2 + STOP * 2
_PAGE_HEAD_BYTES_MAX = 64
_PAGE_HEAD = re.compile(
    b"".join(re.escape(begin) + rb"([\x80-\xff]*[\x00-\x7f])" for begin in _PAGE_FIELDS)
)


class Leaf(NamedTuple):
    """A leaf column: one that holds values itself, not lists or records of them."""

    names: tuple[str, ...]  # The name of the table's column, then those from there down.
    physical: str  # Parquet's type.
    binary: bool  # One binary a row: the only column whose lengths do not stand between values.
    definition: int  # The definition level of a value; 0 where every row has one.

    @classmethod
    def of(cls, field: str, column: pq.ColumnSchema) -> Leaf:
        # The name of a column may have dots in it.
        inside = column.path.removeprefix(field).split(".")[1:]
        text = column.logical_type.type == "STRING"
        physical = column.physical_type
        binary = physical == "BYTE_ARRAY" and not text and not inside
        return cls((field, *inside), physical, binary, column.max_definition_level)

    @property
    def encoding(self) -> int:
        """Parquet's number."""
        return _DELTA_LENGTH if self.binary else _PLAIN


class Chunk(NamedTuple):
    """A column chunk as it is stored.

    Attributes:
        pieces: its pages, of which large arrays are not copied.
        page_sizes: bytes of each page, its header included.
        size: bytes of all pages before compression.
        sizes, tail: its metadata before and after its offset; the column's own stands before both.
    """

    pieces: tuple[Bytes, ...]
    page_sizes: tuple[int, ...]
    size: int
    sizes: bytes
    tail: bytes

    @classmethod
    def of(
        cls,
        encoding: int,
        pages: Sequence[tuple[int, tuple[Bytes, ...]]],
        compression: str,
        statistics: bytes = b"",
    ) -> Chunk:
        """The chunk of any leaf column with this encoding.

        Args:
            pages: of each its slots (values, nulls and empty lists), and its body (levels, then
                values).
            statistics: a field of ``ColumnMetaData``; empty where there are none.
        """
        number, name = CODECS[compression]
        pieces: list[Bytes] = []
        page_sizes: list[int] = []
        of_values = of_bytes = 0
        for slots, plain_body in pages:
            body = plain_body
            size = stored = sum(map(len, body))
            assert size <= _PAGE_BYTES_MAX, size
            if name is not None:
                body = (pa.Codec(name).compress(b"".join(body), asbytes=True),)
                stored = len(body[0])
            head = _page(slots, encoding, size, stored)
            pieces += (head, *body)
            page_sizes.append(len(head) + stored)
            of_values += slots
            of_bytes += len(head) + size
        sizes = _sizes(number, of_values, of_bytes, sum(page_sizes))
        return cls(tuple(pieces), tuple(page_sizes), of_bytes, sizes, statistics + STOP * 2)


def bounds_of(values: NDArray[Any]) -> bytes:
    """The statistics of a chunk of integers without nulls, one or more."""
    # ColumnMetaData: 12 statistics, behind 9 offset. Statistics: 3 null count, 5 largest value, 6
    # smallest value.
    high, low = values.max().tobytes(), values.min().tobytes()
    return struct(3, i64(3, 0), binary(2, high), binary(1, low))


class FileShape(NamedTuple):
    """The parts of a file that depend only on its schema."""

    leaves: tuple[Leaf, ...]  # In the order of the file.
    head: bytes  # The footer's bytes up to the number of rows.
    tail: bytes  # The footer's bytes from its last field on.
    fixed: tuple[bytes, ...]  # The metadata of each leaf up to the codec.

    @classmethod
    def of(cls, schema: pa.Schema) -> FileShape:
        """The shape of files with this schema."""
        sink = pa.BufferOutputStream()
        pq.ParquetWriter(sink, schema, store_schema=False).close()
        empty = sink.getvalue()
        stored = pq.ParquetFile(pa.BufferReader(empty)).schema
        fields = [column.name for column in schema for _ in range(_leaves_of(column.type))]
        leaves = tuple(Leaf.of(name, stored.column(i)) for i, name in enumerate(fields))
        return cls(leaves, *_around_counts(empty.to_pybytes()), tuple(map(_fixed, leaves)))

    def file_pieces(
        self,
        chunks: Sequence[Chunk],
        metadata: Mapping[str, str],
        rows: int,
        sums: str = "",
    ) -> Pieces:
        """A file with a chunk for each leaf; ``metadata`` and ``sums`` are in its footer."""
        pieces: list[Bytes] = []
        small: list[Bytes] = [MAGIC]  # What is joined into the next piece.
        columns: list[bytes] = []
        layout = [rows]
        at = len(MAGIC)
        for chunk, fixed in zip(chunks, self.fixed, strict=True):
            # ColumnMetaData: 9 offset of the first data page.
            columns.append(b"".join((fixed, chunk.sizes, i64(2, at), chunk.tail)))
            at += sum(chunk.page_sizes)
            layout.append(at)
            for piece in chunk.pieces:
                if len(piece) > _JOINED_BYTES_MAX:
                    pieces += (b"".join(small), piece)
                    small = []
                else:
                    small.append(piece)
        total = sum(chunk.size for chunk in chunks)
        # RowGroup: 1 columns, 2 total bytes, 3 rows.
        group = b"".join((list_of(1, STRUCT, columns), i64(1, total), i64(1, rows), STOP))
        pairs = [_pair(LAYOUT_KEY, json.dumps(layout))]
        page_sizes = [size for chunk in chunks for size in chunk.page_sizes]
        if len(page_sizes) > len(chunks):
            _, *page_ends = accumulate(page_sizes, initial=len(MAGIC))
            pairs.append(_pair(_PAGES_KEY, json.dumps(page_ends)))
        if sums:
            pairs.append(_pair(_SUMS_KEY, sums))
        pairs += map(_constant_pair, metadata, metadata.values())
        pairs.append(_pair(_CHECK_KEY, xxhash.xxh3_64_hexdigest(b"".join(pairs))))
        groups = list_of(1, STRUCT, (group,)) + list_of(1, STRUCT, pairs)
        footer = b"".join((self.head, i64(1, rows), groups, _CREATED_BY, self.tail))
        small += (footer, len(footer).to_bytes(_FOOTER_SIZE_BYTES, "little"), MAGIC)
        return Pieces((*pieces, b"".join(small)))


@lru_cache(_KEPT)
def _sizes(codec: int, values: int, size: int, stored: int) -> bytes:
    """ColumnMetaData: 4 codec, 5 values, 6 and 7 size before and after compression."""
    return b"".join((i32(1, codec), i64(1, values), i64(1, size), i64(1, stored)))


@lru_cache(_KEPT)
def _page(slots: int, encoding: int, size: int, stored: int) -> bytes:
    """The header of a page."""
    # PageHeader: 1 type (data page), 2 and 3 the size before and after compression, 5
    # DataPageHeader (1 values, 2 encoding, 3 and 4 how levels are encoded).
    of_page = struct(2, i32(1, slots), i32(1, encoding), i32(1, _RLE) * 2)
    return b"".join((i32(1, 0), i32(1, size), i32(1, stored), of_page, STOP))


class Page(NamedTuple):
    """A data page that ``file_pieces`` wrote.

    Attributes:
        size: of its body, before compression.
        body: where that begins; it ends where the next page or chunk begins.
    """

    size: int
    body: int

    @classmethod
    def of(cls, data: memoryview) -> Page:
        """The page that these bytes begin with.

        Raises:
            ValueError, LookupError: they are damaged.
        """
        found = _PAGE_HEAD.match(data)
        if found is None:
            raise ValueError(f"no page begins with {bytes(data[:_PAGE_HEAD_BYTES_MAX]).hex()}")
        size, _ = read_varint(found[1], 0)
        return cls(size >> 1, found.end() + len(_PAGE_END))


def _pair(key: str, value: str) -> bytes:
    return binary(1, key.encode()) + binary(1, value.encode()) + STOP


_constant_pair = lru_cache(_PAIRS_KEPT)(_pair)


class Layout(NamedTuple):
    """What the end of a file says.

    Attributes:
        rows: how many.
        ends: of each chunk, in bytes from the file's beginning; empty: another tool wrote the file.
        page_ends: of each page; empty: each chunk is one.
        sums: see ``sums``; empty: there are none.
        metadata: of the footer, besides this.
    """

    rows: int
    ends: Sequence[int]
    page_ends: Sequence[int]
    sums: bytes
    metadata: Mapping[bytes, bytes]

    @classmethod
    def of(cls, data: memoryview) -> Layout | None:
        """The layout of a file that ``file_pieces`` wrote; None: another tool did. ``data`` may
        begin with the footer (``footer_bytes``).

        Raises:
            ValueError, LookupError, TypeError: it is damaged.
        """
        if data[-len(MAGIC) :] != MAGIC:
            return None  # It is cut short.
        end = len(data) - len(MAGIC) - _FOOTER_SIZE_BYTES
        size = int.from_bytes(data[end : end + _FOOTER_SIZE_BYTES], "little")
        footer = bytes(data[max(end - size, 0) : end])
        at = footer.rfind(_LAYOUT)  # The last: a column's name may have these bytes too.
        stop = footer.rfind(_CREATED_BY)
        if not 0 <= at < stop:
            return None
        pairs: dict[bytes, bytes] = {}
        start = before = at
        while at < stop:
            before = at
            key, at = read_sized(footer, at + 1)
            pairs[key], at = read_sized(footer, at + 1)
            at += len(STOP)
        check = pairs.pop(_CHECK_KEY.encode()).decode()
        if check != xxhash.xxh3_64_hexdigest(footer[start:before]):
            raise ValueError("its footer is damaged")
        rows, *ends = json.loads(pairs.pop(LAYOUT_KEY.encode()))
        page_ends = json.loads(pairs.pop(_PAGES_KEY.encode(), b"[]"))
        return cls(rows, ends, page_ends, pairs.pop(_SUMS_KEY.encode(), b""), pairs)


def footer_bytes(data: memoryview) -> int:
    """How many of a file's last bytes its footer needs, as these last ones say."""
    end = len(data) - len(MAGIC)
    size = int.from_bytes(data[max(end - _FOOTER_SIZE_BYTES, 0) : end], "little")
    return size + _FOOTER_SIZE_BYTES + len(MAGIC)


def _leaves_of(kind: pa.DataType) -> int:
    """How many leaf columns a column of this type has."""
    return sum(_leaves_of(kind.field(i).type) for i in range(kind.num_fields)) or 1


def _fixed(leaf: Leaf) -> bytes:
    """``ColumnChunk`` up to the codec: 2 an offset that readers ignore, 3 ``ColumnMetaData`` (1
    type, 2 encodings, 3 path; 4, the codec, follows)."""
    encodings = list_of(1, I32, [varint(one << 1) for one in (_RLE, leaf.encoding)])
    path = list_of(1, BINARY, [sized(name.encode()) for name in leaf.names])
    return i64(2, 0) + field(1, STRUCT) + i32(1, _TYPES[leaf.physical]) + encodings + path


def _around_counts(empty: bytes) -> tuple[bytes, bytes]:
    """Splits the footer of a file without rows that pyarrow wrote: the bytes before the number of
    rows and those after ``created_by``."""
    end = len(empty) - len(MAGIC) - _FOOTER_SIZE_BYTES
    size = int.from_bytes(empty[end : end + _FOOTER_SIZE_BYTES], "little")
    # The last: a column's name may have these bytes too.
    head, _, tail = empty[end - size : end].rpartition(_NO_ROWS)
    assert tail.startswith(_CREATED_BY_AFTER_GROUPS), "a footer of a pyarrow that is not supported"
    assert tail[1] <= _SHORT_TEXT_MAX, "a footer of a pyarrow that is not supported"
    return head, tail[2 + tail[1] :]
