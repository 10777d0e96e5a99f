"""The reader of rollouts reads what fastavro reads, or leaves it to fastavro."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollstream.schemas.rollout_reader import RolloutReader
from rollstream.schemas.varint import read_number, small_number

from harness.rollouts import make_fields
from harness.strategies import rollout_fields
from rollstream.schemas import wire_schemas
from rollstream.schemas.codec import decode, encode_rollout
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.wire_schemas import PREFIX_BYTES

SCHEMA = wire_schemas.newest("rollout")
LONG = "ä" * 40  # More than 63 bytes.
TORN = (EOFError, IndexError, KeyError, ValueError, OverflowError, MemoryError)


def fastavros(value: bytes) -> dict[str, Any] | None:
    """None: torn, or more than one record."""
    stream = BytesIO(value)
    stream.seek(PREFIX_BYTES)
    try:
        wire: Any = fastavro.schemaless_reader(stream, SCHEMA.parsed, None)
    except TORN:
        return None
    fields: dict[str, Any] = wire
    return fields if stream.tell() == len(value) else None


def ours(value: bytes, reader: RolloutReader) -> dict[str, Any] | None:
    """None: it is left to fastavro, or torn."""
    try:
        found = reader.read(value)
    except TORN:
        return None
    return None if found is None else {**found[0]._asdict(), **found[1]}


def comparable(fields: dict[str, Any] | None) -> str | None:
    """NaN equals itself, and a view its bytes."""
    if fields is None:
        return None
    plain = {k: bytes(v) if isinstance(v, memoryview) else v for k, v in sorted(fields.items())}
    return repr(plain)


@given(st.lists(rollout_fields(), min_size=1, max_size=4))
def test_every_rollout_is_read_as_fastavro_reads_it(rollouts: list[dict[str, Any]]) -> None:
    reader = RolloutReader(SCHEMA)
    for fields in [*rollouts, *rollouts]:  # Again: the second time much of it is kept.
        value = encode_rollout(fields)
        assert ours(value, reader) == fastavros(value) == fields


@pytest.mark.parametrize(
    "name", ["environment", "rollout_uid", "policy_version", "worker_id", "stop_reason"]
)
def test_long_names_are_read(name: str) -> None:
    fields = make_fields(**{name: LONG})
    assert ours(encode_rollout(fields), RolloutReader(SCHEMA)) == fields


@given(rollout_fields(), st.data())
def test_changed_bytes_are_read_as_fastavro_reads_them_or_not_at_all(
    fields: dict[str, Any], data: st.DataObject
) -> None:
    value = bytearray(encode_rollout(fields))
    reader = RolloutReader(SCHEMA)
    ours(bytes(value), reader)
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(PREFIX_BYTES, len(value) - 1))] = data.draw(st.integers(0, 255))
    found = ours(bytes(value), reader)
    assert found is None or comparable(found) == comparable(fastavros(bytes(value)))


@given(rollout_fields(), st.data())
def test_a_record_that_is_cut_or_goes_on_is_refused(
    fields: dict[str, Any], data: st.DataObject
) -> None:
    value = encode_rollout(fields)
    end = data.draw(st.integers(PREFIX_BYTES, len(value) - 1))
    for other in (value[:end], value + b"\x00"):
        assert ours(other, RolloutReader(SCHEMA)) is None
        with pytest.raises(UnreadableEvent) as told:
            decode(other)
        assert told.value.reason == "torn"


def test_a_torn_record_spoils_no_whole_one() -> None:
    """What is kept of it has the length of what the shorter one keeps, and begins the longer."""
    reader = RolloutReader(SCHEMA)
    ours(encode_rollout(make_fields(worker_id="ab")), reader)
    fields = make_fields(worker_id="abcd")
    value = encode_rollout(fields)
    for end in range(PREFIX_BYTES, len(value)):
        ours(value[:end], reader)
    assert ours(value, reader) == fields


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
def test_numbers_come_back(number: int, behind: bytes) -> None:
    written = small_number(number)
    assert read_number(written + behind, 0) == (number, len(written))


def test_a_number_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 64 bits"):
        read_number(b"\xff" * 9 + b"\x02", 0)
