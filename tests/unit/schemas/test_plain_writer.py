"""The plain writer writes what fastavro writes, or nothing."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rollstream.schemas.plain_writer import PlainWriter

from rollstream.schemas import wire_schemas

SCHEMA = wire_schemas.newest("rollout")
WRITER = PlainWriter(SCHEMA.parsed["fields"], SCHEMA.prefix, {"lineage", "policy_version"})
TEXTS = st.text(max_size=100)
VALUES = {
    "string": TEXTS,
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "boolean": st.booleans(),
    "bytes": st.binary(max_size=300),
}


def values_of(avro_type: Any) -> st.SearchStrategy[Any]:
    if isinstance(avro_type, str):
        return VALUES[avro_type]
    if avro_type == ["null", "double"]:
        return st.none() | st.floats()
    if avro_type == ["null", "bytes"]:
        return st.none() | VALUES["bytes"]
    if isinstance(avro_type, list):  # Extras.
        return st.none()
    return st.just({})  # Rewards.


RECORDS = st.fixed_dictionaries(
    {field["name"]: values_of(field["type"]) for field in SCHEMA.parsed["fields"]}
)


def fastavros(record: dict[str, Any]) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA.parsed, record)
    return SCHEMA.prefix + stream.getvalue()


@given(RECORDS)
def test_every_plain_record_is_written_as_fastavro_writes_it(record: dict[str, Any]) -> None:
    assert WRITER.write(record) == fastavros(record)


@given(RECORDS, st.integers(-(2**63), 2**63 - 1))
@example({}, 2**20 - 1)
@example({}, 2**20)
@example({}, -1)
@example({}, 2**63 - 1)
@example({}, -(2**63))
def test_every_long_is_written_as_fastavro_writes_it(record: dict[str, Any], number: int) -> None:
    record = {**plain(), **record, "created_ts": number, "weight_step": number}
    assert WRITER.write(record) == fastavros(record)


def test_a_record_with_rewards_is_left_to_fastavro() -> None:
    assert WRITER.write({**plain(), "rewards": {"format": 1.0}}) is None


def test_text_that_utf_8_does_not_have_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        WRITER.write({**plain(), "rollout_uid": "\ud800"})


def plain() -> dict[str, Any]:
    defaults = {"string": "", "int": 0, "long": 0, "boolean": False, "bytes": b""}
    found: dict[str, Any] = {}
    for field in SCHEMA.parsed["fields"]:
        kind = field["type"]
        found[field["name"]] = defaults[kind] if isinstance(kind, str) else None
    return {**found, "rewards": {}}
