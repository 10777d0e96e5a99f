"""Writes columns as a Parquet file with plain arrays.

The file holds the table that pyarrow would write. Where it is not compressed, an array that every
row has is one page which ends with its values one after the other. So a reader uses them in place:
reading a row costs what touching its bytes costs. Where it is compressed, such an array has a page
for each group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from rollstream.schemas.columns import Columns, Ragged, offsets_of
from rollstream.schemas.fields import array_fields, row_fields
from rollstream.schemas.wire_schemas import WireSchema
from rollstream.store import arrow
from rollstream.store.blobs import Bytes, Pieces
from rollstream.store.plain.encoding import (
    absent_levels,
    delta_lengths,
    list_levels,
    optional_levels,
    plain,
    raw,
)
from rollstream.store.plain.file import Chunk, FileShape, Leaf, bounds_of
from rollstream.store.plain.sums import FileGroup, chunk_sum, packed_sums, seed_of, sums_in

# Columns of integers with their minimum and maximum in the footer.
FILTERED = frozenset({"weight_step", "created_ts"})
# Most columns of a file have one value in all rows, and many have the same. Few MiB are kept.
_CHUNKS_KEPT, _KEPT_CHARS_MAX = 64, 16
_LIST = ("list", "element")  # Names below a list's in Parquet's schema.

_Path = tuple[str, ...]
_Values = Sequence[str] | NDArray[Any] | Ragged
"""Of a leaf column: one value a row, or several."""


def plain_file(
    columns: Columns,
    provenance: Mapping[str, Any],
    metadata: Mapping[str, str],
    compression: str = "none",
    groups: Sequence[FileGroup] = (),
    in_place: Collection[str] = (),
) -> Pieces:
    """A file with one row or more. Equal arguments give equal bytes.

    ``provenance`` holds the columns that follow those of a segment, one value a row; ``metadata``
    is in the footer. Of the ``groups`` that the rows are the arrays ``in_place``, which every row
    has, can be read one by one.
    """
    rows = columns.rows
    shape = _shape(arrow.signatures_of(columns))
    stored = dict(_leaves(columns))
    stored |= {(name,): values for name, values in provenance.items()}
    bounds = offsets_of([group.rows for group in groups])
    assert not groups or bounds[-1] == rows, (bounds, rows)
    seeds = [seed_of(group.digest) for group in groups]
    chunks: list[Chunk] = []
    summed: list[list[int]] = []
    for leaf in shape.leaves:
        values = stored.get(leaf.names)
        if isinstance(values, Ragged) and groups and leaf.names[0] in in_place:
            chunk, of_chunk = _grouped(leaf, values, bounds, seeds, compression)
        else:
            chunk, of_chunk = _chunk(leaf, values, rows, compression)
        chunks.append(chunk)
        summed.append(of_chunk)
    sums = packed_sums(groups, summed) if groups else ""
    return shape.file_pieces(chunks, metadata, rows, sums)


@lru_cache(arrow.SCHEMAS_KEPT)
def _shape(token_arrays: arrow.Signatures, rows: WireSchema | None = None) -> FileShape:
    return FileShape.of(arrow.rows_schema(token_arrays, rows))


@lru_cache(arrow.SCHEMAS_KEPT)
def chunk_indexes(token_arrays: arrow.Signatures, rows: WireSchema) -> Mapping[str, list[int]]:
    """Where the chunks of a column stand among those of a file with these named arrays and rows of
    this version."""
    found: dict[str, list[int]] = {}
    for index, leaf in enumerate(_shape(token_arrays, rows).leaves):
        found.setdefault(leaf.names[0], []).append(index)
    return found


def _leaves(columns: Columns) -> Iterator[tuple[_Path, _Values]]:
    """The leaf columns that some row has values in, by path."""
    for name, values in columns.scalars.items():
        if name in row_fields():
            yield (arrow.stored_name(row_fields()[name]),), values
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


def _grouped(
    leaf: Leaf,
    values: Ragged,
    bounds: NDArray[np.int64],
    seeds: Sequence[int],
    compression: str,
) -> tuple[Chunk, list[int]]:
    """The chunk of an array of which groups can be read one by one, and the sum of each."""
    if compression == "none":
        page = _page(leaf, values, len(values.offsets) - 1)
        width = arrow.stored_bytes(values.signature, binary=leaf.binary)
        sums = sums_in(page[1][-1], values.offsets[bounds], width, seeds)
        return Chunk.of(leaf.encoding, [page], compression), sums
    pages = []
    for span in pairwise(bounds.tolist()):
        part = values.part(*span)
        assert part is not None, "every row has the array"
        pages.append(_page(leaf, part, len(part.offsets) - 1))
    ends = zip(pages, seeds, strict=True)
    sums = [xxh3_64_intdigest(body[-1], seed) for (_, body), seed in ends]
    return Chunk.of(leaf.encoding, pages, compression), sums


def _chunk(
    leaf: Leaf, values: _Values | None, rows: int, compression: str
) -> tuple[Chunk, list[int]]:
    """The chunk of a leaf column, None: a list that is null or empty in each row; and its sum."""
    if values is None:
        return _equal_chunk(leaf.encoding, None, rows, compression)
    if isinstance(values, list):
        first = values[0]
        if len(first) <= _KEPT_CHARS_MAX and values.count(first) == rows:
            return _equal_chunk(leaf.encoding, first, rows, compression)
    bounds = bounds_of(np.asarray(values)) if leaf.names[0] in FILTERED else b""
    page = _page(leaf, values, rows)
    return Chunk.of(leaf.encoding, [page], compression, bounds), [chunk_sum(page[1])]


@lru_cache(_CHUNKS_KEPT)
def _equal_chunk(
    encoding: int, text: str | None, rows: int, compression: str
) -> tuple[Chunk, list[int]]:
    """The same of any column that has this text in each row; None: nothing in any."""
    body: Bytes = absent_levels(rows) if text is None else plain([text] * rows)
    return Chunk.of(encoding, [(rows, (body,))], compression), [chunk_sum((body,))]


def _page(leaf: Leaf, values: _Values, rows: int) -> tuple[int, tuple[Bytes, ...]]:
    """Slots and body of a page with these rows."""
    if isinstance(values, Ragged):
        assert len(values.offsets) == rows + 1, (leaf.names, len(values.offsets))
        if leaf.binary:
            return rows, _binaries(values)
        levels, slots = list_levels(values.lengths(), values.present, leaf.definition)
        return slots, (levels, plain(values.values))
    assert len(values) == rows, (leaf.names, len(values))
    if isinstance(values, np.ndarray) and leaf.definition:
        present = ~np.isnan(values)
        return rows, (optional_levels(present), plain(values[present]))
    return rows, (plain(values),)


def _binaries(ragged: Ragged) -> tuple[Bytes, ...]:
    """A named array as one binary a row."""
    lengths = ragged.lengths() * arrow.token_bytes(ragged.signature)
    present = np.ones(len(lengths), np.bool_) if ragged.present is None else ragged.present
    return optional_levels(present), delta_lengths(lengths[present]), raw(ragged.values)
