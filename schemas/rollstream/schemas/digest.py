"""A digest over decoded rows: the same from the ingest log, from Parquet, and after a compaction.

It covers every field of every row, and where one row ends and the next begins. An array column
that no row has counts like one that is null in each row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollstream.schemas.columns import Columns, Ragged, array_fields, scalar_fields

_ABSENT = np.int64(-1).tobytes()


def row_digests(columns: Columns, row_starts: Sequence[int]) -> list[bytes]:
    """One xxh3-128 digest (16 bytes) for each run of rows that ``row_starts`` begins.

    Args:
        columns: the rows.
        row_starts: rising, the first 0; the last run ends with the last row.
    """
    # What is hashed is named here once for all rows, as views; per run they are only sliced. A run
    # has a few kilobytes, so a call per column and run would cost more than the hashing.
    columns_of: list[_Fixed | _Texts | _Arrays | _Absent] = []
    for name, kind in scalar_fields().items():
        canonical = _canonical(columns.scalars[name], kind)
        columns_of.append(
            _Fixed(canonical) if isinstance(canonical, np.ndarray) else _Texts(canonical)
        )
    for name in array_fields():
        ragged = columns.arrays.get(name)
        columns_of.append(_Absent() if ragged is None else _Arrays(ragged))
    digests = []
    for start, stop in pairwise((*row_starts, columns.rows)):
        state = xxhash.xxh3_128()
        parts: list[bytes | memoryview] = []
        for column in columns_of:
            column.add(parts, start, stop)
        state.update(b"".join(parts))
        digests.append(state.digest())
    return digests


def combined(digests: Sequence[bytes]) -> bytes:
    """One digest over others, in order."""
    return xxhash.xxh3_128_digest(b"".join(digests))


def checksum(data: bytes | bytearray | memoryview) -> str:
    """xxh3-128 of a file's bytes, hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data)


class _Fixed:
    """Numbers, 8 bytes each."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values.data.cast("B")

    def add(self, parts: list[bytes | memoryview], start: int, stop: int) -> None:
        parts.append(self._values[8 * start : 8 * stop])


class _Texts:
    """Where each text ends, then the texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        joined = "".join(texts)
        # In ASCII a text has as many bytes as characters.
        measured = texts if joined.isascii() else [text.encode() for text in texts]
        sizes = np.fromiter(map(len, measured), np.int64, len(texts))
        self._sizes = sizes.data.cast("B")
        self._raw = joined.encode()
        self._ends = [0, *np.cumsum(sizes).tolist()]

    def add(self, parts: list[bytes | memoryview], start: int, stop: int) -> None:
        parts.append(self._sizes[8 * start : 8 * stop])
        if self._raw:
            parts.append(self._raw[self._ends[start] : self._ends[stop]])


class _Arrays:
    """Where each array ends (-1: absent), then the values."""

    def __init__(self, ragged: Ragged) -> None:
        lengths = np.diff(ragged.offsets)
        if ragged.present is not None:
            lengths = np.where(ragged.present, lengths, -1)
        self._lengths = np.ascontiguousarray(lengths, np.int64).data.cast("B")
        width = ragged.values.itemsize
        self._values = np.ascontiguousarray(ragged.values).data.cast("B")
        self._ends = (ragged.offsets * width).tolist()

    def add(self, parts: list[bytes | memoryview], start: int, stop: int) -> None:
        parts.append(self._lengths[8 * start : 8 * stop])
        parts.append(self._values[self._ends[start] : self._ends[stop]])


class _Absent:
    """An array that no row has."""

    def add(self, parts: list[bytes | memoryview], start: int, stop: int) -> None:
        parts.append(_ABSENT * (stop - start))


def _canonical(values: Sequence[Any], avro_type: Any) -> Sequence[str] | NDArray[Any]:
    """Strings as they are, numbers as 8 bytes each, anything else as text with sorted keys."""
    kind = avro_type["type"] if isinstance(avro_type, dict) else avro_type
    if kind == "string":
        return values
    if kind in ("int", "long", "boolean"):
        return np.asarray(values, np.int64)
    if kind == "map":
        return [repr(sorted(dict(value).items())) if value else "" for value in values]
    if kind == "array":
        return [
            json.dumps(value, sort_keys=True, default=_hex) if value else "" for value in values
        ]
    return np.asarray([np.nan if value is None else value for value in values], np.float64)


def _hex(value: bytes) -> str:
    return value.hex()
