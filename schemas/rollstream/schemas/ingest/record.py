"""A record of the ingest log that was read."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.fields import RowField, named, row_fields
from rollstream.schemas.ingest.checks import broken_entries
from rollstream.schemas.ingest.encode import NONE, SOME, encode_entries
from rollstream.schemas.ingest.entry import ENTRIES_MAX, Entry, EntryKind, Failure, NamedArray
from rollstream.schemas.ingest.wire import read_record
from rollstream.schemas.rules import BrokenRule, check_token_rows
from rollstream.schemas.wire_schemas import PREFIX_BYTES, by_prefix, unknown_schema

_TYPECODES = {"<i4": "i", "<i8": "q", "<f8": "d", "|b1": "B"}
_ROW_TYPECODES = {"int": "i", "long": "q"}
_TOKEN_COUNTS = "token_count"


class ArrayRun(NamedTuple):
    """Where one array lies in a record's payload.

    Attributes:
        start: index of its first byte.
        width: bytes a token.
        ends: in tokens: entry i has those from ``ends[i]`` to ``ends[i + 1]``; count + 1 of them.
        present: uint8 [count], 1 where the entry has it; None where each has it.
        signature: its dtype and trailing shape.
    """

    start: int
    width: int
    ends: Sequence[int]
    present: bytes | None
    signature: ArraySignature


class IngestRecord:
    """The entries of one record. Arrays are views of its bytes, which live as long as it does.

    Attributes:
        environment, worker_id: of all entries.
        partitions: of the topic, as the producer knew it.
        count: how many entries.
        kinds: uint8 [count], of ``EntryKind``.
        failures: of each ``FAILED`` entry, by its number.
        arrays: the schema's arrays that at least one entry has, by name.
        token_arrays: the same of those that the producer named.
        broken: which entries break which rule; the others are sound.
        size: bytes of the record.
        payload: what has a varying length.
    """

    __slots__ = (
        *("environment", "worker_id", "partitions", "count", "kinds", "failures", "arrays"),
        *(
            "token_arrays",
            "broken",
            "size",
            "payload",
            "header",
            "_texts",
            "_listed",
            "shared_indexes",
        ),
    )

    def __init__(self, header: Mapping[str, Any], payload: memoryview, size: int) -> None:
        self.header = header
        self.payload = payload
        self.size = size
        self.environment: str = header["environment"]
        self.worker_id: str = header["worker_id"]
        self.partitions: int = header["partitions"]
        self.count: int = header["count"]
        if not 0 < self.count <= ENTRIES_MAX:
            raise _frame(f"count is {self.count}; a record has 1 to {ENTRIES_MAX} entries")
        self.kinds: bytes = _sized(header, "kinds", self.count, 1) or bytes(self.count)
        self.shared_indexes = self._indexes_of_shared()
        self._texts: dict[str, tuple[int, Sequence[int]]] = {}  # First byte in payload, and sizes.
        self._listed: dict[str, list[Any]] = {}
        self.arrays: dict[str, ArrayRun] = {}
        self.token_arrays: dict[str, ArrayRun] = {}
        self.failures: dict[int, Failure] = {}
        self._lay_out()
        self.broken: Mapping[int, BrokenRule] = broken_entries(self)

    def values(self, name: str) -> list[Any]:
        """One value an entry, of a text or a number (None where it may be null and is)."""
        found = self._listed.get(name)
        if found is None:
            found = self._listed[name] = self._values(row_fields()[name])
        return found

    def packed(self, name: str) -> bytes:
        """One number an entry, packed as the field's dtype; NaN where it may be null and is."""
        field = row_fields()[name]
        if field.column == "shared":
            return array(_ROW_TYPECODES[field.row_type], self.values(name)).tobytes()
        raw: bytes = self._column_of(field)
        return raw or _default_number(name) * self.count

    def has(self, name: str) -> bool:
        """Whether any entry has another text than the field's default; True for a shared one."""
        field = row_fields()[name]
        return field.column == "shared" or name in self._texts

    def sizes(self) -> list[int]:
        """About how many bytes each entry takes; together as many as the record has."""
        found = self._listed.get("")
        if found is None:
            runs = (*self.arrays.values(), *self.token_arrays.values())
            sizes = [0] * self.count
            total = 0
            for run in runs:
                total += run.width * run.ends[-1]
                for index, (start, stop) in enumerate(pairwise(run.ends)):
                    sizes[index] += run.width * (stop - start)
            rest = (self.size - total) // self.count
            found = self._listed[""] = [size + rest for size in sizes]
        return found

    def bytes_of(self, run: ArrayRun, first: int, stop: int) -> memoryview:
        """The values of an array of entries ``first`` to ``stop``: a view."""
        start, width, ends = run.start, run.width, run.ends
        return self.payload[start + width * ends[first] : start + width * ends[stop]]

    def entry(self, index: int) -> Entry:
        """One entry, as ``encode_entries`` takes it; a copy.

        A text that is no UTF-8 has U+FFFD in its place, and fields that break a rule are as they
        are: a dead letter holds them.
        """
        fields: dict[str, Any] = {}
        for field in named("shared", "text", "number"):
            value = self.values(field.name)[index]
            if not field.extra or value != field.default:
                fields[field.name] = value
        for field in named("array"):
            run = self.arrays.get(field.name)
            data = None if run is None else self._bytes_of_one(run, index)
            if not field.extra or data is not None:
                fields[field.name] = data
        carried = {
            name: NamedArray(run.signature.dtype, run.signature.shape, data)
            for name, run in self.token_arrays.items()
            if (data := self._bytes_of_one(run, index)) is not None
        }
        rare = {
            "rewards": self.components()[index],
            "attachments": self.attachments().get(index, {}),
            "token_arrays": carried,
        }
        fields |= {name: value for name, value in rare.items() if value}
        kind = EntryKind(self.kinds[index]) if self.kinds[index] in _KINDS else EntryKind.SEGMENT
        return Entry(fields, kind, self.failures.get(index))

    def part(self, indexes: Sequence[int]) -> bytes:
        """The bytes of a record that has these entries alone."""
        return encode_entries(
            [self.entry(index) for index in indexes],
            environment=self.environment,
            worker_id=self.worker_id,
            partitions=self.partitions,
        )

    def components(self) -> Sequence[Mapping[str, float]]:
        """The named components of each entry's reward."""
        extras = self.header["extras"]
        if extras is None or extras["rewards"] is None:
            return [{}] * self.count
        wire = extras["rewards"]
        names = wire["names"]
        indexes, values = (
            memoryview(wire["indexes"]).cast("i"),
            memoryview(wire["values"]).cast("d"),
        )
        ends = accumulate(memoryview(wire["counts"]).cast("i"), initial=0)
        return [
            {names[i]: value for i, value in zip(indexes[a:z], values[a:z], strict=True)}
            for a, z in pairwise(ends)
        ]

    def attachments(self) -> Mapping[int, Mapping[str, bytes]]:
        """Name to bytes, of the entries that have attachments, by their numbers."""
        extras = self.header["extras"]
        found: dict[int, dict[str, bytes]] = {}
        for one in () if extras is None else extras["attachments"]:
            found.setdefault(one["entry"], {})[one["name"]] = one["data"]
        return found

    # --- how the header and the payload are laid out ---

    def _lay_out(self) -> None:
        """Finds every column. Counts are compared with the bytes that there are before anything is
        made of them.

        Raises:
            UnreadableEvent: lengths that disagree.
        """
        header, extras, count = self.header, self.header["extras"], self.count
        at = 0
        ends = {
            "prompt_tokens": self._ends("prompt_count"),
            "": self._ends(_TOKEN_COUNTS),
        }
        for field in named("text", "number", "array"):
            if not field.extra:
                at = self._column(field, header, ends, at)
        if extras is not None:
            for field in named("text", "number", "array"):
                if field.extra:
                    at = self._column(field, extras, ends, at)
            self._check_components(extras["rewards"])
            for one in extras["attachments"]:
                if one["entry"] not in range(count):
                    raise _frame(f"an attachment of entry {one['entry']} of {count}")
            for one in extras["failures"]:
                if one["entry"] not in range(count) or one["entry"] in self.failures:
                    raise _frame(f"a second failure, or none, is entry {one['entry']} of {count}")
                self.failures[one["entry"]] = Failure(one["count"], one["reason"])
            for one in extras["token_arrays"]:
                signature, width = _signature(one)
                name = one["name"]
                if name in self.token_arrays:
                    raise _frame(f"token_arrays has {name!r} twice")
                run, at = self._array(name, one["presence"], signature, width, ends[""], at)
                if run is not None:
                    self.token_arrays[name] = run
        if at != len(self.payload):
            raise _frame(f"payload has {len(self.payload)} bytes; its columns have {at}")

    def _column(
        self, field: RowField, wire: Mapping[str, Any], ends: Mapping[str, list[int]], at: int
    ) -> int:
        """Finds one column; returns the index in the payload behind it."""
        name = field.name
        if field.column == "number":
            _sized(wire, name, self.count, np.dtype(field.dtype).itemsize)
            return at
        if field.column == "text":
            sizes = _sized(wire, name, self.count, 4)
            if not sizes:
                return at
            listed = memoryview(sizes).cast("i").tolist()
            stop = at + sum(listed)
            if min(listed) < 0 or stop > len(self.payload):
                raise _frame(f"{name} has texts of {sum(listed)} bytes")
            self._texts[name] = (at, listed)
            return stop
        signature = ArraySignature(field.dtype, ())
        width = np.dtype(field.dtype).itemsize
        run, at = self._array(name, wire[name], signature, width, ends.get(name, ends[""]), at)
        if run is not None:
            self.arrays[name] = run
        return at

    def _array(
        self,
        name: str,
        presence: int,
        signature: ArraySignature,
        width: int,
        ends: list[int],
        at: int,
    ) -> tuple[ArrayRun | None, int]:
        if presence == NONE:
            return None, at
        present = None
        if presence == SOME:
            present = bytes(self.payload[at : at + self.count])
            at += len(present)
            if len(present) < self.count or present.translate(None, b"\x00\x01"):
                raise _frame(f"{name}: its presence has other bytes than {self.count} of 0 and 1")
            lengths = (b - a for a, b in pairwise(ends))
            ends = list(
                accumulate((n * p for n, p in zip(lengths, present, strict=True)), initial=0)
            )
        elif presence not in (NONE, SOME, 1):
            raise _frame(f"{name} is {presence}; give 0, 1 or 2")
        stop = at + width * ends[-1]
        if stop > len(self.payload):
            raise _frame(f"{name} has {ends[-1]} values, more than the payload holds")
        return ArrayRun(at, width, ends, present, signature), stop

    def _ends(self, counts: str) -> list[int]:
        raw = _sized(self.header, counts, self.count, 4)
        listed = memoryview(raw).cast("i").tolist() if raw else [0] * self.count
        if min(listed) < 0:
            raise _frame(f"{counts} is {min(listed)} somewhere")
        self._listed[counts] = listed
        return list(accumulate(listed, initial=0))

    def _indexes_of_shared(self) -> list[int]:
        combinations = len(self.header["shared"])
        raw = _sized(self.header, "shared_indexes", self.count, 4)
        listed = memoryview(raw).cast("i").tolist() if raw else [0] * self.count
        if min(listed) < 0 or max(listed) >= combinations:
            raise _frame(f"shared_indexes names others than the {combinations} of shared")
        return listed

    def _check_components(self, wire: Mapping[str, Any] | None) -> None:
        if wire is None:
            return
        counts = memoryview(_sized(wire, "counts", self.count, 4)).cast("i").tolist()
        total = sum(counts)
        indexes, values = wire["indexes"], wire["values"]
        sound = len(counts) == self.count and min(counts) >= 0
        if not sound or (len(indexes), len(values)) != (4 * total, 8 * total):
            raise _frame("rewards: counts, indexes and values disagree")
        listed = memoryview(indexes).cast("i").tolist()
        if listed and (min(listed) < 0 or max(listed) >= len(wire["names"])):
            raise _frame(f"rewards: indexes names others than the {len(wire['names'])} names")

    # --- values ---

    def _column_of(self, field: RowField) -> Any:
        extras = self.header["extras"]
        if not field.extra:
            return self.header[field.name]
        return b"" if extras is None else extras[field.name]

    def _values(self, field: RowField) -> list[Any]:
        name = field.name
        if field.column == "once":
            return [self.header[name]] * self.count
        if field.column == "shared":
            of = [one[name] for one in self.header["shared"]]
            return [of[i] for i in self.shared_indexes]
        if field.column == "text":
            return self._text_values(field)
        raw = self._column_of(field)
        if not raw:
            return [field.default] * self.count
        listed: list[Any] = memoryview(raw).cast(_TYPECODES[field.dtype]).tolist()
        if field.row_type == "boolean":
            return list(map(bool, listed))
        if field.default is None:
            return [None if value != value else value for value in listed]
        return listed

    def _text_values(self, field: RowField) -> list[str]:
        if field.name not in self._texts:
            return [field.default or ""] * self.count
        start, sizes = self._texts[field.name]
        ends = list(accumulate(sizes, initial=0))
        raw = bytes(self.payload[start : start + ends[-1]])
        if raw.isascii():
            text = raw.decode()
            return [text[a:z] for a, z in pairwise(ends)]
        return [raw[a:z].decode(errors="replace") for a, z in pairwise(ends)]

    def text_bytes(self, name: str) -> tuple[memoryview, Sequence[int]]:
        """The UTF-8 of a text of all entries, and how many bytes each has; for ``has(name)``."""
        start, sizes = self._texts[name]
        return self.payload[start : start + sum(sizes)], sizes

    def _bytes_of_one(self, run: ArrayRun, index: int) -> bytes | None:
        if run.present is not None and not run.present[index]:
            return None
        return bytes(self.bytes_of(run, index, index + 1))


_KINDS = frozenset(EntryKind)


def decode_record(value: bytes) -> IngestRecord:
    """The record that the bytes hold.

    Raises:
        UnreadableEvent: they hold none, or its frame is broken: no entries, lengths that disagree,
            counts beyond the bytes that there are. What breaks a single entry is in ``broken``.
    """
    schema = by_prefix().get(value[:PREFIX_BYTES])
    if schema is None:
        raise unknown_schema(value)
    if schema.name != "ingest_record":
        raise UnreadableEvent("not_an_event", f"{schema.name} does not belong into an ingest log")
    try:
        header, payload = read_record(schema, value)
    except (EOFError, IndexError, KeyError, ValueError, OverflowError, MemoryError) as error:
        raise UnreadableEvent("torn", f"{schema.name}.v{schema.version}: {error!r}") from error
    return IngestRecord(header, payload, len(value))


def _frame(detail: str) -> UnreadableEvent:
    return UnreadableEvent("inconsistent", detail)


def _sized(wire: Mapping[str, Any], name: str, count: int, width: int) -> bytes:
    raw: bytes = wire[name]
    if raw and len(raw) != count * width:
        raise _frame(f"{name} has {len(raw)} bytes; {count} entries have {count * width}, or none")
    return raw


def _signature(wire: Mapping[str, Any]) -> tuple[ArraySignature, int]:
    name, shape = wire["name"], tuple(wire["shape"])
    try:
        dtype = np.dtype(wire["dtype"])
        check_token_rows(name, dtype, shape)
    except BrokenRule as broken:
        raise _frame(str(broken)) from broken
    except (TypeError, ValueError, SyntaxError) as error:
        raise _frame(f"token_arrays[{name!r}]: dtype: {error}") from error
    width = dtype.itemsize
    for side in shape:
        width *= side
    return ArraySignature(wire["dtype"], shape), width


@cache
def _default_number(name: str) -> bytes:
    field = row_fields()[name]
    default = float("nan") if field.default is None else field.default
    return np.array([default], field.dtype).tobytes()
