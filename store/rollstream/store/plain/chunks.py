"""Column chunks: one page of values, behind a page of distinct ones where they come again.

Source: Apache Parquet format, "Data pages", "Dictionary encoding", "Statistics";
``parquet.thrift``, ``PageHeader`` and ``Statistics``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.store.plain import levels as level_runs
from rollstream.store.plain import thrift
from rollstream.store.plain import values as plain_values
from rollstream.store.plain.levels import Levels

PLAIN, RLE, RLE_DICTIONARY = 0, 3, 8  # Parquet's encodings.
_PAGE_BYTES_MAX = 2**31 - 1  # Their sizes are int32; a flush is much smaller (configuration).
_BOUND_BYTES_MAX = 4_096  # A longer text is no bound, as with pyarrow.
_ABSENT_KEPT = 64
# PageHeader: 1 type, 2 and 3 the size before and after compression, 5 DataPageHeader (1 values, 2
# encoding, 3 and 4 how levels are encoded) or 7 DictionaryPageHeader (1 values, 2 encoding).
_DATA_PAGE, _DICTIONARY_PAGE = thrift.i32(1, 0), thrift.i32(1, 2)
_LEVELS_AS_RUNS = thrift.i32(1, RLE) * 2


class Chunk(NamedTuple):
    """One column of a file.

    Attributes:
        pages: the bytes, in order.
        size: of all of them.
        slots: values, nulls and empty lists.
        dictionary_size: bytes of the first page, the distinct values; 0: there is none.
        statistics: fields of ``Statistics``; empty: none.
    """

    pages: tuple[bytes | memoryview, ...]
    size: int
    slots: int
    dictionary_size: int = 0
    statistics: bytes = b""


@lru_cache(_ABSENT_KEPT)
def absent(rows: int) -> Chunk:
    """A column of lists or maps that is null or empty in each row."""
    levels = level_runs.of_absent(rows)
    return _chunk(levels.slots, PLAIN, levels.encoded)


def scalars(values: Sequence[Any], physical: str, *, statistics: bool = False) -> Chunk:
    """One value a row."""
    stated = _statistics(values, 0, physical) if statistics else b""
    return _chunk(len(values), PLAIN, *plain_values.plain(values, physical), statistics=stated)


def repetitive(texts: Sequence[str], *, statistics: bool = False) -> Chunk:
    """One text a row, of few distinct ones."""
    coded = plain_values.coded(texts)
    if coded is None:
        return scalars(texts, "BYTE_ARRAY", statistics=statistics)
    assert len(coded.plain) <= _PAGE_BYTES_MAX, len(coded.plain)
    of_page = thrift.struct(4, thrift.i32(1, coded.distinct), thrift.i32(1, PLAIN))
    head = b"".join((_DICTIONARY_PAGE, _sizes(len(coded.plain)), of_page, thrift.STOP))
    stated = _statistics(texts, 0, "BYTE_ARRAY") if statistics else b""
    data = _chunk(len(texts), RLE_DICTIONARY, coded.indices, statistics=stated)
    size = len(head) + len(coded.plain)
    pages = (head, coded.plain, *data.pages)
    return Chunk(pages, size + data.size, data.slots, size, stated)


def optional(values: Sequence[Any], physical: str, *, statistics: bool = False) -> Chunk:
    """One value or None a row."""
    there = [value for value in values if value is not None]
    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    levels = level_runs.of_optional(present)
    stated = _statistics(there, len(values) - len(there), physical) if statistics else b""
    body = (levels.encoded, *plain_values.plain(there, physical))
    return _chunk(levels.slots, PLAIN, *body, statistics=stated)


def lists(levels: Levels, values: NDArray[Any]) -> Chunk:
    """A list a row; the values are not copied (booleans are packed)."""
    stored = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    return _chunk(levels.slots, PLAIN, levels.encoded, stored.view(np.uint8).data)


def pairs(levels: Levels, values: Sequence[Any], physical: str) -> Chunk:
    """The keys, or the values, of a map a row."""
    return _chunk(levels.slots, PLAIN, levels.encoded, *plain_values.plain(values, physical))


def _chunk(
    slots: int,
    encoding: int,
    *body: bytes | memoryview,
    statistics: bytes = b"",
) -> Chunk:
    size = sum(map(len, body))
    assert size <= _PAGE_BYTES_MAX, size
    of_page = thrift.struct(2, thrift.i32(1, slots), thrift.i32(1, encoding), _LEVELS_AS_RUNS)
    head = b"".join((_DATA_PAGE, _sizes(size), of_page, thrift.STOP))
    return Chunk((head, *body), len(head) + size, slots, 0, statistics)


def _sizes(size: int) -> bytes:
    return thrift.i32(1, size) * 2


def _statistics(values: Sequence[Any], nulls: int, physical: str) -> bytes:
    """Statistics: 3 nulls, 5 the largest value, 6 the smallest one; of texts or finite numbers
    (``codec.decode`` lets no other reward through)."""
    stated = thrift.i64(3, nulls)
    if not values:
        return stated
    high, low = _bound(max(values), physical, 0.0), _bound(min(values), physical, -0.0)
    with_high = len(high) <= _BOUND_BYTES_MAX
    if with_high:
        stated += thrift.binary(2, high)
    if len(low) <= _BOUND_BYTES_MAX:
        stated += thrift.binary(1 if with_high else 3, low)
    return stated


def _bound(value: Any, physical: str, zero: float) -> bytes:
    if physical == "BYTE_ARRAY":
        return str(value).encode()
    # Zeros of both signs are equal: the range must hold both.
    bound = (value or zero) if physical == "DOUBLE" else value
    return b"".join(plain_values.plain([bound], physical))
