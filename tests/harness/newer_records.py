"""Records as a newer producer writes them: this version cannot read them, until it is upgraded."""

from __future__ import annotations

from contextlib import AbstractContextManager
from unittest.mock import patch

from rollstream.schemas.fields import SCHEMA
from rollstream.schemas.ingest.wire import SCHEMA_HEADER
from rollstream.schemas.wire_schemas import MARKER, PREFIX_BYTES, shipped
from rollstream.streams.broker import Headers

NEWER_PREFIX = MARKER + bytes(8)
NEWER = shipped().newest(SCHEMA).version + 1
NEWER_HEADERS: Headers = ((SCHEMA_HEADER, str(NEWER).encode()),)


def newer(value: bytes) -> bytes:
    """The same record under a schema that this version does not know."""
    return NEWER_PREFIX + value[PREFIX_BYTES:]


def upgraded() -> AbstractContextManager[object]:
    """Everything in this process knows the newer schema, whose fields are today's."""
    registry = shipped()
    return patch.dict(registry._by_prefix, {NEWER_PREFIX: registry.newest(SCHEMA)})
