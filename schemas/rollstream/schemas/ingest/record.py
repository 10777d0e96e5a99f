"""A record of the ingest log that was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import isnan
from typing import Any

from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.fields import RowField, row_fields
from rollstream.schemas.ingest.checks import broken_entries
from rollstream.schemas.ingest.encode import encode_entries
from rollstream.schemas.ingest.entry import Entry, EntryKind, NamedArray
from rollstream.schemas.ingest.frame import ArrayRun, Frame
from rollstream.schemas.ingest.layout import (
    ARRAY,
    COUNTS,
    Column,
    extra_columns,
    plain_columns,
    shared_fields,
    unpackers,
)
from rollstream.schemas.ingest.wire import read_record
from rollstream.schemas.rules import BrokenRule
from rollstream.schemas.wire_schemas import PREFIX_BYTES, by_prefix, unknown_schema

_KINDS = frozenset(EntryKind)


class IngestRecord:
    """The entries of one record. Arrays are views of its bytes, which live as long as it does.

    Attributes:
        header: the Avro record, without its payload.
        payload: what has a varying length.
        size: bytes of the record.
        environment, worker_id: of all entries.
        partitions: of the topic, as the producer knew it.
        count: how many entries.
        kinds: uint8 [count], of ``EntryKind``.
        shared_indexes: of each entry, the index of its combination in ``header["shared"]``.
        failures: of each ``FAILED`` entry, by its number.
        texts: those that at least one entry has, by name; U+FFFD in place of what is no UTF-8.
        no_utf8: the bytes of such a text, by name and entry.
        arrays: the schema's arrays that at least one entry has, by name.
        token_arrays: the same of those that the producer named.
        broken: which entries break which rule; the others are sound.
    """

    __slots__ = (
        *("header", "payload", "size", "environment", "worker_id", "partitions", "count", "kinds"),
        *("shared_indexes", "failures", "texts", "no_utf8", "arrays", "token_arrays", "broken"),
        *("_listed",),
    )

    def __init__(self, header: Mapping[str, Any], payload: memoryview, size: int) -> None:
        self.header = header
        self.payload = payload
        self.size = size
        self.environment: str = header["environment"]
        self.worker_id: str = header["worker_id"]
        self.partitions: int = header["partitions"]
        frame = Frame(header, payload)
        self.count: int = frame.count
        self.kinds = frame.kinds
        self.shared_indexes = frame.shared_indexes
        self.failures = frame.failures
        self.texts = frame.texts
        self.no_utf8 = frame.no_utf8
        self.arrays = frame.arrays
        self.token_arrays = frame.token_arrays
        self._listed = frame.numbers
        self.broken: Mapping[int, BrokenRule] = broken_entries(self)

    def values(self, name: str) -> list[Any]:
        """One value an entry, of a text or a number (None where it may be null and is)."""
        found = self.texts.get(name) or self._listed.get(name)
        if found is None:
            found = self._listed[name] = self._values(row_fields()[name])
        return found

    def bytes_of(self, run: ArrayRun, first: int, stop: int) -> memoryview:
        """The values of an array of entries ``first`` to ``stop``: a view."""
        start, width, ends, _, _ = run
        return self.payload[start + width * ends[first] : start + width * ends[stop]]

    def entry(self, index: int) -> Entry:
        """One entry, as ``encode_entries`` takes it; a copy.

        What breaks a rule is as it is in the record: a dead letter holds it.
        """
        fields = {field.name: self.values(field.name)[index] for field in shared_fields()}
        for column in plain_columns():
            fields[column.name] = self._value(column, index)
        if self.header["extras"] is not None:
            for column in extra_columns():
                value = self._value(column, index)
                if value != column.default:
                    fields[column.name] = value
            carried = {
                name: NamedArray(*run.signature, data)
                for name, run in self.token_arrays.items()
                if (data := self._bytes_of_one(run, index)) is not None
            }
            collections = {
                "rewards": self.components()[index],
                "attachments": self.attachments().get(index),
                "token_arrays": carried,
            }
            fields |= {name: values for name, values in collections.items() if values}
        kind = self.kinds[index]
        known = EntryKind(kind) if kind in _KINDS else kind
        return Entry(fields, known, self.failures.get(index))

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
        found = self._listed.get("rewards")
        if found is None:
            found = self._listed["rewards"] = self._components()
        return found

    def attachments(self) -> Mapping[int, Mapping[str, bytes]]:
        """Name to bytes, of the entries that have attachments, by their numbers."""
        extras = self.header["extras"]
        found: dict[int, dict[str, bytes]] = {}
        for one in () if extras is None else extras["attachments"]:
            found.setdefault(one["entry"], {})[one["name"]] = one["data"]
        return found

    def _values(self, field: RowField) -> list[Any]:
        name, count = field.name, self.count
        if field.column == "once":
            return [self.header[name]] * count
        if field.column == "shared":
            of = [one[name] for one in self.header["shared"]]
            return [of[index] for index in self.shared_indexes]
        wire = self.header["extras"] if field.extra else self.header
        raw = None if wire is None else wire[name]
        if not raw:
            return ["" if field.required else field.default] * count
        listed = list(unpackers(count)[field.dtype](raw))
        if field.default is None:
            return [None if isnan(value) else value for value in listed]
        if field.row_type == "boolean":
            return [value == 1 if value < 2 else value for value in listed]
        return listed

    def _components(self) -> list[Mapping[str, float]]:
        extras = self.header["extras"]
        wire = None if extras is None else extras["rewards"]
        if wire is None:
            return [{}] * self.count
        total = len(wire["values"]) // 8
        values = unpackers(total)["<f8"](wire["values"])
        names = [wire["names"][index] for index in unpackers(total)[COUNTS](wire["indexes"])]
        ends = accumulate(unpackers(self.count)[COUNTS](wire["counts"]), initial=0)
        return [
            dict(zip(names[start:stop], values[start:stop], strict=True))
            for start, stop in pairwise(ends)
        ]

    def _value(self, column: Column, index: int) -> Any:
        """One entry's; bytes where a text is no UTF-8, None where it has no such array."""
        name = column.name
        if column.kind != ARRAY:
            return self.no_utf8.get((name, index)) or self.values(name)[index]
        run = self.arrays.get(name)
        return None if run is None else self._bytes_of_one(run, index)

    def _bytes_of_one(self, run: ArrayRun, index: int) -> bytes | None:
        if run.present is not None and not run.present[index]:
            return None
        return bytes(self.bytes_of(run, index, index + 1))


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
