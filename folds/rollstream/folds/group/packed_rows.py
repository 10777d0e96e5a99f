"""What is kept of each row of a sealed group, in few bytes: exactly what was sealed. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.group.earned import returns_of

UNKNOWN_TS = 0  # Of rollouts whose client leaves ``created_ts`` out.
_SAME_STEP, _NEAR, _SINGLE, _PLAIN = 1, 2, 4, 8
_NEAR_US = 2**32
_INT64, _UINT32, _FLOAT32, _FLOAT64 = (np.dtype(name) for name in ("<i8", "<u4", "<f4", "<f8"))


class RowColumns(NamedTuple):
    """Of each row of a group.

    Attributes:
        weight_steps: int64 [rows].
        created_ts: int64 [rows], microseconds.
        earned: float64 [rows], what each segment was published with; 0: no reward.
        begins: bool [rows], where a rollout begins; its segments lie together.
    """

    weight_steps: NDArray[np.int64]
    created_ts: NDArray[np.int64]
    earned: NDArray[np.float64]
    begins: NDArray[np.bool_]

    def returns(self) -> NDArray[np.float64]:
        """float64 [rollouts], what the segments of each earned in sum."""
        return returns_of(self.earned, self.begins)

    def made_ts(self, sealed_ts: int) -> NDArray[np.int64]:
        """int64 [rows], when each was made, by the clock of who made it, microseconds; no later
        than ``sealed_ts``, which is all that is known where that clock was not named."""
        made = np.where(self.created_ts == UNKNOWN_TS, sealed_ts, self.created_ts)
        return np.minimum(made, sealed_ts)


class PackedRows(NamedTuple):
    """The same in bytes: 16 and 8 a row where rows share their step, were made within 71 minutes
    and have rewards that 32 bits hold; up to 25 a row else."""

    rows: int
    data: bytes

    def steps(self) -> tuple[int, ...]:
        """The weight steps of the rows; one if all share it."""
        return struct.unpack_from(f"<{self._steps}q", self.data, 1)

    def oldest_ts(self) -> int:
        """The least ``created_ts`` of the rows."""
        bases = 1 if self.data[0] & _NEAR else self.rows
        return int(min(struct.unpack_from(f"<{bases}q", self.data, 1 + 8 * self._steps)))

    def rollouts(self) -> int:
        """How many rollouts the rows are."""
        return self.rows if self.data[0] & _SINGLE else self.data[-self.rows :].count(True)

    @property
    def _steps(self) -> int:
        return 1 if self.data[0] & _SAME_STEP else self.rows

    def unpack(self) -> RowColumns:
        """The columns."""
        count, flags, at = self.rows, self.data[0], 1

        def take(dtype: np.dtype[Any], items: int) -> NDArray[Any]:
            nonlocal at
            found = np.frombuffer(self.data, dtype, items, at)
            at += found.nbytes
            return found

        steps = take(_INT64, self._steps)
        created = take(_INT64, 1 if flags & _NEAR else count)
        if flags & _NEAR:
            created = created + take(_UINT32, count)
        earned = take(_FLOAT32 if flags & _PLAIN else _FLOAT64, count).astype(np.float64)
        begins = np.ones(count, np.bool_) if flags & _SINGLE else take(np.dtype("?"), count)
        return RowColumns(np.broadcast_to(steps, count), created, earned, begins)


def pack_rows(
    starts: NDArray[np.int64],
    weight_steps: NDArray[np.int64],
    created_ts: NDArray[np.int64],
    earned: NDArray[np.float64],
    begins: NDArray[np.bool_],
    wanted: Iterable[int],
) -> list[PackedRows]:
    """The rows of the ``wanted`` ones of the groups that begin at ``starts`` in these columns, each
    one's apart."""
    bounds = [*starts.tolist(), len(earned)]
    counts = np.diff(bounds)
    with np.errstate(over="ignore"):
        narrow = earned.astype(_FLOAT32)
    oldest = np.minimum.reduceat(created_ts, starts)
    after = created_ts - np.repeat(oldest, counts)
    highest, lowest = (of.reduceat(weight_steps, starts) for of in (np.maximum, np.minimum))
    flags = (
        _SAME_STEP * (highest == lowest)
        | _NEAR * (np.maximum.reduceat(after, starts) < _NEAR_US)
        | _SINGLE * np.logical_and.reduceat(begins, starts)
        | _PLAIN * np.logical_and.reduceat(narrow == earned, starts)
    )
    steps, bases = weight_steps.astype(_INT64).tobytes(), oldest.astype(_INT64).tobytes()
    near, far = after.astype(_UINT32).tobytes(), created_ts.astype(_INT64).tobytes()
    plain, exact = narrow.tobytes(), earned.astype(_FLOAT64).tobytes()
    first_rows = begins.tobytes()
    packed = []
    all_flags = flags.tolist()
    for index in wanted:
        flag, first, end = all_flags[index], bounds[index], bounds[index + 1]
        parts = [
            bytes((flag,)),
            steps[8 * first : 8 * (first + 1 if flag & _SAME_STEP else end)],
            bases[8 * index : 8 * index + 8] if flag & _NEAR else b"",
            near[4 * first : 4 * end] if flag & _NEAR else far[8 * first : 8 * end],
            plain[4 * first : 4 * end] if flag & _PLAIN else exact[8 * first : 8 * end],
            b"" if flag & _SINGLE else first_rows[first:end],
        ]
        packed.append(PackedRows(end - first, b"".join(parts)))
    return packed
