"""Encodes and decodes events: Avro single-object encoding.

The first ten bytes name the writer's schema (marker C3 01, CRC-64-AVRO fingerprint), so a reader
needs nothing besides the bytes. ``decode(encode(event)) == event`` for every event, arrays bit for
bit. Arrays travel packed (little-endian bytes) and are never touched token by token.

Source: Avro 1.12 specification, "Single-object encoding".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple, TypeVar

import fastavro

from rollstream.schemas import wire_schemas
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.event_converter import converter_of, schema_name
from rollstream.schemas.events import Dispatched, Event, Failed
from rollstream.schemas.header import RolloutHeader
from rollstream.schemas.plain_writer import PlainWriter
from rollstream.schemas.rollout_reader import RolloutReader
from rollstream.schemas.rules import BrokenRule, check_control_event, check_counts, check_segment
from rollstream.schemas.wire_schemas import PREFIX_BYTES, WireSchema

E = TypeVar("E")
_MEMOISED_FIELDS = frozenset(
    (
        *("segment_idx", "is_last_segment", "continuation_of", "prefix_hash", "lineage"),
        *("policy_version", "policy_epoch", "weight_step", "replica_id", "worker_id"),
        *("split", "stop_reason"),
    )
)


class Segment(NamedTuple):
    """A decoded rollout segment: its header, and the other fields by name; arrays are packed, as
    bytes or as views of the record's."""

    header: RolloutHeader
    body: Mapping[str, Any]


def encode_rollout(fields: Mapping[str, Any]) -> bytes:
    """The bytes of a rollout segment, from its fields under the names of the ``rollout`` schema."""
    return _plain_rollouts().write(fields) or _write(wire_schemas.newest("rollout"), fields)


@cache
def _plain_rollouts() -> PlainWriter:
    schema = wire_schemas.newest("rollout")
    return PlainWriter(schema.parsed["fields"], schema.prefix, _MEMOISED_FIELDS)


def encode(event: Event) -> bytes:
    """The bytes of an event, under the newest version of its schema."""
    schema = wire_schemas.newest(schema_name(type(event).__name__))
    return _write(schema, converter_of(schema.prefix).to_wire(event))


def decode(value: bytes) -> Segment | Event:
    """The event, or the segment, that the bytes hold.

    Raises:
        UnreadableEvent: no marker, an unknown fingerprint, bytes that end too early or too late,
            or a broken rule of ``rollstream.schemas.rules`` (but those on names).
    """
    schema = wire_schemas.by_prefix().get(value[:PREFIX_BYTES])
    if schema is None:
        raise _no_such_schema(value)
    try:
        if schema.name == "rollout":
            return _segment(schema, value)
        event: Event = converter_of(schema.prefix).from_wire(_read(schema, value))
        if isinstance(event, Dispatched | Failed):
            check_control_event(event)
        return event
    except BrokenRule as broken:
        raise UnreadableEvent("inconsistent", str(broken)) from broken
    except (EOFError, IndexError, KeyError, ValueError, OverflowError, MemoryError) as error:
        raise UnreadableEvent("torn", f"{schema.name}.v{schema.version}: {error!r}") from error


def decode_as(kind: type[E], value: bytes) -> E:
    """``decode``, where only one kind of event is allowed."""
    event = decode(value)
    if not isinstance(event, kind):
        raise UnreadableEvent(
            "not_an_event", f"{type(event).__name__} where {kind.__name__} is due"
        )
    return event


def _write(schema: WireSchema, wire: Mapping[str, Any]) -> bytes:
    stream = BytesIO()
    stream.write(schema.prefix)
    fastavro.schemaless_writer(stream, schema.parsed, wire)
    return stream.getvalue()


def _read(schema: WireSchema, value: bytes) -> dict[str, Any]:
    stream = BytesIO(value)
    stream.seek(PREFIX_BYTES)
    wire: Any = fastavro.schemaless_reader(stream, schema.parsed, None)
    if stream.tell() != len(value):
        extra = len(value) - stream.tell()
        raise UnreadableEvent("torn", f"{schema.name}.v{schema.version}: {extra} bytes too many")
    fields: dict[str, Any] = wire
    return fields


def _segment(schema: WireSchema, value: bytes) -> Segment:
    found = _rollouts(schema.prefix).read(value)
    if found is None:
        body = _read(schema, value)
        header = RolloutHeader._make(map(body.pop, RolloutHeader._fields))
        check_counts(header, body)
    else:
        header, body = found
    check_segment(header, body)
    return Segment(header, body)


@cache
def _rollouts(prefix: bytes) -> RolloutReader:
    return RolloutReader(wire_schemas.by_prefix()[prefix])


def _no_such_schema(value: bytes) -> UnreadableEvent:
    if value[:2] != wire_schemas.MARKER:
        return UnreadableEvent("not_an_event", f"begins with {value[:PREFIX_BYTES].hex()!r}")
    return UnreadableEvent("unknown_schema", f"fingerprint {value[2:PREFIX_BYTES].hex()!r}")
