"""Which partition a key belongs to: murmur2, as Kafka's Java client and librdkafka compute it.

Source: ``org.apache.kafka.common.utils.Utils.murmur2`` and ``BuiltInPartitioner``.
"""

from __future__ import annotations

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The unsigned 32-bit murmur2 hash with Kafka's seed."""
    length = len(data)
    hashed = _SEED ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little")
        k = (k * _M) & _MASK
        k ^= k >> 24
        k = (k * _M) & _MASK
        hashed = ((hashed * _M) & _MASK) ^ k
    if length != whole:
        hashed ^= int.from_bytes(data[whole:], "little")
        hashed = (hashed * _M) & _MASK
    hashed ^= hashed >> 13
    hashed = (hashed * _M) & _MASK
    return hashed ^ (hashed >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of ``key`` in a topic of ``partitions``."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
