"""Columns as a Parquet file that holds their arrays as they are.

The same table as pyarrow writes (``arrow.to_table``), for rows without nested rare fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from rollstream.schemas.columns import Columns, Ragged, array_fields, collection_fields
from rollstream.store import arrow
from rollstream.store.plain import chunks, levels
from rollstream.store.plain.chunks import Chunk
from rollstream.store.plain.file import FileShape, Leaf
from rollstream.store.plain.levels import Levels
from rollstream.store.plain.values import TYPECODES

_ARRAY_TYPES = {"|b1": "BOOLEAN", "<i4": "INT32", "<i8": "INT64", "<f4": "FLOAT", "<f8": "DOUBLE"}
_SIDES: Mapping[str, Callable[[Any], Any]] = {
    "key_value.key": dict.keys,
    "key_value.value": dict.values,
}
_MAP_DEPTH = 1  # The definition level of a value in a map that is never null.


class Hints(NamedTuple):
    """What a file does for its readers; names are those of its columns.

    Attributes:
        repetitive: texts of few distinct values, each of which is stored once.
        filtered: columns whose range the footer says.
    """

    repetitive: Collection[str]
    filtered: Collection[str]


def plain_file(
    columns: Columns,
    provenance: Mapping[str, Sequence[Any]],
    metadata: Mapping[str, str],
    hints: Hints,
) -> bytes | None:
    """The file; None: a row has a nested rare field. Equal arguments give equal bytes.

    Args:
        columns: one row or more.
        provenance: the columns behind those of the ``rollout`` schema, one value a row.
        metadata: of the footer.
        hints: for readers.
    """
    layout = _layout()
    if layout is None or any(any(columns.scalars[name]) for name in _nested()):
        return None
    rows = _Rows(columns, provenance, hints)
    odd = {name: len(values) for name, values in rows.stored.items() if len(values) != rows.rows}
    assert not odd, f"columns of {odd} rows instead of {rows.rows}"
    written = [write(rows) for write in layout.writers]
    return layout.shape.file_bytes(written, columns.rows, metadata)


class _Rows:
    """What is to be written. Arrays of equal lengths have equal levels."""

    def __init__(
        self, columns: Columns, provenance: Mapping[str, Sequence[Any]], hints: Hints
    ) -> None:
        self.rows = columns.rows
        self.arrays = columns.arrays
        self.hints = hints
        self.stored = {arrow.stored_name(name): v for name, v in columns.scalars.items()}
        self.stored.update(provenance)
        self._levels: dict[tuple[bytes, bytes, int], Levels] = {}

    def levels_of(self, ragged: Ragged, depth: int) -> Levels:
        present = b"" if ragged.present is None else ragged.present.tobytes()
        key = (ragged.offsets.tobytes(), present, depth)
        if key not in self._levels:
            lengths = np.diff(ragged.offsets)
            self._levels[key] = levels.of_lists(lengths, ragged.present, depth)
        return self._levels[key]


_Writer = Callable[[_Rows], Chunk]


class _Layout(NamedTuple):
    """The shape of every file, and what writes each of its columns."""

    shape: FileShape
    writers: tuple[_Writer, ...]


@cache
def _layout() -> _Layout | None:
    """None: the schema has a column that nothing here writes; then pyarrow writes all files."""
    shape = FileShape.of(arrow.rows_schema())
    if shape is None:
        return None
    writers = [writer for leaf in shape.leaves if (writer := _writer_of(leaf)) is not None]
    return _Layout(shape, tuple(writers)) if len(writers) == len(shape.leaves) else None


@cache
def _nested() -> tuple[str, ...]:
    """The fields that may only be empty here."""
    return tuple(name for name, empty in collection_fields().items() if empty is list)


def _writer_of(leaf: Leaf) -> _Writer | None:
    name, _, inner = leaf.path.partition(".")
    if name in array_fields():
        known = _ARRAY_TYPES.get(array_fields()[name]) == leaf.physical
        return partial(_list, name, leaf.definition) if known else None
    if name in _nested():
        return _absent
    number = leaf.physical in TYPECODES or leaf.physical == "BOOLEAN"
    if not (number or leaf.text):
        return None
    if inner:
        side = _SIDES.get(inner) if leaf.definition == _MAP_DEPTH else None
        return partial(_map, name, leaf.physical, side) if side is not None else None
    if leaf.definition:
        return partial(_optional, name, leaf.physical)
    return partial(_text, name) if leaf.text else partial(_number, name, leaf.physical)


def _absent(rows: _Rows) -> Chunk:
    return chunks.absent(rows.rows)


def _list(name: str, depth: int, rows: _Rows) -> Chunk:
    ragged = rows.arrays.get(name)
    if ragged is None:
        return _absent(rows)
    assert len(ragged.offsets) == rows.rows + 1, (name, len(ragged.offsets))
    assert ragged.values.dtype == array_fields()[name], (name, ragged.values.dtype)
    return chunks.lists(rows.levels_of(ragged, depth), ragged.values)


def _map(name: str, physical: str, side: Callable[[Any], Any], rows: _Rows) -> Chunk:
    """One side of a map's pairs."""
    values = rows.stored[name]
    if not any(values):
        return _absent(rows)
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    inside = list(chain.from_iterable(map(side, values)))
    return chunks.pairs(levels.of_lists(sizes, None, _MAP_DEPTH), inside, physical)


def _optional(name: str, physical: str, rows: _Rows) -> Chunk:
    return chunks.optional(rows.stored[name], physical, statistics=name in rows.hints.filtered)


def _number(name: str, physical: str, rows: _Rows) -> Chunk:
    return chunks.scalars(rows.stored[name], physical, statistics=name in rows.hints.filtered)


def _text(name: str, rows: _Rows) -> Chunk:
    statistics = name in rows.hints.filtered
    if name in rows.hints.repetitive:
        return chunks.repetitive(rows.stored[name], statistics=statistics)
    return chunks.scalars(rows.stored[name], "BYTE_ARRAY", statistics=statistics)
