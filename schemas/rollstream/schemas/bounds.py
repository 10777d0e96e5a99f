"""Bounds of what Avro leaves without any, so that every reader can hold it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
CREATED_TS_MAX = 253_402_300_799_999_999  # The last microsecond that Python has: of the year 9999.
# Of one token in a token array. A batch has room for every token, also for those without a value.
TOKEN_ROW_BYTES_MAX = 1 << 20


def is_trailing_shape(shape: Sequence[int], itemsize: int) -> bool:
    """Whether one token's values may have this shape."""
    sides_fit = all(0 <= side <= INT_MAX for side in shape)
    return sides_fit and prod(shape) * itemsize <= TOKEN_ROW_BYTES_MAX
