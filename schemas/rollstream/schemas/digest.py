"""A digest over decoded rows: the same from the ingest log, from Parquet, and after a compaction.

It goes by field name. A run's digest covers the names of the fields that at least one of its rows
has, in order; then row by row one number a field; then, field by field, what has a varying length.
A field in which every row has the default is left out, so a field that a later version adds changes
no digest of rows without it. Numbers are hashed as they lie in memory: big-endian machines are not
supported.
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
_NUMBER_BYTES = 8
_to_json = json.JSONEncoder(sort_keys=True).encode


def row_digests(columns: Columns, row_starts: Sequence[int]) -> list[bytes]:
    """One xxh3-128 digest (16 bytes) for each run of rows that ``row_starts`` begins.

    Args:
        columns: the rows, with all fields.
        row_starts: rising, the first 0; the last run ends with the last row.
    """
    bounds = np.array([*row_starts, columns.rows], np.int64)
    parts = sorted(_parts(columns, bounds), key=lambda part: part.name)
    numbers = np.array([part.numbers for part in parts], np.int64)
    has = np.array([part.has for part in parts], np.bool_)
    in_run = np.logical_or.reduceat(has, bounds[:-1], axis=1).T
    patterns: dict[bytes, _Pattern] = {}
    digests = []
    for run, (start, stop) in enumerate(pairwise(bounds.tolist())):
        which = in_run[run].tobytes()
        pattern = patterns.get(which)
        if pattern is None:
            pattern = patterns[which] = _pattern(parts, numbers, in_run[run])
        width = pattern.width
        state = xxhash.xxh3_128(pattern.names + (stop - start).to_bytes(8, "little"))
        state.update(pattern.numbers[width * start : width * stop])
        for raw, ends in pattern.flows:
            state.update(raw[ends[run] : ends[run + 1]])
        digests.append(state.digest())
    return digests


def combined(digests: Sequence[bytes]) -> bytes:
    """One digest over others, in order."""
    return xxhash.xxh3_128_digest(b"".join(digests))


def checksum(data: bytes | bytearray | memoryview) -> str:
    """xxh3-128 of a file's bytes, hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data)


class _Flow(NamedTuple):
    """One field's bytes, row after row; ``ends``: 0, then where the bytes of each run end."""

    raw: bytes | memoryview
    ends: Sequence[int]


class _Part(NamedTuple):
    """One field.

    Attributes:
        name: framed, so that no two sequences of fields have the same bytes.
        has: bool [rows], whether the row has another value than the default.
        numbers: int64 [rows]: the value of a number, else the length of the row's bytes or array,
            or -1 where the row has no such array.
        flow: of what has a varying length.
    """

    name: bytes
    has: NDArray[np.bool_]
    numbers: NDArray[np.int64]
    flow: _Flow | None


class _Pattern(NamedTuple):
    """The fields that a run has; ``numbers`` has ``width`` bytes a row, of all rows."""

    names: bytes
    numbers: memoryview
    width: int
    flows: Sequence[_Flow]


def _pattern(
    parts: Sequence[_Part], numbers: NDArray[np.int64], in_run: NDArray[np.bool_]
) -> _Pattern:
    some = [part for part, used in zip(parts, in_run.tolist(), strict=True) if used]
    by_row = np.ascontiguousarray(numbers[in_run].T)
    return _Pattern(
        b"".join([part.name for part in some]),
        by_row.reshape(-1).view(np.uint8).data,
        _NUMBER_BYTES * len(some),
        [part.flow for part in some if part.flow is not None],
    )


def _parts(columns: Columns, bounds: NDArray[np.int64]) -> Iterator[_Part]:
    def part(
        name: str, has: NDArray[np.bool_], numbers: NDArray[np.int64], flow: _Flow | None
    ) -> _Part:
        return _Part(f"{len(name)} {name}".encode(), has, numbers, flow)

    for field in scalar_fields():
        values = columns.scalars[field.name]
        if isinstance(values, np.ndarray):
            has, numbers = _numbers(field, values)
            if has.any():
                yield part(field.name, has, numbers, None)
        elif values.count(field.default or "") < len(values):
            yield part(field.name, *_texts(values, field.default or "", bounds))
    for name in array_fields():
        ragged = columns.arrays.get(name)
        if ragged is not None:
            yield part(name, *_array(ragged, bounds))
    for name, ragged in columns.token_arrays.items():
        dtype, shape = ragged.signature
        yield part(f"token_arrays/{name}/{dtype}/{shape}", *_array(ragged, bounds))
    if columns.rewards is not None:
        texts = _component_texts(columns.rewards, columns.rows)
        yield part("rewards", *_texts(texts, "", bounds))
    if columns.attachments is not None:
        texts = [
            _to_json({name: data.hex() for name, data in row.items()}) if row else ""
            for row in columns.attachments
        ]
        yield part("attachments", *_texts(texts, "", bounds))


def _numbers(field: RowField, values: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    if values.dtype == np.float64:
        none = np.isnan(values)  # NaN has many bit patterns.
        return ~none, np.where(none, np.nan, values).view(np.int64)
    return values != field.default, values.astype(np.int64)


def _texts(
    values: Sequence[str], default: str, bounds: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64], _Flow]:
    """Which texts are not the default, how many bytes each has in UTF-8, and these bytes."""
    rows = len(values)
    if values.count(values[0]) == rows:
        one = values[0].encode()
        flow = _Flow(one * rows, (bounds * len(one)).tolist())
        return np.full(rows, values[0] != default), np.full(rows, len(one), np.int64), flow
    joined = "".join(values)
    # In ASCII a text has as many bytes as characters.
    measured = values if joined.isascii() else [text.encode() for text in values]
    sizes = np.fromiter(map(len, measured), np.int64, rows)
    has = np.array([value != default for value in values]) if default else sizes > 0
    ends = np.concatenate(((0,), np.cumsum(sizes)))[bounds]
    return has, sizes, _Flow(joined.encode(), ends.tolist())


def _array(
    ragged: Ragged, bounds: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64], _Flow]:
    lengths = np.diff(ragged.offsets)
    has = np.ones(len(lengths), np.bool_) if ragged.present is None else ragged.present
    values = np.ascontiguousarray(ragged.values)
    width = values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
    raw = values.reshape(-1).view(np.uint8).data
    flow = _Flow(raw, (ragged.offsets[bounds] * width).tolist())
    return has, np.where(has, lengths, _ABSENT), flow


def _component_texts(components: Components, rows: int) -> list[str]:
    found = []
    for index in range(rows):
        row = components.row(index)
        found.append(repr(sorted(row.items())) if row else "")
    return found
