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


def row_digests(columns: Columns, row_starts: Sequence[int]) -> list[bytes]:
    """One xxh3-128 digest (16 bytes) for each run of rows that ``row_starts`` begins.

    Args:
        columns: the rows.
        row_starts: rising, the first 0; the last run ends with the last row.
    """
    scalars = [_canonical(columns.scalars[name], kind) for name, kind in scalar_fields().items()]
    arrays = [columns.arrays.get(name) for name in array_fields()]
    digests = []
    for start, stop in pairwise((*row_starts, columns.rows)):
        state = xxhash.xxh3_128()
        for column in scalars:
            if isinstance(column, list):
                raw = [text.encode() for text in column[start:stop]]
                state.update(np.fromiter(map(len, raw), np.int64, len(raw)).data)
                state.update(b"".join(raw))
            else:
                state.update(column[start:stop].data)
        for ragged in arrays:
            _add_rows(state, ragged, start, stop)
        digests.append(state.digest())
    return digests


def combined(digests: Sequence[bytes]) -> bytes:
    """One digest over others, in order."""
    return xxhash.xxh3_128_digest(b"".join(digests))


def checksum(data: bytes | memoryview) -> str:
    """xxh3-128 of a file's bytes, hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data)


def _add_rows(state: Any, ragged: Ragged | None, start: int, stop: int) -> None:
    if ragged is None:
        state.update(np.full(stop - start, -1, np.int64).tobytes())
        return
    lengths = np.diff(ragged.offsets[start : stop + 1])
    if ragged.present is not None:
        lengths = np.where(ragged.present[start:stop], lengths, -1)
    state.update(lengths.tobytes())
    state.update(ragged.values[ragged.offsets[start] : ragged.offsets[stop]].data.cast("B"))


def _canonical(values: Sequence[Any], avro_type: Any) -> list[str] | NDArray[Any]:
    """Strings as they are, numbers as 8 bytes each, anything else as text with sorted keys."""
    kind = avro_type["type"] if isinstance(avro_type, dict) else avro_type
    if kind == "string":
        return list(values)
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
