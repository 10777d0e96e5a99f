"""The groups of a flush, each as a tuple and all of them as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.errors import UnreadableEvent


class SealedGroup(NamedTuple):
    """Rows [row_start, row_start + rows) of files[file], in the same order as in ``segments``."""

    group_id: str
    group_uid: str
    example_id: str
    lineage: str
    policy_version: str
    policy_epoch: int
    weight_step: int
    segment_idx: int
    split: str
    seal_reason: str
    failed_members: int
    file: int
    row_start: int
    rows: int
    digest: bytes


class _Stored(NamedTuple):
    """Where a field of groups is: ``name`` holds its values, or the distinct ones of them, which
    ``idxs`` chooses for each group."""

    name: str
    dtype: type[np.generic] | None = None
    idxs: str = ""


# In the order of the fields of ``SealedGroup``.
_STORED = dict(
    zip(
        SealedGroup._fields,
        [
            _Stored("group_ids"),
            _Stored("group_uids"),
            _Stored("example_ids"),
            _Stored("lineages", idxs="lineage_idxs"),
            _Stored("policy_versions", idxs="policy_version_idxs"),
            _Stored("policy_epochs", np.int32),
            _Stored("weight_steps", np.int64),
            _Stored("segment_idxs", np.int32),
            _Stored("splits", idxs="split_idxs"),
            _Stored("seal_reasons", idxs="seal_reason_idxs"),
            _Stored("failed_members", np.int32),
            _Stored("files", np.int32),
            _Stored("row_starts", np.int32),
            _Stored("rows", np.int32),
            _Stored("digests"),
        ],
        strict=True,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedGroupColumns(Sequence[SealedGroup]):
    """Columns over the groups of a flush. It is also the sequence of these groups, of which each is
    made when it is looked at.

    Raises:
        UnreadableEvent: the columns differ in length, or one names a value that is not there.
    """

    Row = SealedGroup

    group_ids: tuple[str, ...]
    group_uids: tuple[str, ...]
    example_ids: tuple[str, ...]
    lineages: tuple[str, ...]
    lineage_idxs: NDArray[np.int32]
    policy_versions: tuple[str, ...]
    policy_version_idxs: NDArray[np.int32]
    policy_epochs: NDArray[np.int32]
    weight_steps: NDArray[np.int64]
    segment_idxs: NDArray[np.int32]
    splits: tuple[str, ...]
    split_idxs: NDArray[np.int32]
    seal_reasons: tuple[str, ...]
    seal_reason_idxs: NDArray[np.int32]
    failed_members: NDArray[np.int32]
    files: NDArray[np.int32]
    row_starts: NDArray[np.int32]
    rows: NDArray[np.int32]
    digests: tuple[bytes, ...]

    def __post_init__(self) -> None:
        for stored in _STORED.values():
            column = getattr(self, stored.idxs or stored.name)
            if len(column) != len(self.group_ids):
                finding = f"{len(column)} {stored.name} of {len(self.group_ids)} groups"
                raise UnreadableEvent("inconsistent", finding)
            if stored.idxs and len(column):
                known = len(getattr(self, stored.name))
                if not 0 <= column.min() <= column.max() < known:
                    finding = f"{stored.idxs} up to {column.max()} of {known} {stored.name}"
                    raise UnreadableEvent("inconsistent", finding)

    @classmethod
    def of(cls, groups: Iterable[SealedGroup]) -> SealedGroupColumns:
        """These groups, in their order. ``UnreadableEvent``: a number of one is too large."""
        rows = tuple(groups)
        made: dict[str, Any] = {}
        for at, stored in enumerate(_STORED.values()):
            values: Any = tuple(row[at] for row in rows)
            if stored.idxs:
                numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
                made[stored.idxs] = np.array([numbers[value] for value in values], np.int32)
                values = tuple(numbers)
            made[stored.name] = values if stored.dtype is None else _numbers(values, stored)
        return cls(**made)

    def column(self, field: str) -> Sequence[Any]:
        """A field of ``SealedGroup``, of each group, as Python's own values."""
        stored = _STORED[field]
        values = getattr(self, stored.name)
        if stored.idxs:
            return [values[idx] for idx in getattr(self, stored.idxs).tolist()]
        column: Sequence[Any] = values if stored.dtype is None else values.tolist()
        return column

    def __len__(self) -> int:
        return len(self.group_ids)

    def __iter__(self) -> Iterator[SealedGroup]:
        return map(SealedGroup._make, zip(*map(self.column, SealedGroup._fields), strict=True))

    @overload
    def __getitem__(self, at: int) -> SealedGroup: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[SealedGroup, ...]: ...

    def __getitem__(self, at: int | slice) -> SealedGroup | tuple[SealedGroup, ...]:
        if isinstance(at, slice):
            return tuple(self)[at]
        return SealedGroup._make(self._value(stored, at) for stored in _STORED.values())

    def _value(self, stored: _Stored, at: int) -> Any:
        values = getattr(self, stored.name)
        if stored.idxs:
            return values[getattr(self, stored.idxs)[at]]
        return values[at] if stored.dtype is None else values[at].item()


def _numbers(values: Sequence[int], stored: _Stored) -> NDArray[Any]:
    try:
        return np.array(values, stored.dtype)
    except OverflowError as error:
        raise UnreadableEvent("inconsistent", f"{stored.name}: {error}") from error
