"""Levels: which row a value belongs to, and what is null or empty.

They are written as runs, so an array costs a few bytes and no look at its values. pyarrow, which
writes a level a value one after the other, spends most of its time there. No level is above 2, so
the level of a run is one byte.

Source: Apache Parquet format, "Nested encoding", "Run length encoding / bit-packing hybrid".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.varint import varint

_VARINT_BYTES_MAX = 5  # Of a run below 2**34 values; a chunk has fewer than 2**31.


class Levels(NamedTuple):
    """What stands in a data page before the values.

    Attributes:
        encoded: repetition levels where there are any, then definition levels.
        slots: how many levels of each kind: values, and nulls and empty arrays.
    """

    encoded: bytes
    slots: int


def of_absent(rows: int) -> Levels:
    """Of lists that are null or empty in each row."""
    return Levels(_framed(_run(rows, 0)) * 2, rows)


def of_optional(present: NDArray[np.bool_]) -> Levels:
    """Of one value or null a row.

    Args:
        present: bool [rows].
    """
    packed = np.packbits(present, bitorder="little").tobytes()
    return Levels(_framed(varint(len(packed) << 1 | 1) + packed), len(present))


def of_lists(lengths: NDArray[np.int64], present: NDArray[np.bool_] | None, depth: int) -> Levels:
    """Of a list a row.

    Args:
        lengths: int64 [rows]; 0 where the list is absent.
        present: bool [rows]; None: each row has a list.
        depth: the definition level of a value: 2 where a list may be null, else 1.
    """
    rows = len(lengths)
    slots = np.maximum(lengths, 1)
    total = int(slots.sum())
    # The first value of a row has 0, those behind it 1.
    counts = np.ones(2 * rows, np.int64)
    counts[1::2] = slots - 1
    repeated = counts > 0
    repetition = _runs(counts[repeated], np.tile(np.array([0, 1], np.uint8), rows)[repeated])
    defined = np.where(lengths > 0, depth, depth - 1).astype(np.uint8)
    if present is not None:
        defined[~present] = 0
    definition = _run(total, depth) if (defined == depth).all() else _runs(slots, defined)
    return Levels(_framed(repetition) + _framed(definition), total)


def _framed(runs: bytes) -> bytes:
    return len(runs).to_bytes(4, "little") + runs


def _run(count: int, level: int) -> bytes:
    return varint(count << 1) + bytes((level,))


def _runs(counts: NDArray[np.int64], levels: NDArray[np.uint8]) -> bytes:
    """``_run`` of each pair, joined."""
    bits = counts << 1
    found = np.empty((len(counts), _VARINT_BYTES_MAX + 1), np.uint8)
    used = np.ones(found.shape, np.bool_)
    for place in range(_VARINT_BYTES_MAX):
        rest = bits >> 7 * place
        found[:, place] = rest & 127 | (rest > 127) << 7
        used[:, place] = rest > 0
    found[:, -1] = levels
    return found[used].tobytes()
