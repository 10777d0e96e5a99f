"""Column chunks: one page of values, behind a page of distinct ones where they come again.

Source: Apache Parquet format, "Data pages", "Dictionary encoding", "Statistics";
``parquet.thrift``, ``PageHeader`` and ``Statistics``; Thrift's compact protocol, whose integers
are written as Avro's are.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.varint import varint
from rollstream.store.plain import levels as level_runs
from rollstream.store.plain import values as plain_values
from rollstream.store.plain.levels import Levels

BOUND_BYTES_MAX = 4_096  # A longer text is no bound, as with pyarrow.
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _RLE_DICTIONARY = 0, 8
_ENDS = b"\x00"
_FIXED = {"INT32": "<i", "INT64": "<q", "DOUBLE": "<d"}
_NO_LEVELS = b""


class Chunk(NamedTuple):
    """One column of a file.

    Attributes:
        pages: the bytes, in order.
        size: of all of them.
        slots: values, nulls and empty arrays.
        dictionary: bytes of the first page, the distinct values; 0: there is none.
        statistics: encoded; empty: none.
    """

    pages: tuple[bytes | memoryview, ...]
    size: int
    slots: int
    dictionary: int = 0
    statistics: bytes = b""


def absent(rows: int, *, repeated: bool) -> Chunk:
    """A column that no row has."""
    levels = level_runs.nothing(rows, repeated=repeated)
    return _chunk(levels.slots, _PLAIN, levels.encoded)


def scalars(values: Sequence[Any], physical: str, *, statistics: bool = False) -> Chunk:
    """One value a row."""
    stated = _statistics(values, 0, physical) if statistics else b""
    return _chunk(len(values), _PLAIN, plain_values.plain(values, physical), statistics=stated)


def words(values: Sequence[str], *, statistics: bool = False) -> Chunk:
    """One text a row, of few distinct ones."""
    coded = plain_values.coded(values)
    head = _DICTIONARY_HEAD + _sizes(len(coded.plain))
    head += b"\x4c\x15" + varint(coded.words << 1) + b"\x15\x00\x00" + _ENDS
    stated = _statistics(values, 0, "BYTE_ARRAY") if statistics else b""
    data = _chunk(len(values), _RLE_DICTIONARY, coded.indices, statistics=stated)
    size = len(head) + len(coded.plain)
    pages = (head, coded.plain, *data.pages)
    return Chunk(pages, size + data.size, data.slots, size, stated)


def optional(values: Sequence[Any], physical: str, *, statistics: bool = False) -> Chunk:
    """One value or None a row."""
    there = [value for value in values if value is not None]
    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    levels = level_runs.of_optional(present)
    stated = _statistics(there, len(values) - len(there), physical) if statistics else b""
    body = levels.encoded + plain_values.plain(there, physical)
    return _chunk(levels.slots, _PLAIN, body, statistics=stated)


def lists(levels: Levels, values: NDArray[Any]) -> Chunk:
    """A list a row; the values are not copied (booleans are packed)."""
    stored = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    return _chunk(levels.slots, _PLAIN, levels.encoded, stored.view(np.uint8).data)


def pairs(levels: Levels, values: Sequence[Any], physical: str) -> Chunk:
    """The keys, or the values, of a map a row."""
    return _chunk(levels.slots, _PLAIN, levels.encoded + plain_values.plain(values, physical))


def _chunk(
    slots: int,
    encoding: int,
    *body: bytes | memoryview,
    statistics: bytes = b"",
) -> Chunk:
    size = sum(map(len, body))
    head = _DATA_HEAD + _sizes(size)
    head += b"\x2c\x15" + varint(slots << 1) + b"\x15" + varint(encoding << 1) + _LEVELS_AS_RUNS
    return Chunk((head, *body), len(head) + size, slots, 0, statistics)


# PageHeader: 1 type, 2 and 3 the sizes, 5 DataPageHeader (1 values, 2 encoding, 3 and 4 how levels
# are encoded) or 7 DictionaryPageHeader (1 values, 2 encoding).
_DATA_HEAD = b"\x15" + varint(_DATA_PAGE << 1)
_DICTIONARY_HEAD = b"\x15" + varint(_DICTIONARY_PAGE << 1)
_LEVELS_AS_RUNS = b"\x15\x06\x15\x06\x00" + _ENDS


def _sizes(size: int) -> bytes:
    stated = b"\x15" + varint(size << 1)
    return stated * 2  # As it would be uncompressed, and as it is.


def _statistics(values: Sequence[Any], nulls: int, physical: str) -> bytes:
    """Statistics: 3 nulls, 5 the largest value, 6 the smallest one; of texts or finite numbers."""
    stated = b"\x36" + varint(nulls << 1)
    if values:
        high, low = _bound(max(values), physical, 0.0), _bound(min(values), physical, -0.0)
        if max(len(high), len(low)) <= BOUND_BYTES_MAX:
            stated += b"\x28" + varint(len(high)) + high + b"\x18" + varint(len(low)) + low
    return stated + _ENDS


def _bound(value: Any, physical: str, zero: float) -> bytes:
    if physical == "BYTE_ARRAY":
        return str(value).encode()
    # Zeros of both signs are equal: the range must hold both.
    return struct.pack(_FIXED[physical], value or zero if physical == "DOUBLE" else value)
