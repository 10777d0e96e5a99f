"""What could not be read.

Field for field as in the ``.avsc`` of the same name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Bytes that could not be read, why, and where they stood."""

    topic: str
    partition: int
    offset: int
    timestamp_ts: int
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
