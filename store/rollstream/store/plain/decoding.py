"""Values of a page as ``encoding`` wrote them, from the page's body."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LENGTH_BYTES = 4
_length_at = struct.Struct("<I").unpack_from


def numbers_of(body: memoryview, dtype: str, rows: int, *, optional: bool) -> NDArray[Any]:
    """One number a row, [rows]; NaN where an ``optional`` one is null. A view where it may be.

    Raises:
        ValueError: these are other bytes.
    """
    if optional:
        size = int.from_bytes(body[:_LENGTH_BYTES], "little")
        if 8 * size < rows:
            raise ValueError(f"{rows} numbers have {size} bytes of levels")
        levels, values = body[_LENGTH_BYTES:][:size], body[_LENGTH_BYTES + size :]
        packed = np.frombuffer(levels, np.uint8)[size - -(-rows // 8) :]
        present = np.unpackbits(packed, count=rows, bitorder="little").view(np.bool_)
        found = np.full(rows, np.nan, dtype)
        found[present] = np.frombuffer(values, dtype)
        return found
    if dtype == "|b1":
        if 8 * len(body) < rows:
            raise ValueError(f"{rows} booleans have {len(body)} bytes")
        bits = np.unpackbits(np.frombuffer(body, np.uint8), count=rows, bitorder="little")
        return bits.view(np.bool_)
    numbers: NDArray[Any] = np.frombuffer(body, dtype)
    if len(numbers) != rows:
        raise ValueError(f"{rows} numbers have {len(body)} bytes")
    return numbers


def text_ends(body: memoryview, rows: int) -> NDArray[np.int64]:
    """int64 [rows + 1]: the text of row ``i``, behind four bytes of its length, is from ``[i]`` to
    ``[i + 1]``.

    Raises:
        ValueError: these are other bytes.
    """
    width, rest = divmod(len(body), rows)
    if width < _LENGTH_BYTES:
        raise ValueError(f"{rows} texts have {len(body)} bytes")
    raw, at, ends = bytes(body), 0, [0]
    head = (width - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "little")
    if not rest and all(raw[i::width] == head[i : i + 1] * rows for i in range(_LENGTH_BYTES)):
        return np.arange(0, len(raw) + 1, width)  # Of one length, as most are: without a loop.
    try:
        for _ in range(rows):
            (length,) = _length_at(raw, at)
            at += _LENGTH_BYTES + length
            ends.append(at)
    except struct.error:
        raise ValueError(f"{rows} texts do not end within {len(body)} bytes") from None
    if at != len(body):
        raise ValueError(f"{rows} texts end at byte {at} of {len(body)}")
    return np.array(ends)


def texts_of(body: memoryview, ends: NDArray[np.int64]) -> list[str]:
    """The texts that end there, the first of ``ends`` being where the first one begins."""
    start, *_ = bounds = ends.tolist()
    raw, count = bytes(body[start : bounds[-1]]), len(bounds) - 1
    if count > 1 and raw == raw[: bounds[1] - start] * count:  # Many texts are equal.
        return [raw[_LENGTH_BYTES : bounds[1] - start].decode()] * count
    if raw.isascii():  # Lengths of short texts are too: decoding all at once is half the work.
        text = raw.decode("ascii")
        return [
            text[first - start + _LENGTH_BYTES : stop - start] for first, stop in pairwise(bounds)
        ]
    return [
        raw[first - start + _LENGTH_BYTES : stop - start].decode()
        for first, stop in pairwise(bounds)
    ]
