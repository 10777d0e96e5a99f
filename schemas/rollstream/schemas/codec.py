"""Encodes and decodes events: Avro single-object encoding.

The first ten bytes name the writer's schema (marker C3 01, CRC-64-AVRO fingerprint), so a reader
needs nothing besides the bytes. ``decode(encode(event)) == event`` for every event, arrays bit for
bit. Records of the ingest log are no events: ``rollstream.schemas.ingest`` has them.

Source: Avro 1.12 specification, "Single-object encoding".
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, TypeVar

import fastavro

from rollstream.schemas import wire_schemas
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.event_converter import converter_of, schema_name
from rollstream.schemas.events import Event
from rollstream.schemas.wire_schemas import PREFIX_BYTES, WireSchema, unknown_schema

E = TypeVar("E")


def encode(event: Event) -> bytes:
    """The bytes of an event, under the newest version of its schema."""
    schema = wire_schemas.newest(schema_name(type(event).__name__))
    stream = BytesIO()
    stream.write(schema.prefix)
    fastavro.schemaless_writer(stream, schema.parsed, converter_of(schema.prefix).to_wire(event))
    return stream.getvalue()


def decode(value: bytes) -> Event:
    """The event that the bytes hold.

    Raises:
        UnreadableEvent: no marker, an unknown fingerprint, a record of the ingest log, or bytes
            that end too early or too late.
    """
    schema = wire_schemas.by_prefix().get(value[:PREFIX_BYTES])
    if schema is None:
        raise unknown_schema(value)
    if schema.name == "ingest_record":
        raise UnreadableEvent("not_an_event", "a record of an ingest log")
    try:
        event: Event = converter_of(schema.prefix).from_wire(_read(schema, value))
    except (EOFError, IndexError, KeyError, ValueError, OverflowError, MemoryError) as error:
        raise UnreadableEvent("torn", f"{schema.name}.v{schema.version}: {error!r}") from error
    return event


def decode_as(kind: type[E], value: bytes) -> E:
    """``decode``, where only one kind of event is allowed."""
    event = decode(value)
    if not isinstance(event, kind):
        raise UnreadableEvent(
            "not_an_event", f"{type(event).__name__} where {kind.__name__} is due"
        )
    return event


def _read(schema: WireSchema, value: bytes) -> dict[str, Any]:
    stream = BytesIO(value)
    stream.seek(PREFIX_BYTES)
    wire: Any = fastavro.schemaless_reader(stream, schema.parsed, None)
    if stream.tell() != len(value):
        extra = len(value) - stream.tell()
        raise UnreadableEvent("torn", f"{schema.name}.v{schema.version}: {extra} bytes too many")
    fields: dict[str, Any] = wire
    return fields
