"""What could not be read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An entry that could not be read, why, and where it stood.

    Attributes:
        entry: its number in the record at ``offset``.
        value: a record that has this entry alone, so that it can be published again; the whole
            record's bytes where it is not known which entries it has.
    """

    topic: str
    partition: int
    offset: int
    entry: int
    timestamp_ts: int
    reason: str
    detail: str
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """What a dead letter holds was published again; the address is that of the letter."""

    topic: str
    partition: int
    offset: int
    entry: int
