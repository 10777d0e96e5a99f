"""Encodes and decodes events: Avro single-object encoding.

The first ten bytes name the writer's schema (marker C3 01, CRC-64-AVRO fingerprint), so a reader
needs nothing besides the bytes. ``decode(encode(event)) == event`` for every event, arrays bit for
bit. An event of an older version is read as its newest: by field name, with defaults for what was
added, without what was removed, and with columns made of rows. Records of the ingest log are no
events: ``rollstream.schemas.ingest`` has them.

Source: Avro 1.12 specification, "Single-object encoding".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from io import BytesIO
from typing import Any, TypeVar

import fastavro

from rollstream.schemas import events, fields
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.event_converter import EventConverter
from rollstream.schemas.events import Event
from rollstream.schemas.wire_schemas import (
    PREFIX_BYTES,
    SchemaRegistry,
    WireSchema,
    in_rows,
    parse,
    read_avro,
    shipped,
)

E = TypeVar("E")


class EventCodec:
    """Encodes under the newest version of each schema, and reads every version as the newest.

    Args:
        registry: of all versions.
        kinds: the dataclasses of events; each has the fields of its schema's newest version.
    """

    def __init__(self, registry: SchemaRegistry, kinds: Iterable[type[Any]]) -> None:
        self._registry = registry
        self._kinds = {_schema_name(kind): kind for kind in kinds}
        self._written: dict[type[Any], tuple[WireSchema, EventConverter]] = {}
        self._read: dict[bytes, tuple[WireSchema, Any, EventConverter]] = {}

    def encode(self, event: Any) -> bytes:
        """The bytes of an event, under the newest version of its schema."""
        kind = type(event)
        if kind not in self._written:
            newest = self._registry.newest(_schema_name(kind))
            self._written[kind] = newest, EventConverter(kind, newest.source)
        schema, converter = self._written[kind]
        stream = BytesIO()
        stream.write(schema.prefix)
        fastavro.schemaless_writer(stream, schema.parsed, converter.to_wire(event))
        return stream.getvalue()

    def decode(self, value: bytes) -> Any:
        """The event that the bytes hold, as its newest version has it.

        Raises:
            UnreadableEvent: no marker, an unknown fingerprint, a record of the ingest log, or bytes
                that end too early or too late.
        """
        schema, resolved_to, converter = self._reading(value)
        wire, end = read_avro(schema, schema.parsed, value, resolved_to)
        if end != len(value):
            extra = f"{len(value) - end} bytes too many"
            raise UnreadableEvent("torn", f"{schema.name}.v{schema.version}: {extra}")
        return converter.from_wire(wire)

    def _reading(self, value: bytes) -> tuple[WireSchema, Any, EventConverter]:
        found = self._read.get(value[:PREFIX_BYTES])
        if found is None:
            schema = self._registry.schema_of(value)
            if schema.name not in self._kinds:
                raise UnreadableEvent("not_an_event", "a record of an ingest log")
            newest = self._registry.newest(schema.name)
            source = in_rows(newest, schema)
            converter = EventConverter(self._kinds[schema.name], source)
            resolved_to = None if schema is newest else parse(source)
            found = self._read[schema.prefix] = schema, resolved_to, converter
        return found


def encode(event: Event) -> bytes:
    """``EventCodec.encode`` of what is shipped."""
    return _shipped().encode(event)


def decode(value: bytes) -> Event:
    """``EventCodec.decode`` of what is shipped."""
    event: Event = _shipped().decode(value)
    return event


def decode_as(kind: type[E], value: bytes) -> E:
    """``decode``, where only one kind of event is allowed."""
    event = decode(value)
    if not isinstance(event, kind):
        raise UnreadableEvent(
            "not_an_event", f"{type(event).__name__} where {kind.__name__} is due"
        )
    return event


@cache
def event_kinds() -> tuple[type[Event], ...]:
    """Every kind of event that a log may hold: each has a schema of its name."""
    names = {one.source["name"] for one in shipped().schemas if one.name != fields.SCHEMA}
    return tuple(getattr(events, name) for name in sorted(names))


@cache
def _shipped() -> EventCodec:
    return EventCodec(shipped(), event_kinds())


def _schema_name(kind: type[Any]) -> str:
    """``BatchServed`` to ``batch_served``."""
    letters = (f"_{c.lower()}" if c.isupper() else c for c in kind.__name__)
    return "".join(letters).removeprefix("_")
