"""Named arrays of a table that pyarrow read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollstream.schemas.columns import ArraySignature, Ragged, offsets_of
from rollstream.store import arrow
from rollstream.store.errors import NoTokenArray


def token_array(table: pa.Table, name: str) -> Ragged:
    """Returns a named array of the table's rows, with the dtype and shape that it was published
    with.

    ``values`` is [total, *shape], and ``.row(i)`` is row ``i``; None: it was not published. The
    values are a view of the table's memory, or a copy if the column has several chunks.

    Args:
        table: as pyarrow reads it from a file, or from ``open_dataset``, with the column
            ``token_array_NAME``, and ``token_count`` if that is one of bytes.
        name: as in ``publish(token_arrays={name: …})``.

    Raises:
        NoTokenArray: the table lacks one of these columns, or its metadata name no dtype and shape:
            another tool made the table, or its files differ in them.
    """
    column = arrow.TOKEN_ARRAY_PREFIX + name
    if column not in table.column_names:
        raise NoTokenArray(f"the table has no column {column}; it has {table.column_names}")
    kind = table.field(column).type
    chunks = table.column(column).chunks or [pa.array([], kind)]
    if pa.types.is_list(kind):
        return _joined([arrow.ragged_of(chunk) for chunk in chunks])
    if "token_count" not in table.column_names:
        raise NoTokenArray(f"{column} holds bytes; read the column token_count beside it")
    signature = _signature(table.field(column))
    counts = table.column("token_count").to_numpy()
    ends = accumulate(map(len, chunks), initial=0)
    return _joined(
        [
            arrow.ragged_of_binary(chunk, signature, counts[first:stop])
            for chunk, (first, stop) in zip(chunks, pairwise(ends), strict=True)
        ]
    )


def _joined(parts: Sequence[Ragged]) -> Ragged:
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.lengths() for part in parts])
    present = None
    if any(part.present is not None for part in parts):
        present = np.concatenate([_presence(part) for part in parts])
    values = np.concatenate([part.values for part in parts])
    return Ragged(values, offsets_of(lengths), present)


def _presence(part: Ragged) -> NDArray[np.bool_]:
    return np.ones(len(part.offsets) - 1, np.bool_) if part.present is None else part.present


def _signature(field: pa.Field) -> ArraySignature:
    stated = field.metadata or {}
    if b"dtype" not in stated:
        raise NoTokenArray(
            f"the table does not say the dtype and shape of {field.name}: another tool made it, or "
            "its files differ in them; read each file by its path"
        )
    sides = stated[b"shape"].decode()
    shape = tuple(map(int, sides.split(","))) if sides else ()
    return ArraySignature(stated[b"dtype"].decode(), shape)
