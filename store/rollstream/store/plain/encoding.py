"""How a Parquet file encodes its structures (Thrift), its levels (RLE runs) and its values (plain).

Sources: Apache Thrift, "Thrift compact protocol encoding"; Apache Parquet format, "Nested
encoding", "Run length encoding / bit-packing hybrid", "Plain encoding", "Delta-length byte array".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.store.blobs import Bytes

# --- Thrift's compact protocol, as far as page headers and footers need it. A struct is its fields
# in rising order of their ids, then a stop. A field begins with a byte that holds the difference of
# its id to that of the field before (``step``) and its type. Integers are zigzag varints, as in
# Avro.

I32, BINARY, STRUCT = 5, 8, 12  # Types of fields and of a list's items.
STOP = b"\x00"
_I64, _LIST = 6, 9
_SHORT_LIST_MAX = 14
_REPETITIONS_KEPT = 8  # Arrays of one file have equal lengths.
_KEPT = 8_192  # A file has some three hundred integers, most of them in the file before too.


@lru_cache(_KEPT)
def varint(bits: int) -> bytes:
    """LEB128-encodes a non-negative (already zigzagged) integer."""
    out = bytearray()
    while bits > 127:
        out.append(bits & 127 | 128)
        bits >>= 7
    out.append(bits)
    return bytes(out)


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


def read_sized(data: bytes, at: int) -> tuple[bytes, int]:
    """What ``sized`` wrote at ``at``, and where it ends; ``IndexError`` where it is cut off."""
    size, start = read_varint(data, at)
    return data[start : start + size], start + size


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that ``varint`` wrote at ``at``, and where it ends; ``IndexError`` where it is cut
    off."""
    bits = shift = 0
    while (byte := data[at]) > 127:
        bits |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
    return bits | byte << shift, at + 1


# --- Parquet repetition and definition levels, as RLE runs: an array costs a few bytes whatever its
# length, where pyarrow encodes a level for each value, which is most of the time that it takes.


def absent_levels(rows: int) -> bytes:
    """Levels of lists that are null or empty in each row."""
    return _framed(_run(rows, 0)) * 2


def optional_levels(present: NDArray[np.bool_]) -> bytes:
    """Levels of one value or null a row; ``present`` is bool [rows]."""
    packed = np.packbits(present, bitorder="little").tobytes()
    return _framed(varint(len(packed) << 1 | 1) + packed)


def list_levels(
    lengths: NDArray[np.int64], present: NDArray[np.bool_] | None, depth: int
) -> tuple[bytes, int]:
    """Levels of a list a row, and their number: one for each value, null and empty list.

    ``lengths`` is int64 [rows], 0 where the list is absent; ``present`` is bool [rows], None where
    each row has a list; ``depth`` is the definition level of a value: 2 where a list may be null,
    else 1.
    """
    slots = np.maximum(lengths, 1)
    counts = slots.tolist()
    if present is None and np.array_equal(slots, lengths):
        definition = b"".join(map(_run, counts, repeat(depth)))
    else:
        defined = np.where(lengths > 0, depth, depth - 1)
        if present is not None:
            defined[~present] = 0
        definition = b"".join(map(_run, counts, defined.tolist()))
    return _repetition(tuple(counts)) + _framed(definition), sum(counts)


@lru_cache(_REPETITIONS_KEPT)
def _repetition(slots: tuple[int, ...]) -> bytes:
    return _framed(b"".join(map(_repetition_of_row, slots)))


def _framed(runs: bytes) -> bytes:
    return len(runs).to_bytes(4, "little") + runs


@lru_cache(_KEPT)
def _run(count: int, level: int) -> bytes:
    return varint(count << 1) + bytes((level,))


@lru_cache(_KEPT)
def _repetition_of_row(slots: int) -> bytes:
    # The first value of a row has level 0, the others have 1.
    return _run(1, 0) + (_run(slots - 1, 1) if slots > 1 else b"")


# --- Values: plain, or as bytes behind their lengths.

_LENGTH_BYTES = 4
# DELTA_BINARY_PACKED, with blocks of one part, and as many bits for each value. The smallest
# difference of two lengths is not looked for: what stands for it is below any.
_BLOCK, _PARTS, _BITS = 128, 1, 32
_BELOW_ANY = -(2**31) + 1
_BLOCK_HEAD = np.frombuffer(varint(~(_BELOW_ANY << 1)) + bytes((_BITS,)), np.uint8)


def raw(values: NDArray[Any]) -> memoryview:
    """The bytes of an array, as a view of it."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def plain(values: NDArray[Any] | Sequence[str]) -> Bytes:
    """Values in plain encoding: a view for numbers other than booleans. Texts are str; an array of
    objects holds str or bytes."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        packed = values.dtype == np.bool_
        return raw(np.packbits(values, bitorder="little") if packed else values)
    listed = list(values)
    first = listed[0] if listed else b""
    if listed.count(first) == len(listed):
        return _sized(first) * len(listed)
    sizes = set(map(len, listed))
    if len(sizes) == 1 and isinstance(first, str) and (text := "".join(listed)).isascii():
        (size,) = sizes
        framed = np.empty((len(listed), _LENGTH_BYTES + size), np.uint8)
        framed[:, :_LENGTH_BYTES] = np.frombuffer(_length(size), np.uint8)
        framed[:, _LENGTH_BYTES:] = np.frombuffer(text.encode(), np.uint8).reshape(-1, size)
        return framed.reshape(-1).data
    distinct = dict.fromkeys(listed)  # Many are equal.
    return b"".join(map({one: _sized(one) for one in distinct}.__getitem__, listed))


def _sized(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return _length(len(data)) + data


@lru_cache(_KEPT)
def _length(size: int) -> bytes:
    return size.to_bytes(_LENGTH_BYTES, "little")


def delta_lengths(lengths: NDArray[np.int64]) -> bytes:
    """The head of values in DELTA_LENGTH_BYTE_ARRAY, which follow it without gaps; each length is
    below 2**31."""
    first = int(lengths[:1].sum())
    head = (varint(_BLOCK), varint(_PARTS), varint(len(lengths)), varint(first << 1))
    deltas = np.diff(lengths)
    padded = np.append(deltas, np.zeros(-len(deltas) % _BLOCK, np.int64))
    above = (padded - _BELOW_ANY).astype("<u4").view(np.uint8).reshape(-1, _BLOCK * _BITS // 8)
    heads = np.broadcast_to(_BLOCK_HEAD, (len(above), len(_BLOCK_HEAD)))
    return b"".join((*head, np.hstack([heads, above]).tobytes()))
