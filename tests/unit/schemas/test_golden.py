"""Bytes that were once shipped stay readable."""

from __future__ import annotations

import pytest

from harness.events import (
    example,
    golden_entries,
    golden_file,
    golden_record,
    kind_of,
    same,
)
from rollstream.schemas import wire_schemas
from rollstream.schemas.codec import decode, encode
from rollstream.schemas.ingest.record import decode_record
from rollstream.schemas.wire_schemas import WireSchema

EVENTS = [schema for schema in wire_schemas.shipped().schemas if schema.name != "ingest_record"]


def _name(schema: WireSchema) -> str:
    return f"{schema.name}.v{schema.version}"


@pytest.mark.parametrize("schema", EVENTS, ids=_name)
def test_golden_event_is_read_as_what_it_was(schema: WireSchema) -> None:
    found, expected = decode(golden_file(schema).read_bytes()), example(kind_of(schema))
    newest = wire_schemas.shipped().newest(schema.name)
    if schema is newest:
        assert same(found, expected)
    types = {field["name"]: field["type"] for field in newest.fields}
    unchanged = [f["name"] for f in schema.fields if types.get(f["name"]) == f["type"]]
    assert unchanged
    for name in unchanged:
        assert same(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("schema", EVENTS, ids=_name)
def test_golden_event_is_written_again_byte_for_byte(schema: WireSchema) -> None:
    golden = golden_file(schema).read_bytes()
    written = encode(decode(golden))
    if schema is wire_schemas.shipped().newest(schema.name):
        assert written == golden
    assert same(decode(written), decode(golden)), "an old version is written as the newest"


@pytest.mark.parametrize("schema", wire_schemas.shipped().versions("ingest_record"), ids=_name)
def test_golden_record_of_every_version_is_read(schema: WireSchema) -> None:
    record = decode_record(golden_file(schema).read_bytes())
    assert record.broken == {}
    uids = [entry.fields["rollout_uid"] for entry in golden_entries()]
    assert record.values("rollout_uid") == uids[: record.count]


def test_golden_record_is_read_and_written_byte_for_byte() -> None:
    golden = golden_file(wire_schemas.shipped().newest("ingest_record")).read_bytes()
    record = decode_record(golden)
    assert (record.environment, record.worker_id, record.partitions) == ("math", "worker-0", 4)
    assert record.broken == {}
    assert [record.entry(index) for index in range(record.count)] == golden_entries()
    assert golden_record() == golden
