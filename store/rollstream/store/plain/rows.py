"""Writes columns as a Parquet file with plain arrays.

The file holds the table that pyarrow would write. Where it is not compressed, an array that every
row has is one page which ends with its values one after the other. So a reader uses them in place:
reading a row of a mapped file costs what touching its bytes costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.columns import Columns, Ragged, offsets_of
from rollstream.schemas.fields import array_fields
from rollstream.schemas.wire_schemas import WireSchema
from rollstream.store import arrow
from rollstream.store.blobs import Pieces
from rollstream.store.plain.encoding import (
    absent_levels,
    delta_lengths,
    list_levels,
    optional_levels,
    plain,
    raw,
)
from rollstream.store.plain.file import Chunk, FileShape, Leaf, bounds_of

# Columns of integers with their minimum and maximum in the footer.
FILTERED = frozenset({"weight_step", "created_ts"})
_LIST = ("list", "element")  # Names below a list's in Parquet's schema.

_Path = tuple[str, ...]
_Values = Sequence[str] | NDArray[Any] | Ragged
"""Of a leaf column: one value a row, or several."""


def plain_file(
    columns: Columns,
    provenance: Mapping[str, Any],
    metadata: Mapping[str, str],
    compression: str = "none",
) -> Pieces:
    """A file with one row or more. Equal arguments give equal bytes.

    ``provenance`` holds the columns that follow those of a segment, one value a row; ``metadata``
    is in the footer.
    """
    shape = _shape(arrow.signatures_of(columns))
    stored = dict(_leaves(columns))
    stored |= {(name,): values for name, values in provenance.items()}
    chunks = [_chunk(leaf, stored.get(leaf.names), columns.rows) for leaf in shape.leaves]
    return shape.file_pieces(chunks, metadata, columns.rows, compression)


@lru_cache(arrow.SCHEMAS_KEPT)
def _shape(token_arrays: arrow.Signatures, rows: WireSchema | None = None) -> FileShape:
    return FileShape.of(arrow.rows_schema(token_arrays, rows))


@lru_cache(arrow.SCHEMAS_KEPT)
def chunk_indexes(token_arrays: arrow.Signatures, rows: WireSchema) -> Mapping[str, int]:
    """Where the chunk of a column stands among those of a file with these named arrays and rows of
    this version; of a list, that of its last leaf."""
    return {leaf.names[0]: index for index, leaf in enumerate(_shape(token_arrays, rows).leaves)}


def _leaves(columns: Columns) -> Iterator[tuple[_Path, _Values]]:
    """The leaf columns that some row has values in, by path."""
    for name, values in columns.scalars.items():
        yield (arrow.stored_name(name),), values
    for name, ragged in columns.arrays.items():
        assert ragged.values.dtype == array_fields()[name], (name, ragged.values.dtype)
        yield (name, *_LIST), ragged
    for name, ragged in columns.token_arrays.items():
        column = arrow.TOKEN_ARRAY_PREFIX + name
        yield (column, *_LIST) if arrow.is_list(ragged.signature) else (column,), ragged
    if columns.rewards is not None:
        given = columns.rewards
        names = np.array(given.names, object)[given.indexes]
        yield ("rewards", *_LIST, "name"), Ragged(names, given.offsets)
        yield ("rewards", *_LIST, "value"), Ragged(given.values, given.offsets)
    if columns.attachments is not None:
        files = columns.attachments
        offsets = offsets_of(list(map(len, files)))
        names = np.array(list(chain.from_iterable(files)), object)
        data = np.array([data for row in files for data in row.values()], object)
        yield ("attachments", *_LIST, "name"), Ragged(names, offsets)
        yield ("attachments", *_LIST, "data"), Ragged(data, offsets)


def _chunk(leaf: Leaf, values: _Values | None, rows: int) -> Chunk:
    """The chunk of a leaf column; None: a list that is null or empty in each row."""
    if values is None:
        return Chunk((absent_levels(rows),), rows)
    if isinstance(values, Ragged):
        assert len(values.offsets) == rows + 1, (leaf.names, len(values.offsets))
        if leaf.binary:
            return _binaries(values)
        levels, slots = list_levels(values.lengths(), values.present, leaf.definition)
        return Chunk((levels, plain(values.values)), slots)
    assert len(values) == rows, (leaf.names, len(values))
    if isinstance(values, np.ndarray) and leaf.definition:
        present = ~np.isnan(values)
        return Chunk((optional_levels(present), plain(values[present])), rows)
    bounds = bounds_of(np.asarray(values)) if leaf.names[0] in FILTERED else b""
    return Chunk((plain(values),), rows, bounds)


def _binaries(ragged: Ragged) -> Chunk:
    """A named array as one binary a row."""
    lengths = ragged.lengths() * arrow.token_bytes(ragged.signature)
    present = np.ones(len(lengths), np.bool_) if ragged.present is None else ragged.present
    body = (optional_levels(present), delta_lengths(lengths[present]), raw(ragged.values))
    return Chunk(body, len(present))
