"""How far readers have done the sealed groups, in ``positions.<env>``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPosition:
    """How far the readers of one name have done one partition; the record's key names both. Of all
    keys of a reader and partition, the highest ``next_offset`` holds."""

    next_offset: int
    claim_epoch: int
    claim_nonce: str


def position_key(reader: str, partition: int, assignment: str) -> bytes:
    """The key of a ``ReaderPosition``. Each ``assignment`` of the partition to a reader has a key
    of its own: compaction keeps the last record of a key, which may be a former owner's."""
    return f"{reader}/{partition}/{assignment}".encode()


def is_position_of(key: bytes | None, reader: str, partition: int) -> bool:
    """Whether the key is of this reader and partition."""
    return (key or b"").startswith(position_key(reader, partition, ""))
