"""Bytes that were once shipped stay readable."""

from __future__ import annotations

import pytest

from harness.events import example, golden_file, golden_rollout, kind_of, same
from rollstream.schemas import wire_schemas
from rollstream.schemas.codec import Segment, decode, encode, encode_rollout
from rollstream.schemas.wire_schemas import WireSchema

ALL = wire_schemas.all_schemas()
EVENTS = [schema for schema in ALL if schema.name != "rollout"]


def _name(schema: WireSchema) -> str:
    return f"{schema.name}.v{schema.version}"


@pytest.mark.parametrize("schema", EVENTS, ids=_name)
def test_golden_event_is_read_as_what_it_was(schema: WireSchema) -> None:
    assert same(decode(golden_file(schema).read_bytes()), example(kind_of(schema)))


@pytest.mark.parametrize("schema", EVENTS, ids=_name)
def test_golden_event_is_written_again_byte_for_byte(schema: WireSchema) -> None:
    if schema != wire_schemas.newest(schema.name):
        pytest.skip("an old version is read, never written")
    golden = golden_file(schema).read_bytes()
    event = decode(golden)
    assert not isinstance(event, Segment)
    assert encode(event) == golden


def test_golden_rollout_is_read_and_written_byte_for_byte() -> None:
    golden = golden_file(wire_schemas.newest("rollout")).read_bytes()
    segment = decode(golden)
    assert segment == golden_rollout()
    assert isinstance(segment, Segment)
    body = {k: bytes(v) if isinstance(v, memoryview) else v for k, v in segment.body.items()}
    assert encode_rollout({**segment.header._asdict(), **body}) == golden
