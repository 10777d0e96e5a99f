"""Thrift's integers: zigzag, then LEB128 (seven bits a byte, the lowest first).

Source: Apache Thrift, "Thrift compact protocol encoding".
"""

from __future__ import annotations

from functools import lru_cache

_SHIFT_MAX = 63  # Of a long's last byte.
_KEPT = 8_192  # A file has some three hundred integers, most of them in the file before too.


@lru_cache(_KEPT)
def varint(bits: int) -> bytes:
    """LEB128-encodes a non-negative (already zigzagged) integer."""
    out = bytearray()
    while bits > 127:
        out.append(bits & 127 | 128)
        bits >>= 7
    out.append(bits)
    return bytes(out)


def read_number(value: bytes, at: int) -> tuple[int, int]:
    """The int or long that begins at ``at``, and the index after it.

    Raises:
        IndexError: it ends too early. ValueError: it is longer than a long.
    """
    byte = value[at]
    at += 1
    bits = byte & 127
    shift = 0
    while byte > 127:
        byte = value[at]
        at += 1
        shift += 7
        if shift >= _SHIFT_MAX and byte > 1:
            raise ValueError(f"an integer of more than 64 bits ends after byte {at}")
        bits |= (byte & 127) << shift
    return bits >> 1 ^ -(bits & 1), at
