"""What could not be read."""

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
