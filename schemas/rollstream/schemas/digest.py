"""A digest over decoded rows: the same from the ingest log, from Parquet, and after a compaction.

It goes by field name: each field that at least one row of the run has, in the order of names, with
its name, the lengths of its rows, and its values. A field in which every row has the default is
left out, so a field that a later version adds changes no digest of rows without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollstream.schemas.columns import Columns, Components, Ragged
from rollstream.schemas.fields import RowField, array_fields, scalar_fields

_ABSENT = -1
_Bytes = bytes | memoryview
_to_json = json.JSONEncoder(sort_keys=True).encode


def row_digests(columns: Columns, row_starts: Sequence[int]) -> list[bytes]:
    """One xxh3-128 digest (16 bytes) for each run of rows that ``row_starts`` begins.

    Args:
        columns: the rows, with all fields.
        row_starts: rising, the first 0; the last run ends with the last row.
    """
    starts = np.asarray(row_starts, np.int64)
    parts = sorted(_parts(columns, starts), key=lambda part: part.name)
    digests = []
    for run, (start, stop) in enumerate(pairwise((*row_starts, columns.rows))):
        # What is short stands together, so that a field costs no call of its own.
        short: list[_Bytes] = [(stop - start).to_bytes(8, "little")]
        flows = []
        for name, in_run, numbers, flow in parts:
            if in_run[run]:
                short.append(name)
                short.append(numbers[8 * start : 8 * stop])
                if flow is not None:
                    flows.append(flow.raw[flow.ends[start] : flow.ends[stop]])
        state = xxhash.xxh3_128(b"".join(short))
        for piece in flows:
            state.update(piece)
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

    raw: _Bytes
    ends: Sequence[int]


class _Part(NamedTuple):
    """One field.

    Attributes:
        name: framed, so that no two sequences of fields have the same bytes.
        in_run: of each run, whether a row of it has the field.
        numbers: 8 bytes a row: the value of a number, else the length of the row's bytes in the
            flow, or -1 where the row has no such array.
        flow: of what has a varying length.
    """

    name: bytes
    in_run: Sequence[bool]
    numbers: memoryview
    flow: _Flow | None


def _parts(columns: Columns, starts: NDArray[np.int64]) -> Iterator[_Part]:
    def part(name: str, has: NDArray[np.bool_], numbers: NDArray[Any], flow: _Flow | None) -> _Part:
        in_run = np.logical_or.reduceat(has, starts).tolist()
        framed = f"{len(name)} {name}".encode()
        return _Part(framed, in_run, np.ascontiguousarray(numbers).data.cast("B"), flow)

    for field in scalar_fields():
        values = columns.scalars[field.name]
        if isinstance(values, np.ndarray):
            has, numbers = _numbers(field, values)
            if has.any():
                yield part(field.name, has, numbers, None)
        elif (found := _texts(field, values)) is not None:
            yield part(field.name, *found)
    for name in array_fields():
        ragged = columns.arrays.get(name)
        if ragged is not None:
            yield part(name, *_array(ragged))
    for name, ragged in columns.token_arrays.items():
        dtype, shape = ragged.signature
        yield part(f"token_arrays/{name}/{dtype}/{shape}", *_array(ragged))
    if columns.rewards is not None:
        yield part("rewards", *_joined(_component_texts(columns.rewards, columns.rows)))
    if columns.attachments is not None:
        texts = [
            _to_json({name: data.hex() for name, data in row.items()}) if row else ""
            for row in columns.attachments
        ]
        yield part("attachments", *_joined(texts))


def _numbers(field: RowField, values: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    if values.dtype == np.float64:
        none = np.isnan(values)
        return ~none, np.where(none, np.nan, values)  # NaN has many bit patterns.
    return values != field.default, values.astype(np.int64)


def _texts(
    field: RowField, values: Sequence[str]
) -> tuple[NDArray[np.bool_], NDArray[np.int64], _Flow] | None:
    default = field.default or ""
    if values.count(default) == len(values):
        return None
    has, sizes, flow = _joined(values)
    if default:
        has = np.array([value != default for value in values], np.bool_)
    return has, sizes, flow


def _joined(texts: Sequence[str]) -> tuple[NDArray[np.bool_], NDArray[np.int64], _Flow]:
    """Which texts are not empty, how many bytes each has in UTF-8, and these bytes."""
    joined = "".join(texts)
    # In ASCII a text has as many bytes as characters.
    measured = texts if joined.isascii() else [text.encode() for text in texts]
    sizes = np.fromiter(map(len, measured), np.int64, len(texts))
    return sizes > 0, sizes, _Flow(joined.encode(), [0, *np.cumsum(sizes).tolist()])


def _array(ragged: Ragged) -> tuple[NDArray[np.bool_], NDArray[np.int64], _Flow]:
    lengths = np.diff(ragged.offsets)
    has = np.ones(len(lengths), np.bool_) if ragged.present is None else ragged.present
    values = np.ascontiguousarray(ragged.values)
    width = values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
    raw = values.reshape(-1).view(np.uint8).data
    flow = _Flow(raw, (ragged.offsets * width).tolist())
    return has, np.where(has, lengths, _ABSENT), flow


def _component_texts(components: Components, rows: int) -> list[str]:
    found = []
    for index in range(rows):
        row = components.row(index)
        found.append(repr(sorted(row.items())) if row else "")
    return found
