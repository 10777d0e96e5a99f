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
_INDEX_DTYPES = ("<u1", "<u2", "<u4")


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


def plain(values: Sequence[Any], physical: str) -> bytes:
    """One value after the other.

    Args:
        values: without nulls.
        physical: Parquet's type of the column.
    """
    if physical == "BYTE_ARRAY":
        return _texts(values)
    if physical == "BOOLEAN":
        return np.packbits(np.array(values, np.bool_), bitorder="little").tobytes()
    return array(TYPECODES[physical], values).tobytes()


def coded(texts: Sequence[str]) -> Dictionary:
    """Texts that come again."""
    rows = len(texts)
    if texts.count(texts[0]) == rows:
        return Dictionary(1, _texts(texts[:1]), b"\x01" + varint(rows << 1) + b"\x00")
    places: dict[str, int] = {}
    indices = [places.setdefault(text, len(places)) for text in texts]
    # Of whole bytes each, so that packing them is no work; they come in groups of eight.
    dtype = next(d for d in _INDEX_DTYPES if len(places) <= 256 ** np.dtype(d).itemsize)
    width = np.dtype(dtype).itemsize
    groups = -(-rows // 8)
    packed = np.array(indices, dtype).tobytes().ljust(groups * 8 * width, b"\x00")
    head = bytes((8 * width,)) + varint(groups << 1 | 1)
    return Dictionary(len(places), _texts(places), head + packed)


def _texts(values: Collection[str]) -> bytes:
    if not any(values):
        return bytes(_LENGTH_BYTES * len(values))
    raws = [value.encode() for value in values]
    return b"".join([part for raw in raws for part in (_length(len(raw)), raw)])


@lru_cache(_LENGTHS_KEPT)
def _length(size: int) -> bytes:
    return size.to_bytes(_LENGTH_BYTES, "little")
