"""A digest over decoded rows: the same from the ingest log, from Parquet, and after a compaction.

It goes by field name. A run's digest covers the names of the fields that at least one of its rows
has, in order; then row by row one number a field; then, field by field, what has a varying length.
A field in which every row has the default is left out, so a field that a later version adds changes
no digest of rows without it; one that a later version removes still counts in rows that have it,
and one that is renamed counts under its first name.
Numbers are hashed as they lie in memory: big-endian machines are not
supported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import compress, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollstream.schemas.columns import Columns, Ragged, offsets_of
from rollstream.schemas.fields import RowField, first_names, removed_fields, scalar_fields

_ABSENT = -1
_Pieces = Sequence[bytes | memoryview]
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

    @cache  # Most runs have the same fields.
    def with_fields(which: bytes) -> tuple[bytes, memoryview, Sequence[_Pieces]]:
        used = np.frombuffer(which, np.bool_)
        some = list(compress(parts, used.tolist()))
        names = b"".join([part.name for part in some])
        by_row = np.ascontiguousarray(numbers[used].T).reshape(-1).view(np.uint8).data
        return names, by_row, [part.pieces for part in some if part.pieces]

    digests = []
    for run, (start, stop) in enumerate(pairwise(bounds.tolist())):
        names, by_row, flows = with_fields(in_run[run].tobytes())
        width = len(by_row) // columns.rows
        state = xxhash.xxh3_128(names + (stop - start).to_bytes(8, "little"))
        state.update(by_row[width * start : width * stop])
        for pieces in flows:
            state.update(pieces[run])
        digests.append(state.digest())
    return digests


def combined(digests: Sequence[bytes]) -> bytes:
    """One digest over others, in order."""
    return xxhash.xxh3_128_digest(b"".join(digests))


def checksum(data: bytes | bytearray | memoryview) -> str:
    """xxh3-128 of a file's bytes, hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data)


class _Part(NamedTuple):
    """One field.

    Attributes:
        name: framed, so that no two sequences of fields have the same bytes.
        has: bool [rows], whether the row has another value than the default.
        numbers: int64 [rows]: the value of a number, else the length of the row's bytes or array,
            or -1 where the row has no such array.
        pieces: of what has a varying length, the bytes of each run; empty for a number.
    """

    name: bytes
    has: NDArray[np.bool_]
    numbers: NDArray[np.int64]
    pieces: _Pieces = ()


def _parts(columns: Columns, bounds: NDArray[np.int64]) -> Iterator[_Part]:
    removed = (field for field in removed_fields().values() if field.name in columns.scalars)
    for field in (*scalar_fields(), *removed):
        values = columns.scalars[field.name]
        if isinstance(values, np.ndarray):
            part = _numbers(field, values)
            if part.has.any():
                yield part
        elif values.count(field.default) < len(values):
            yield _texts(_name(field.name), values, field.default, bounds)
    for name, ragged in columns.arrays.items():
        yield _array(_name(name), ragged, bounds)
    for name, ragged in columns.token_arrays.items():
        dtype, shape = ragged.signature
        yield _array(f"token_arrays/{name}/{dtype}/{shape}", ragged, bounds)
    if columns.rewards is not None:
        rows = map(columns.rewards.row, range(columns.rows))
        yield _texts("rewards", [repr(sorted(r.items())) if r else "" for r in rows], "", bounds)
    if columns.attachments is not None:
        texts = [
            _to_json({name: data.hex() for name, data in row.items()}) if row else ""
            for row in columns.attachments
        ]
        yield _texts("attachments", texts, "", bounds)


def _name(field: str) -> str:
    return first_names().get(field, field)


def _framed(name: str) -> bytes:
    return f"{len(name)} {name}".encode()


def _numbers(field: RowField, values: NDArray[Any]) -> _Part:
    name = _framed(_name(field.name))
    if values.dtype == np.float64:
        none = np.isnan(values)  # NaN has many bit patterns.
        return _Part(name, ~none, np.where(none, np.nan, values).view(np.int64))
    return _Part(name, values != field.default, values.astype(np.int64))


def _texts(name: str, values: Sequence[str], default: str, bounds: NDArray[np.int64]) -> _Part:
    count = len(values)
    if values.count(values[0]) == count:
        equal = values[0].encode()
        sizes, joined = np.full(count, len(equal)), equal * count
        has = np.full(count, values[0] != default)
    else:
        joined = "".join(values).encode()
        # In ASCII a text has as many bytes as characters.
        measured = values if joined.isascii() else [text.encode() for text in values]
        sizes = np.fromiter(map(len, measured), np.int64, count)
        has = np.array([value != default for value in values]) if default else sizes > 0
    return _Part(_framed(name), has, sizes, _cut(joined, offsets_of(sizes)[bounds]))


def _array(name: str, ragged: Ragged, bounds: NDArray[np.int64]) -> _Part:
    lengths = ragged.lengths()
    has = np.ones(len(lengths), np.bool_) if ragged.present is None else ragged.present
    values = np.ascontiguousarray(ragged.values)
    width = values.itemsize * prod(values.shape[1:])
    raw = values.reshape(-1).view(np.uint8).data
    pieces = _cut(raw, ragged.offsets[bounds] * width)
    return _Part(_framed(name), has, np.where(has, lengths, _ABSENT), pieces)


def _cut(raw: bytes | memoryview, ends: NDArray[np.int64]) -> _Pieces:
    return [raw[start:stop] for start, stop in pairwise(ends.tolist())]
