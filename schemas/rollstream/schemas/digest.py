"""A digest over decoded rows: the same from the ingest log, from Parquet, and after a compaction.

It covers every field of every row, and where one row ends and the next begins. An array column
that no row has counts like one that is null in each row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollstream.schemas.columns import Columns, array_fields, scalar_fields

_ABSENT = -1
_to_json = json.JSONEncoder(sort_keys=True, default=methodcaller("hex")).encode


def row_digests(columns: Columns, row_starts: Sequence[int]) -> list[bytes]:
    """One xxh3-128 digest (16 bytes) for each run of rows that ``row_starts`` begins.

    Args:
        columns: the rows.
        row_starts: rising, the first 0; the last run ends with the last row.
    """
    # A run has a few rows of some forty columns, so a call a column and run would cost more than
    # the hashing: all numbers and lengths of a row stand together, the rest is sliced.
    numbers, flows = _laid_out(columns)
    row_bytes = numbers.shape[1] * numbers.itemsize
    rows = numbers.data.cast("B")
    digests = []
    for start, stop in pairwise((*row_starts, columns.rows)):
        state = xxhash.xxh3_128((stop - start).to_bytes(8, "little"))
        state.update(rows[row_bytes * start : row_bytes * stop])
        for raw, ends in flows:
            state.update(raw[ends[start] : ends[stop]])
        digests.append(state.digest())
    return digests


def combined(digests: Sequence[bytes]) -> bytes:
    """One digest over others, in order."""
    return xxhash.xxh3_128_digest(b"".join(digests))


def checksum(data: bytes | bytearray | memoryview) -> str:
    """xxh3-128 of a file's bytes, hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data)


class _Flow(NamedTuple):
    """One field's bytes, row after row; ``ends``: 0, then where the bytes of each row end."""

    raw: bytes | memoryview
    ends: Sequence[int]


def _laid_out(columns: Columns) -> tuple[NDArray[np.int64], list[_Flow]]:
    """Numbers and lengths (-1: absent), int64 [rows, fields], and the fields with these lengths."""
    numbers: list[NDArray[Any] | int] = []
    flows: list[_Flow] = []
    for name, kind in scalar_fields().items():
        canonical = _canonical(columns.scalars[name], kind)
        if isinstance(canonical, np.ndarray):
            numbers.append(canonical.view(np.int64))
        elif not any(canonical):
            numbers.append(0)
        else:
            raw, sizes = _joined(canonical)
            numbers.append(sizes)
            flows.append(_Flow(raw, [0, *np.cumsum(sizes).tolist()]))
    for name in array_fields():
        ragged = columns.arrays.get(name)
        if ragged is None:
            numbers.append(_ABSENT)
            continue
        lengths = np.diff(ragged.offsets)
        present = ragged.present
        numbers.append(lengths if present is None else np.where(present, lengths, _ABSENT))
        values = np.ascontiguousarray(ragged.values)
        flows.append(_Flow(values.data.cast("B"), (ragged.offsets * values.itemsize).tolist()))
    laid_out = np.empty((columns.rows, len(numbers)), np.int64)
    for index, column in enumerate(numbers):
        laid_out[:, index] = column
    return laid_out, flows


def _joined(texts: Sequence[str]) -> tuple[bytes, NDArray[np.int64]]:
    """The texts in UTF-8, and how many bytes each one has."""
    joined = "".join(texts)
    # In ASCII a text has as many bytes as characters.
    measured = texts if joined.isascii() else [text.encode() for text in texts]
    return joined.encode(), np.fromiter(map(len, measured), np.int64, len(texts))


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
        return [_to_json(value) if value else "" for value in values]
    return np.asarray([np.nan if value is None else value for value in values], np.float64)
