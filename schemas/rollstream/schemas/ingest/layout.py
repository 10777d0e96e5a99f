"""The columns of a record's entries, in the order in which header and payload hold them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import nan
from struct import Struct, pack
from typing import Any, NamedTuple

from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.fields import RowField, named

TEXT, NUMBER, ARRAY = "text", "number", "array"
NONE, ALL, SOME = range(3)  # Which entries have an array.
# Always little-endian, as the wire has it.
_CODES = {"<i4": "i", "<u4": "I", "<i8": "q", "<f8": "d", "|b1": "B"}
_SHARED_DTYPES = {"int": "<i4", "long": "<i8"}
COUNTS = "<u4"  # How lengths and indexes are read: a negative one is beyond all bytes there are.
_COUNTS_KEPT = 256


class Column(NamedTuple):
    """One text, number or array an entry.

    Attributes:
        kind: ``TEXT``, ``NUMBER`` or ``ARRAY``.
        default: an entry's value where the column is empty; None: none.
        signature: dtype and trailing shape, of a number or an array.
        width: bytes of a number, or of one value of an array; 4 of a text, which has its size.
        default_bytes: of a number.
    """

    name: str
    kind: str
    default: Any
    signature: ArraySignature
    width: int
    default_bytes: bytes


class SharedField(NamedTuple):
    """One field of what several entries have in common; ``dtype`` is empty for a text."""

    name: str
    dtype: str


@cache
def plain_columns() -> tuple[Column, ...]:
    """Those that stand in the header itself."""
    return tuple(_column(f) for f in named(TEXT, NUMBER, ARRAY) if not f.extra)


@cache
def extra_columns() -> tuple[Column, ...]:
    """Those of ``extras``."""
    return tuple(_column(f) for f in named(TEXT, NUMBER, ARRAY) if f.extra)


@cache
def shared_fields() -> tuple[SharedField, ...]:
    """Those of one combination in ``shared``, in its order."""
    return tuple(
        SharedField(f.name, "" if f.row_type == "string" else _SHARED_DTYPES[f.row_type])
        for f in named("shared")
    )


@lru_cache(_COUNTS_KEPT)
def packers(count: int) -> dict[str, Callable[..., bytes]]:
    """By dtype: packs ``count`` numbers, given one by one."""
    return {dtype: Struct(f"<{count}{code}").pack for dtype, code in _CODES.items()}


@lru_cache(_COUNTS_KEPT)
def unpackers(count: int) -> dict[str, Callable[[Any], tuple[Any, ...]]]:
    """By dtype: unpacks ``count`` numbers from as many bytes as they have."""
    return {dtype: Struct(f"<{count}{code}").unpack for dtype, code in _CODES.items()}


def _column(field: RowField) -> Column:
    number = nan if field.default is None else field.default
    code = _CODES.get(field.dtype)
    return Column(
        field.name,
        field.column,
        "" if field.column == TEXT and field.required else field.default,
        ArraySignature(field.dtype, ()),
        int(field.dtype[2:] or 4),
        pack(f"<{code}", number) if code and field.column == NUMBER else b"",
    )
