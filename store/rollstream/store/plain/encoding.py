"""How a Parquet file encodes its structures (Thrift), its levels (RLE runs) and its values (plain).

Sources: Apache Thrift, "Thrift compact protocol encoding"; Apache Parquet format, "Nested
encoding", "Run length encoding / bit-packing hybrid", "Plain encoding", "Dictionary encoding".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.store.plain.varint import varint

# --- Thrift's compact protocol, as far as page headers and footers need it. A struct is its fields
# in rising order of their ids, then a stop. A field begins with a byte that holds the difference of
# its id to that of the field before (``step``) and its type. Integers are zigzag varints, as in
# Avro.

I32, BINARY, STRUCT = 5, 8, 12  # Types of fields and of a list's items.
STOP = b"\x00"
_I64, _LIST = 6, 9
_SHORT_LIST_MAX = 14


@cache
def field(step: int, kind: int) -> bytes:
    """The byte that a field begins with."""
    return bytes((step << 4 | kind,))


def i32(step: int, value: int) -> bytes:
    """A field with a number that is not negative."""
    return field(step, I32) + varint(value << 1)


def i64(step: int, value: int) -> bytes:
    """A field with a number that is not negative."""
    return field(step, _I64) + varint(value << 1)


def binary(step: int, value: bytes) -> bytes:
    """A field of text or bytes."""
    return field(step, BINARY) + sized(value)


def struct(step: int, *fields: bytes) -> bytes:
    """A field of a struct."""
    return b"".join((field(step, STRUCT), *fields, STOP))


def list_of(step: int, kind: int, items: Sequence[bytes]) -> bytes:
    """A field of a list; structs among the items end with ``STOP``."""
    count = len(items)
    if count <= _SHORT_LIST_MAX:
        size = bytes((count << 4 | kind,))
    else:
        size = bytes((0xF0 | kind,)) + varint(count)
    return b"".join((field(step, _LIST), size, *items))


def sized(value: bytes) -> bytes:
    """Length-prefixed text or bytes, as an item of a list."""
    return varint(len(value)) + value


# --- Parquet repetition and definition levels, as RLE runs: an array costs a few bytes whatever its
# length, where pyarrow encodes a level for each value, which is most of the time that it takes. No
# level is above 2, so the level of a run is one byte.

_VARINT_BYTES_MAX = 5  # Of a run below 2**34 values; a chunk has fewer than 2**31.


class Levels(NamedTuple):
    """The levels of a data page, which stand before its values."""

    encoded: bytes  # Repetition levels where the column has any, then definition levels.
    slots: int  # Number of levels of each kind: one for each value, null and empty list.


def absent_levels(rows: int) -> Levels:
    """Levels of lists that are null or empty in each row."""
    return Levels(_framed(_run(rows, 0)) * 2, rows)


def optional_levels(present: NDArray[np.bool_]) -> Levels:
    """Levels of one value or null a row; ``present`` is bool [rows]."""
    packed = np.packbits(present, bitorder="little").tobytes()
    return Levels(_framed(varint(len(packed) << 1 | 1) + packed), len(present))


def repetition_levels(lengths: NDArray[np.int64]) -> Levels:
    """The first half of the levels of a list a row: where rows begin. ``lengths`` is int64 [rows],
    0 where the list is absent."""
    rows = len(lengths)
    slots = np.maximum(lengths, 1)
    total = int(slots.sum())
    # The first value of a row has repetition level 0, the others have 1.
    if total == rows * slots[0] and (slots == slots[0]).all():
        others = int(slots[0]) - 1
        return Levels(_framed((_run(1, 0) + (_run(others, 1) if others else b"")) * rows), total)
    counts = np.ones(2 * rows, np.int64)
    counts[1::2] = slots - 1
    repeated = counts > 0
    levels = np.tile(np.array([0, 1], np.uint8), rows)
    return Levels(_framed(_runs(counts[repeated], levels[repeated])), total)


def definition_levels(
    lengths: NDArray[np.int64], present: NDArray[np.bool_] | None, depth: int
) -> bytes:
    """The second half: where lists are absent or empty. ``present`` is bool [rows], None where each
    row has a list; ``depth`` is the definition level of a value: 2 where a list may be null, else
    1."""
    if lengths.all():
        return _framed(_run(int(lengths.sum()), depth))
    defined = np.where(lengths > 0, depth, depth - 1).astype(np.uint8)
    if present is not None:
        defined[~present] = 0
    return _framed(_runs(np.maximum(lengths, 1), defined))


def _framed(runs: bytes) -> bytes:
    return len(runs).to_bytes(4, "little") + runs


def _run(count: int, level: int) -> bytes:
    return varint(count << 1) + bytes((level,))


def _runs(counts: NDArray[np.int64], levels: NDArray[np.uint8]) -> bytes:
    """``_run`` of each pair, joined."""
    bits = counts << 1
    encoded = np.empty((len(counts), _VARINT_BYTES_MAX + 1), np.uint8)
    used = np.ones(encoded.shape, np.bool_)
    for index in range(_VARINT_BYTES_MAX):
        rest = bits >> 7 * index
        encoded[:, index] = rest & 127 | (rest > 127) << 7
        used[:, index] = rest > 0
    encoded[:, -1] = levels
    return encoded[used].tobytes()


# --- Values: plain, as indices into a dictionary, or as bytes behind their lengths.

DISTINCT_MAX = 65_536  # Entries of a dictionary: as many as 16-bit indices can name.
_LENGTH_BYTES = 4
_LENGTHS_KEPT = 4_096
_ONE_BYTE_INDICES_MAX = 256
# DELTA_BINARY_PACKED: values a block, parts of a block; a part has as many bits for each value.
_BLOCK, _PARTS, _PART_BITS = 128, 4, 32
_DELTA_HEAD = varint(_BLOCK) + varint(_PARTS)


class Dictionary(NamedTuple):
    """A column's distinct values, and the index of each value among them."""

    texts: Sequence[str]  # The distinct values.
    plain: bytes  # The same, encoded.
    indices: bytes  # One a value of the column, encoded.


def plain_numbers(values: NDArray[Any]) -> memoryview:
    """Numbers in plain encoding: a view, where they are no booleans."""
    stored = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    return np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data


def plain_texts(texts: Sequence[str]) -> bytes:
    """Texts in plain encoding, one or more."""
    if texts.count(texts[0]) == len(texts):
        raw = texts[0].encode()
        return (_length(len(raw)) + raw) * len(texts)
    raws = [text.encode() for text in texts]
    return b"".join(chain.from_iterable(zip(map(_length, map(len, raws)), raws, strict=True)))


def dictionary_of(texts: Sequence[str]) -> Dictionary | None:
    """The dictionary encoding of texts; None where more than ``DISTINCT_MAX`` differ."""
    if texts.count(texts[0]) == len(texts):
        return coded(texts[:1], np.zeros(len(texts), np.int32))
    distinct = dict.fromkeys(texts)
    if len(distinct) > DISTINCT_MAX:
        return None
    entries = dict(zip(distinct, range(len(distinct)), strict=True))
    return coded(list(entries), np.fromiter(map(entries.__getitem__, texts), np.int32, len(texts)))


def coded(texts: Sequence[str], indices: NDArray[np.int32]) -> Dictionary:
    """The dictionary encoding of texts that are given so, at most ``DISTINCT_MAX`` of them."""
    if len(texts) == 1:
        runs = b"\x01" + varint(len(indices) << 1) + b"\x00"
        return Dictionary(texts, plain_texts(texts), runs)
    # 8- or 16-bit indices, so bit-packing is a plain copy; Parquet packs in groups of 8.
    dtype = np.dtype("<u1" if len(texts) <= _ONE_BYTE_INDICES_MAX else "<u2")
    groups = -(-len(indices) // 8)
    packed = indices.astype(dtype).tobytes().ljust(groups * 8 * dtype.itemsize, b"\x00")
    head = bytes((8 * dtype.itemsize,)) + varint(groups << 1 | 1)
    return Dictionary(texts, plain_texts(texts), head + packed)


def delta_lengths(lengths: NDArray[np.int64]) -> bytes:
    """The head of values in DELTA_LENGTH_BYTE_ARRAY, which follow it without gaps. Equal lengths,
    each below 2**31, take a few bytes for 128 of them."""
    first = int(lengths[0]) if len(lengths) else 0
    pieces = [_DELTA_HEAD, varint(len(lengths)), varint(first << 1)]
    deltas = np.diff(lengths)
    for start in range(0, len(deltas), _BLOCK):
        block = deltas[start : start + _BLOCK]
        low = int(block.min())
        above = np.zeros(_BLOCK, "<u4")
        above[: len(block)] = block - low
        parts = above.reshape(_PARTS, -1)
        used = parts.max(axis=1) > 0
        widths = bytes(_PART_BITS * any_in_part for any_in_part in used.tolist())
        zigzag = low << 1 if low >= 0 else ~(low << 1)
        pieces += [varint(zigzag), widths, parts[used].tobytes()]
    return b"".join(pieces)


@lru_cache(_LENGTHS_KEPT)
def _length(size: int) -> bytes:
    return size.to_bytes(_LENGTH_BYTES, "little")
