"""Columns as a Parquet file that holds their arrays as they are.

The same table as pyarrow writes (``arrow.to_table``), for rows without nested rare fields.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from rollstream.schemas.columns import (
    REQUIRED_ARRAYS,
    Columns,
    Ragged,
    array_fields,
    scalar_fields,
)
from rollstream.store import arrow
from rollstream.store.plain import chunks, levels
from rollstream.store.plain.chunks import Chunk
from rollstream.store.plain.file import FileShape, Leaf
from rollstream.store.plain.levels import Levels

_DEPTH = 1  # Of a value in a list or map that is never null.
_DEPTH_OPTIONAL = 2


class Hints(NamedTuple):
    """What a file does for its readers.

    Attributes:
        repetitive: text columns of few distinct values: each of these is stored once.
        filtered: columns whose range the footer says.
    """

    repetitive: Collection[str]
    filtered: Collection[str]


def is_plain(columns: Columns) -> bool:
    """Whether ``plain_file`` can write them."""
    return not any(any(columns.scalars[name]) for name in _nested_fields())


def plain_file(
    columns: Columns,
    provenance: Mapping[str, Sequence[Any]],
    metadata: Mapping[str, str],
    hints: Hints,
) -> bytes:
    """The file. Equal arguments give equal bytes.

    Args:
        columns: ``is_plain``, one row or more.
        provenance: the columns behind those of the ``rollout`` schema, one value a row.
        metadata: of the footer.
        hints: for readers.
    """
    shape = _shape()
    stored = {arrow.stored_name(name): values for name, values in columns.scalars.items()}
    stored.update(provenance)
    lists = _Lists(columns)
    found = []
    for leaf in shape.leaves:
        name = leaf.path.partition(".")[0]
        if name in array_fields():
            found.append(lists.chunk(name))
        elif leaf.repeated:
            found.append(_of_map(leaf, stored[name]))
        else:
            found.append(_of_scalars(leaf, stored[name], hints))
    return shape.file_bytes(found, columns.rows, metadata)


@cache
def _shape() -> FileShape:
    return FileShape(arrow.rows_schema())


@cache
def _nested_fields() -> tuple[str, ...]:
    kinds = {name: kind["type"] for name, kind in scalar_fields().items() if isinstance(kind, dict)}
    return tuple(name for name, kind in kinds.items() if kind == "array")


class _Lists:
    """The packed arrays of some rows. Those of equal lengths have equal levels."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._levels: dict[tuple[bytes, bytes, int], Levels] = {}

    def chunk(self, name: str) -> Chunk:
        ragged = self._columns.arrays.get(name)
        if ragged is None:
            return chunks.absent(self._columns.rows, repeated=True)
        depth = _DEPTH if name in REQUIRED_ARRAYS else _DEPTH_OPTIONAL
        return chunks.lists(self._of(ragged, depth), ragged.values)

    def _of(self, ragged: Ragged, depth: int) -> Levels:
        present = b"" if ragged.present is None else ragged.present.tobytes()
        key = (ragged.offsets.tobytes(), present, depth)
        if key not in self._levels:
            lengths = np.diff(ragged.offsets)
            self._levels[key] = levels.of_lists(lengths, ragged.present, depth)
        return self._levels[key]


def _of_scalars(leaf: Leaf, values: Sequence[Any], hints: Hints) -> Chunk:
    statistics = leaf.path in hints.filtered
    if leaf.path in hints.repetitive:
        return chunks.words(values, statistics=statistics)
    if leaf.nullable:
        return chunks.optional(values, leaf.physical, statistics=statistics)
    return chunks.scalars(values, leaf.physical, statistics=statistics)


def _of_map(leaf: Leaf, values: Sequence[Any]) -> Chunk:
    """One side of a map's pairs."""
    if not any(values):
        return chunks.absent(len(values), repeated=True)
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    keys = leaf.path.endswith(".key")
    inside = list(chain.from_iterable(row.keys() if keys else row.values() for row in values))
    return chunks.pairs(levels.of_lists(sizes, None, _DEPTH), inside, leaf.physical)
