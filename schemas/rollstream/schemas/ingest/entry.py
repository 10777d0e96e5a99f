"""An entry while its producer holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from typing import Any, NamedTuple, Self

from rollstream.schemas.fields import columns, named, row_fields

ENTRIES_MAX = 65_536  # Of one record: an entry's number has 16 bits wherever it is packed.
SHARED = tuple(field.name for field in named("shared"))
PLAIN = tuple(field.name for field in columns(extra=False))
EXTRAS = frozenset(field.name for field in row_fields().values() if field.extra)
_shared_of, _plain_of = itemgetter(*SHARED), itemgetter(*PLAIN)


class EntryKind(IntEnum):
    """What an entry is."""

    SEGMENT = 0
    """A rollout segment."""
    DISPATCHED = 1
    """An env replica began to work on a group."""
    FAILED = 2
    """Members of a group will never come; they count towards its size."""
    ALIVE = 3
    """Its producer has begun groups that are not ended, or waits to begin some."""
    ENDED = 4
    """A trajectory has ended; ``segment_idx`` is how many segments it has, 0: those up to the
    newest one before this entry."""
    APPENDED = 5
    """A rollout segment: its rollout is one member more of the group that it names, which is
    pending; where it is not, the rollout is in none."""
    STEP = 6
    """A rollout segment: a step of a trajectory of the prompt that its group is."""
    STEP_TO_SCORE = 7
    """The same; a score follows if it is the last one and has no reward."""


SEGMENT_KINDS = (
    EntryKind.SEGMENT,
    EntryKind.APPENDED,
    EntryKind.STEP,
    EntryKind.STEP_TO_SCORE,
)
STEP_KINDS = (EntryKind.STEP, EntryKind.STEP_TO_SCORE)


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


class Producer(NamedTuple):
    """How a producer stands with one environment when it makes a record.

    Attributes:
        producer_id: of one process and its life.
        begun: how many groups it has begun so far, without those for evaluation.
        waiting: how many more it waits to begin.
    """

    producer_id: str
    begun: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Failure:
    """How many members will never come, and why."""

    count: int
    reason: str


class Entry(NamedTuple):
    """One entry, checked, as ``encode_entries`` takes it.

    Texts are str, numbers int, bool or float (None: none), arrays bytes, packed little-endian
    (None: absent), ``rewards`` a mapping to float, ``attachments`` a mapping to bytes,
    ``token_arrays`` a mapping to ``NamedArray``. A text that came from a record and is no UTF-8 is
    bytes.

    Attributes:
        shared: of the fields ``SHARED``, in their order.
        plain: of the fields ``PLAIN``, in their order.
        extras: by name, those that it has.
        kind: of ``EntryKind``, or the number that a record had in its place.
        failure: of a ``FAILED`` one.
    """

    shared: tuple[Any, ...]
    plain: tuple[Any, ...]
    extras: Mapping[str, Any]
    kind: int = EntryKind.SEGMENT
    failure: Failure | None = None

    @classmethod
    def of(
        cls,
        fields: Mapping[str, Any],
        kind: int = EntryKind.SEGMENT,
        failure: Failure | None = None,
    ) -> Self:
        """The entry of these ``fields``."""
        extras = {name: fields[name] for name in fields.keys() & EXTRAS}
        return cls(_shared_of(fields), _plain_of(fields), extras, kind, failure)

    @property
    def fields(self) -> dict[str, Any]:
        """By name, those of ``rollstream.schemas.fields``: all that are not extras, and the extras
        that it has."""
        named = (*zip(SHARED, self.shared, strict=True), *zip(PLAIN, self.plain, strict=True))
        return {**dict(named), **self.extras}

    @property
    def key(self) -> str:
        """What decides on its partition, by murmur2 of its UTF-8."""
        fields = self.fields
        key: str = fields["group_uid"] or fields["example_id"]
        return key
