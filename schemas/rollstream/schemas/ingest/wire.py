"""How Avro holds a record: a header, and the payload behind it.

fastavro writes and reads everything but the content of the last field, ``payload``, which is bytes:
it is joined behind the header when a record is written, and a view when it is read. So a rollout's
tokens are copied once on either side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from typing import Any

import fastavro

from rollstream.schemas import wire_schemas
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.wire_schemas import PREFIX_BYTES, WireSchema

Bytes = bytes | memoryview


def record_schema() -> WireSchema:
    """The schema of the records that are written."""
    return wire_schemas.newest("ingest_record")


def write_record(header: Mapping[str, Any], payload: Sequence[Bytes]) -> bytes:
    """The bytes of a record: its fields but the last, and the pieces of that one."""
    schema = record_schema()
    stream = BytesIO()
    stream.write(schema.prefix)
    fields = {**header, "payload": sum(map(len, payload))}
    fastavro.schemaless_writer(stream, _header_of(schema.prefix), fields)
    return b"".join((stream.getvalue(), *payload))


def read_record(schema: WireSchema, value: bytes) -> tuple[dict[str, Any], memoryview]:
    """The fields but the last, and a view of the last one's content.

    Raises:
        UnreadableEvent: the bytes end before the payload does, or after. EOFError and what else
            fastavro raises: the header is torn.
    """
    stream = BytesIO(value)
    stream.seek(PREFIX_BYTES)
    header: Any = fastavro.schemaless_reader(stream, _header_of(schema.prefix), None)
    payload = memoryview(value)[stream.tell() :]
    size = header["payload"]
    if len(payload) != size:
        raise UnreadableEvent("torn", f"payload of {size} bytes, and {len(payload)} are left")
    return header, payload


@cache
def _header_of(prefix: bytes) -> Any:
    schema = wire_schemas.by_prefix()[prefix]
    *fields, payload = schema.parsed["fields"]
    assert (payload["name"], payload["type"]) == ("payload", "bytes"), payload
    # Avro's bytes are a long, their number, and then the bytes themselves.
    fields.append({"name": "payload", "type": "long"})
    return fastavro.parse_schema({"type": "record", "name": "IngestRecordHeader", "fields": fields})
