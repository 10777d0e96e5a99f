"""Rows of a file and the groups among them, as they were read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rollstream.schemas.columns import Columns


class StoredGroup(NamedTuple):
    """A group of a file: its first row, how many, and its digest."""

    row_start: int
    rows: int
    digest: bytes


class GroupColumns(NamedTuple):
    """Columns that hold a group's rows from row ``start`` on."""

    columns: Columns
    start: int


class FileRows:
    """All rows of a file.

    Attributes:
        columns: of all groups; those that were not asked for may be damaged.
        checked: the groups that were asked for.
    """

    def __init__(self, columns: Columns, check: Callable[[Sequence[StoredGroup]], None]) -> None:
        self.columns = columns
        self._check = check
        self.checked: set[StoredGroup] = set()

    def groups(self, groups: Sequence[StoredGroup]) -> list[GroupColumns]:
        """The rows of groups, each of them compared with its sums when it is asked for first.

        Raises:
            CorruptFile: damaged, or the file has no such group.
        """
        if unchecked := [group for group in groups if group not in self.checked]:
            self._check(unchecked)
            self.checked.update(unchecked)
        return [GroupColumns(self.columns, group.row_start) for group in groups]
