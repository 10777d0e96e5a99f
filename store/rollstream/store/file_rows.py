"""Rows of a file and the groups among them, as they were read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.columns import Columns, Ragged
from rollstream.store.errors import CorruptFile

COPIED_FROM = 2  # Times what was asked of it: a larger file is not held for its views.


class StoredGroup(NamedTuple):
    """A group of a file: its first row, how many, and its digest."""

    row_start: int
    rows: int
    digest: bytes


class GroupColumns(NamedTuple):
    """Columns that hold a group's rows from row ``start`` on."""

    columns: Columns
    start: int


class FileRows(NamedTuple):
    """All rows of a file, in memory of this process: what becomes of the file changes none.

    Attributes:
        path: of the file.
        columns: of all groups.
        starts: the first row of each group, then the number of rows.
        other_bytes: of the file that are held with these columns, besides them.
    """

    path: str
    columns: Columns
    starts: Sequence[int]
    other_bytes: int

    @classmethod
    def of(cls, path: str, columns: Columns, starts: Sequence[int], data: memoryview) -> FileRows:
        """Rows that may be views of ``data``, all of the file. They are copied where it is more
        than ``COPIED_FROM`` times what they are of it."""
        file = np.frombuffer(data, np.uint8)
        viewed = sum([values.nbytes for values in _numbers(columns) if _is_view(values, file)])
        if len(data) <= COPIED_FROM * viewed:
            return cls(path, columns, starts, len(data) - viewed)
        own = replace(
            columns,
            scalars={
                name: values.copy() if isinstance(values, np.ndarray) else values
                for name, values in columns.scalars.items()
            },
            arrays={name: _copied(of, file) for name, of in columns.arrays.items()},
            token_arrays={name: _copied(of, file) for name, of in columns.token_arrays.items()},
        )
        return cls(path, own, starts, 0)

    def groups(self, groups: Sequence[StoredGroup]) -> list[GroupColumns]:
        """The rows of groups.

        Raises:
            CorruptFile: the file has no such group.
        """
        for group in groups:
            index_of(self.path, self.starts, group)
        return [GroupColumns(self.columns, group.row_start) for group in groups]


def index_of(path: str, starts: Sequence[int], group: StoredGroup) -> int:
    """The index of a group among those of its file, which begin at these rows.

    Raises:
        CorruptFile: it is none of them.
    """
    index = bisect_left(starts, group.row_start)
    if starts[index : index + 2] != [group.row_start, group.row_start + group.rows]:
        raise CorruptFile(
            f"{path} has no group of {group.rows} rows from row {group.row_start} on; "
            "restore the file from a copy"
        )
    return index


def _numbers(columns: Columns) -> list[NDArray[Any]]:
    arrays = [*columns.arrays.values(), *columns.token_arrays.values()]
    scalars = [values for values in columns.scalars.values() if isinstance(values, np.ndarray)]
    return [*(ragged.values for ragged in arrays), *scalars]


def _is_view(values: NDArray[Any], file: NDArray[np.uint8]) -> bool:
    return np.may_share_memory(values, file)  # Their ranges of memory: own memory has another.


def _copied(ragged: Ragged, file: NDArray[np.uint8]) -> Ragged:
    if not _is_view(ragged.values, file):
        return ragged
    return replace(ragged, values=ragged.values.copy())
