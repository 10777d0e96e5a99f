"""Keys to partitions, as Kafka does it; the contract suite asks a real client too."""

from __future__ import annotations

import sys

import pytest

from rollstream.streams.partitioning import KEPT_BYTES_MAX, murmur2, partition_of

# From Kafka's own test, ``org.apache.kafka.common.utils.UtilsTest.testMurmur2``.
GOLDEN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "signed"), GOLDEN.items())
def test_the_hash_is_kafkas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


def test_partitions_are_within_the_topic_and_all_are_used() -> None:
    used = {partition_of(b"key-%d" % number, 12) for number in range(500)}
    assert used == set(range(12))


def test_only_keys_of_a_usual_length_are_kept() -> None:
    long = bytes(KEPT_BYTES_MAX + 1)
    references = sys.getrefcount(long)
    assert partition_of(long, 12) == partition_of(bytes(KEPT_BYTES_MAX + 1), 12)
    assert sys.getrefcount(long) == references
