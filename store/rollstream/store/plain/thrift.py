"""Thrift's compact protocol, as far as Parquet's page headers and footers need it.

A struct is its fields in rising order and a stop. A field begins with a byte: how far its id lies
behind the one before (``step``), and its type. Integers are zigzag varints, as in Avro.

Source: Apache Thrift, "Thrift compact protocol encoding".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rollstream.schemas.varint import varint

I32, BINARY, STRUCT = 5, 8, 12  # Types of fields and of a list's items.
STOP = b"\x00"
_I64, _LIST = 6, 9
_SHORT_LIST_MAX = 14


@cache
def field(step: int, kind: int) -> bytes:
    """The byte that a field begins with."""
    return bytes((step << 4 | kind,))


def i32(step: int, value: int) -> bytes:
    """A field of a number from 0 on."""
    return field(step, I32) + varint(value << 1)


def i64(step: int, value: int) -> bytes:
    """A field of a number from 0 on."""
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
    """Text or bytes, as an item of a list."""
    return varint(len(value)) + value
