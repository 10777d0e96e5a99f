"""Avro's integers: zigzag, then seven bits a byte, the lowest first.

Source: Avro 1.12 specification, "Binary encoding".
"""

from __future__ import annotations

from functools import lru_cache

_KEPT = 4_096


@lru_cache(_KEPT)
def small_number(value: int) -> bytes:
    """An int or a long; kept, for numbers that come again."""
    return varint(value << 1 ^ value >> 63)


def varint(bits: int) -> bytes:
    """Bits that have no sign any more."""
    out = bytearray()
    while bits > 127:
        out.append(bits & 127 | 128)
        bits >>= 7
    out.append(bits)
    return bytes(out)
