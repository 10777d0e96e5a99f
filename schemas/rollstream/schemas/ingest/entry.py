"""An entry while its producer holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

ENTRIES_MAX = 65_536  # Of one record: an entry's number has 16 bits wherever it is packed.


class EntryKind(IntEnum):
    """What an entry is."""

    SEGMENT = 0
    """A rollout segment."""
    DISPATCHED = 1
    """An env replica began to work on a group."""
    FAILED = 2
    """Members of a group will never come; they count towards its size."""


class NamedArray(NamedTuple):
    """One segment's values of an array that the producer named.

    Attributes:
        dtype: as NumPy names it, little-endian.
        shape: the trailing shape.
        data: the values' bytes, ``token_count`` rows.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """How many members will never come, and why."""

    count: int
    reason: str


class Entry(NamedTuple):
    """One entry, checked, as ``encode_entries`` takes it.

    Attributes:
        fields: by name, those of ``rollstream.schemas.fields``: all that are not extras, and the
            extras that it has. Texts are str, numbers int, bool or float (None: none), arrays
            bytes, packed little-endian (None: absent), ``rewards`` a mapping to float,
            ``attachments`` a mapping to bytes, ``token_arrays`` a mapping to ``NamedArray``. A
            text that came from a record and is no UTF-8 is bytes.
        kind: of ``EntryKind``, or the number that a record had in its place.
        failure: of a ``FAILED`` one.
    """

    fields: Mapping[str, Any]
    kind: int = EntryKind.SEGMENT
    failure: Failure | None = None

    @property
    def key(self) -> str:
        """What decides on its partition, by murmur2 of its UTF-8."""
        key: str = self.fields["group_uid"] or self.fields["example_id"]
        return key
