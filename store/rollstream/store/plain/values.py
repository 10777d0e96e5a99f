"""Values of a column, plain: as many bytes as they have, one value after the other.

Source: Apache Parquet format, "Plain encoding", "Dictionary encoding".
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rollstream.schemas.varint import varint

TYPECODES = {"INT32": "i", "INT64": "q", "DOUBLE": "d"}  # Python's names of Parquet's numbers.
_LENGTH_BYTES = 4
_LENGTHS_KEPT = 4_096
DISTINCT_MAX = 65_536  # Of a dictionary; there are readers that err beyond it.
_OF_ONE_BYTE = 256


class Dictionary(NamedTuple):
    """Distinct values, and which of them each row has.

    Attributes:
        distinct: how many.
        plain: the distinct values in the order of their first use.
        indices: of each row.
    """

    distinct: int
    plain: bytes
    indices: bytes


def plain(values: Sequence[Any], physical: str) -> list[bytes]:
    """One value after the other, in pieces.

    Args:
        values: without nulls.
        physical: Parquet's type of the column.
    """
    if physical == "BYTE_ARRAY":
        return _texts(values)
    if physical == "BOOLEAN":
        return [np.packbits(np.array(values, np.bool_), bitorder="little").tobytes()]
    return [array(TYPECODES[physical], values).tobytes()]


def coded(texts: Sequence[str]) -> Dictionary | None:
    """Texts that come again; None: there are too many distinct ones for it to be worth while."""
    rows = len(texts)
    if texts.count(texts[0]) == rows:
        return Dictionary(1, b"".join(_texts(texts[:1])), b"\x01" + varint(rows << 1) + b"\x00")
    places: dict[str, int] = {}
    indices = [places.setdefault(text, len(places)) for text in texts]
    if len(places) > DISTINCT_MAX:
        return None
    # Of whole bytes each, so that packing them is no work; they come in groups of eight.
    dtype = np.dtype("<u1" if len(places) <= _OF_ONE_BYTE else "<u2")
    groups = -(-rows // 8)
    packed = np.array(indices, dtype).tobytes().ljust(groups * 8 * dtype.itemsize, b"\x00")
    head = bytes((8 * dtype.itemsize,)) + varint(groups << 1 | 1)
    return Dictionary(len(places), b"".join(_texts(places)), head + packed)


def _texts(values: Collection[str]) -> list[bytes]:
    if not any(values):
        return [bytes(_LENGTH_BYTES * len(values))]
    raws = [value.encode() for value in values]
    return [part for raw in raws for part in (_length(len(raw)), raw)]


@lru_cache(_LENGTHS_KEPT)
def _length(size: int) -> bytes:
    return size.to_bytes(_LENGTH_BYTES, "little")
