"""Many segments as columns: the form in which payloads move from record to Parquet to batch.

A token is never touched by Python code: arrays are joined and sliced as buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


def offsets_of(lengths: Any) -> NDArray[np.int64]:
    """int64 [rows + 1]: 0, then where each row ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@dataclass(frozen=True, slots=True)
class Ragged:
    """One array a row.

    Row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    Attributes:
        values: [total, …]; the trailing shape is that of one token.
        offsets: int64 [rows + 1], starting at 0, rising. Columns with equal lengths may share one.
        present: bool [rows], or None where every row has the array. An absent row is empty.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    present: NDArray[np.bool_] | None = None

    def row(self, index: int) -> NDArray[Any] | None:
        """A view of one row; None where it is absent."""
        if self.present is not None and not self.present[index]:
            return None
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self) -> NDArray[np.int64]:
        """In tokens, one a row."""
        return self.offsets[1:] - self.offsets[:-1]

    def part(self, start: int, stop: int) -> Ragged | None:
        """Rows ``start`` to ``stop``, their values as a view; None where none of them has it."""
        offsets, present = self.offsets[start : stop + 1], self.present
        if present is not None:
            present = present[start:stop]
            if not present.any():
                return None
            if present.all():
                present = None
        first = offsets[0]
        return Ragged(self.values[first : offsets[-1]], offsets - first, present)

    def only(self, rows: NDArray[np.intp]) -> Ragged:
        """These rows, in this order; their values are copied."""
        lengths = self.lengths()[rows]
        each = [self.values[self.offsets[row] : self.offsets[row + 1]] for row in rows.tolist()]
        values = np.concatenate([self.values[:0], *each])
        present = None if self.present is None else self.present[rows]
        return Ragged(values, offsets_of(lengths), present)

    @property
    def signature(self) -> ArraySignature:
        """Its dtype and trailing shape."""
        return ArraySignature(self.values.dtype.str, self.values.shape[1:])


class ArraySignature(NamedTuple):
    """What all rows of a named array in one file have in common.

    Attributes:
        dtype: as NumPy names it, little-endian: ``|u1``, ``<f4``.
        shape: the trailing shape; () for one value a token.
    """

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Components:
    """Named numbers, any of them a row.

    Row ``i`` has the values ``offsets[i]`` to ``offsets[i + 1]``, and their names.

    Attributes:
        names: distinct.
        offsets: int64 [rows + 1], starting at 0.
        indexes: int32 [total]: the name of each value, as an index of ``names``.
        values: float64 [total].
    """

    names: tuple[str, ...]
    offsets: NDArray[np.int64]
    indexes: NDArray[np.int32]
    values: NDArray[np.float64]

    def row(self, index: int) -> dict[str, float]:
        """Name to value, of one row."""
        start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        names = (self.names[i] for i in self.indexes[start:stop].tolist())
        return dict(zip(names, self.values[start:stop].tolist(), strict=True))

    def part(self, start: int, stop: int) -> Components | None:
        """Rows ``start`` to ``stop``; None where none of them has any."""
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        of = slice(first, last)
        if first == last:
            return None
        return Components(self.names, offsets - first, self.indexes[of], self.values[of])

    def only(self, rows: NDArray[np.intp]) -> Components:
        """These rows, in this order."""
        indexes = Ragged(self.indexes, self.offsets).only(rows)
        values = Ragged(self.values, self.offsets).only(rows)
        return Components(self.names, values.offsets, indexes.values, values.values)


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows as columns; the names are those of ``rollstream.schemas.fields``. Whole rows of a file
    that an older version wrote also have the fields that were removed since.

    Attributes:
        rows: how many.
        scalars: one value a row: a list of str for a text; for a number an array of the field's
            dtype (``int32``, ``int64``, ``bool``, ``float64``), NaN where it may be null and is.
        arrays: the schema's arrays that at least one row has (``prompt_tokens`` and
            ``output_tokens`` always), each with the field's dtype.
        token_arrays: those that producers named, that at least one row has.
        rewards: the named components; None where no row has any.
        attachments: name to bytes, one mapping a row; None where no row has any.
    """

    rows: int
    scalars: Mapping[str, Sequence[str] | NDArray[Any]]
    arrays: Mapping[str, Ragged]
    token_arrays: Mapping[str, Ragged] = field(default_factory=dict)
    rewards: Components | None = None
    attachments: Sequence[Mapping[str, bytes]] | None = None

    def part(self, start: int, stop: int) -> Columns:
        """Rows ``start`` to ``stop``; arrays and numbers are views."""
        if (start, stop) == (0, self.rows):
            return self
        attached = (self.attachments or ())[start:stop]
        return Columns(
            stop - start,
            {name: values[start:stop] for name, values in self.scalars.items()},
            _parts(self.arrays, start, stop),
            _parts(self.token_arrays, start, stop),
            self.rewards and self.rewards.part(start, stop),
            attached if any(attached) else None,
        )

    def only(self, rows: NDArray[np.intp]) -> Columns:
        """These rows, in this order; arrays are copied."""
        return Columns(
            len(rows),
            {
                name: values[rows]
                if isinstance(values, np.ndarray)
                else [values[row] for row in rows.tolist()]
                for name, values in self.scalars.items()
            },
            {name: ragged.only(rows) for name, ragged in self.arrays.items()},
            {name: ragged.only(rows) for name, ragged in self.token_arrays.items()},
            self.rewards and self.rewards.only(rows),
            self.attachments and [self.attachments[row] for row in rows.tolist()],
        )


def _parts(arrays: Mapping[str, Ragged], start: int, stop: int) -> Mapping[str, Ragged]:
    found = ((name, ragged.part(start, stop)) for name, ragged in arrays.items())
    return {name: ragged for name, ragged in found if ragged is not None}
