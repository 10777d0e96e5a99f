"""Encodes and decodes events: Avro single-object encoding.

The first ten bytes name the writer's schema (marker C3 01, CRC-64-AVRO fingerprint), so a reader
needs nothing besides the bytes. ``decode(encode(event)) == event`` for every event, arrays bit for
bit. Records of the ingest log are no events: ``rollstream.schemas.ingest`` has them.

Source: Avro 1.12 specification, "Single-object encoding".
"""

from __future__ import annotations

from io import BytesIO
from typing import TypeVar

import fastavro

from rollstream.schemas import wire_schemas
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.event_converter import converter_of, schema_name
from rollstream.schemas.events import Event
from rollstream.schemas.wire_schemas import read_avro, schema_of

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
    schema = schema_of(value)
    if schema.name == "ingest_record":
        raise UnreadableEvent("not_an_event", "a record of an ingest log")
    wire, end = read_avro(schema, schema.parsed, value)
    if end != len(value):
        extra = f"{len(value) - end} bytes too many"
        raise UnreadableEvent("torn", f"{schema.name}.v{schema.version}: {extra}")
    event: Event = converter_of(schema.prefix).from_wire(wire)
    return event


def decode_as(kind: type[E], value: bytes) -> E:
    """``decode``, where only one kind of event is allowed."""
    event = decode(value)
    if not isinstance(event, kind):
        raise UnreadableEvent(
            "not_an_event", f"{type(event).__name__} where {kind.__name__} is due"
        )
    return event
