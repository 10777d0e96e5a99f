"""How Avro holds a record: a header, and the payload behind it.

fastavro writes and reads all fields but the content of the last, ``payload``, whose length it takes
for a number: that is joined behind the header when a record is written, and a view when it is read.
So a rollout's tokens are copied once on either side.

Source: Avro 1.12 specification, "Binary encoding".
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from io import BytesIO
from typing import Any

import fastavro

from rollstream.schemas import wire_schemas
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.wire_schemas import WireSchema, read_avro, schema_of

NONE, ALL, SOME = range(3)  # Which entries have an array.
COUNTS = "<u4"  # How lengths and indexes are read: a negative one is beyond all bytes there are.
# As ``array`` names them, on a little-endian machine.
_CODES: Mapping[str, Any] = {"<i4": "i", "<u4": "I", "<i8": "q", "<f8": "d", "|b1": "B"}


def packed(dtype: str, values: Iterable[Any]) -> bytes:
    """The bytes of numbers."""
    return array(_CODES[dtype], values).tobytes()


def unpacked(dtype: str, raw: bytes) -> list[Any]:
    """Numbers, of as many bytes as they have."""
    return array(_CODES[dtype], raw).tolist()


def write_record(header: dict[str, Any], payload: Sequence[bytes]) -> bytes:
    """The bytes of a record: its fields but the last, to which that one's length is added, and the
    pieces of that one."""
    schema = wire_schemas.newest("ingest_record")
    stream = BytesIO()
    stream.write(schema.prefix)
    header["payload"] = sum(map(len, payload))
    fastavro.schemaless_writer(stream, _header(schema), header)
    return b"".join((stream.getvalue(), *payload))


def read_record(value: bytes) -> tuple[dict[str, Any], memoryview]:
    """The fields but the last, and a view of the last one's content.

    Raises:
        UnreadableEvent: the bytes hold no record, or end before the payload does, or after.
    """
    schema = schema_of(value)
    if schema.name != "ingest_record":
        raise UnreadableEvent("not_an_event", f"{schema.name} does not belong into an ingest log")
    header, end = read_avro(schema, _header(schema), value)
    payload = memoryview(value)[end:]
    size = header.pop("payload")
    if size != len(payload):
        raise UnreadableEvent("torn", f"payload of {size} bytes, and {len(payload)} are left")
    return header, payload


@cache
def _header(schema: WireSchema) -> Any:
    *fields, payload = schema.parsed["fields"]
    # Avro's bytes are a long, their number, and then the bytes themselves.
    assert (payload["name"], payload["type"]) == ("payload", "bytes"), payload
    fields.append({"name": "payload", "type": "long"})
    return fastavro.parse_schema({"type": "record", "name": "IngestRecordHeader", "fields": fields})
