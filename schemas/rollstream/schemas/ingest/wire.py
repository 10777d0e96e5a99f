"""How Avro holds a record: a header, and the payload behind it.

fastavro writes and reads all fields but the content of the last, ``payload``, whose length it takes
for a number: that is joined behind the header when a record is written, and a view when it is read.
So a rollout's tokens are copied once on either side.

A record of an older version is read as the newest: its header by Avro's resolution, its payload in
the order of the fields that its version has.

Source: Avro 1.12 specification, "Binary encoding" and "Schema Resolution".
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple

import fastavro

from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.fields import SCHEMA, RowField, columns, fields_of, named, row_fields
from rollstream.schemas.wire_schemas import WireSchema, parse, read_avro, shipped

_IN_PAYLOAD = ("text", "number", "array")  # A number is in the header.
NONE, ALL, SOME = range(3)  # Which entries have an array.
COUNTS = "<u4"  # How lengths and indexes are read: a negative one is beyond all bytes there are.
# As ``array`` names them, on a little-endian machine.
_CODES: Mapping[str, Any] = {"<i4": "i", "<u4": "I", "<i8": "q", "<f8": "d", "|b1": "B"}


SCHEMA_HEADER = "schema"
"""The name of the Kafka header with the number of a record's schema, in ASCII digits: a reader that
does not know the schema learns from it whether that is newer."""


@cache
def record_headers() -> tuple[tuple[str, bytes], ...]:
    """The Kafka headers of each record that this version writes."""
    return ((SCHEMA_HEADER, str(shipped().newest(SCHEMA).version).encode()),)


def packed(dtype: str, values: Iterable[Any]) -> bytes:
    """The bytes of numbers."""
    return array(_CODES[dtype], values).tobytes()


def unpacked(dtype: str, raw: bytes) -> list[Any]:
    """Numbers, of as many bytes as they have."""
    return memoryview(raw).cast(_CODES[dtype]).tolist()


def write_record(header: dict[str, Any], payload: Sequence[bytes]) -> bytes:
    """The bytes of a record: its fields but the last, to which that one's length is added, and the
    pieces of that one."""
    schema = shipped().newest(SCHEMA)
    stream = BytesIO()
    stream.write(schema.prefix)
    header["payload"] = sum(map(len, payload))
    fastavro.schemaless_writer(stream, _header(schema), header)
    return b"".join((stream.getvalue(), *payload))


class PayloadFields(NamedTuple):
    """The fields whose content is in a record's payload, in its order.

    Attributes:
        plain: those that are not extras.
        extras: those of the extras, which follow.
        removed: names of those that the newest version has no more.
    """

    plain: tuple[RowField, ...]
    extras: tuple[RowField, ...]
    removed: tuple[str, ...] = ()


def read_record(value: bytes) -> tuple[dict[str, Any], memoryview, PayloadFields]:
    """The fields but the last, as the newest version has them; a view of the last one's content;
    and the order of what is in it.

    Raises:
        UnreadableEvent: the bytes hold no record, or end before the payload does, or after.
    """
    schema = shipped().schema_of(value)
    if schema.name != SCHEMA:
        raise UnreadableEvent("not_an_event", f"{schema.name} does not belong into an ingest log")
    resolved_to, fields = _resolution(schema)
    header, end = read_avro(schema, _header(schema), value, resolved_to)
    if resolved_to is not None:
        names = [field.name for field in named("shared")]
        header["shared"] = [{name: one[name] for name in names} for one in header["shared"]]
    payload = memoryview(value)[end:]
    size = header.pop("payload")
    if size != len(payload):
        raise UnreadableEvent("torn", f"payload of {size} bytes, and {len(payload)} are left")
    return header, payload, fields


@cache
def _header(schema: WireSchema) -> Any:
    return _parsed_header(schema, schema.fields[:-1])


def _parsed_header(schema: WireSchema, fields: Iterable[Mapping[str, Any]]) -> Any:
    payload = schema.fields[-1]
    # Avro's bytes are a long, their number, and then the bytes themselves.
    assert (payload["name"], payload["type"]) == ("payload", "bytes"), payload
    sized = [*fields, {"name": "payload", "type": "long"}]
    namespace = schema.source["namespace"]
    return parse({"type": "record", "name": "Header", "namespace": namespace, "fields": sized})


@cache
def _resolution(schema: WireSchema) -> tuple[Any, PayloadFields]:
    """The header that one of this version is resolved to, None for the newest, and the order of its
    payload."""
    newest = shipped().newest(SCHEMA)
    if schema is newest:
        return None, PayloadFields(columns(extra=False), columns(extra=True))
    fields = [field for field in fields_of(schema).values() if field.column in _IN_PAYLOAD]
    removed = tuple(field.name for field in fields if field.name not in row_fields())
    # Without the lengths of what was removed nothing behind it could be found.
    kept = _with_removed(newest.fields[:-1], schema.fields, removed)
    return _parsed_header(newest, kept), PayloadFields(
        tuple(field for field in fields if not field.extra),
        tuple(field for field in fields if field.extra),
        removed,
    )


def _with_removed(
    fields: Sequence[Mapping[str, Any]],
    older: Sequence[Mapping[str, Any]],
    removed: Sequence[str],
) -> list[Mapping[str, Any]]:
    """These fields of a header and, where they stood, older ones that were removed."""
    found = [*fields, *(field for field in older if field["name"] in removed)]
    of_extras = {field["name"]: field for field in older}.get("extras")
    for index, field in enumerate(found):
        if field["name"] == "extras" and of_extras is not None:
            null, extras = field["type"]
            inner = _with_removed(extras["fields"], of_extras["type"][1]["fields"], removed)
            found[index] = {**field, "type": [null, {**extras, "fields": inner}]}
    return found
