"""Which partition a key belongs to: murmur2, as Kafka's Java client and librdkafka compute it.

Source: ``org.apache.kafka.common.utils.Utils.murmur2`` and ``BuiltInPartitioner``.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_KEYS_KEPT = 16_384  # A group's entries come close together; this many keys take some 3 MB.
KEPT_BYTES_MAX = 1_024  # Longer keys are not remembered, so that none fill the memory.


def murmur2(data: bytes) -> int:
    """The unsigned 32-bit murmur2 hash with Kafka's seed."""
    length = len(data)
    hashed = _SEED ^ length
    for word in _words(length >> 2).unpack_from(data):
        k = word * _M & _MASK
        hashed = hashed * _M & _MASK ^ (k ^ k >> 24) * _M & _MASK
    if length & 3:
        hashed = (hashed ^ int.from_bytes(data[length & ~3 :], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of ``key`` in a topic of ``partitions``; remembered, since keys come again."""
    hashed = _remembered(key) if len(key) <= KEPT_BYTES_MAX else murmur2(key)
    return (hashed & 0x7FFFFFFF) % partitions


_remembered = lru_cache(_KEYS_KEPT)(murmur2)


@lru_cache(KEPT_BYTES_MAX)
def _words(count: int) -> Struct:
    """Reads little-endian words of 32 bits."""
    return Struct(f"<{count}I")
