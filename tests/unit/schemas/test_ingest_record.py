"""Entries to the bytes of a record and back; what is no record is ``UnreadableEvent``."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import golden_record
from harness.rollouts import (
    encode_record,
    make_columns,
    make_dispatched,
    make_entry,
    make_record,
    members,
)
from harness.strategies import entries, records
from rollstream.schemas import wire_schemas
from rollstream.schemas.codec import encode
from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Claimed
from rollstream.schemas.fields import named
from rollstream.schemas.ingest.entry import ENTRIES_MAX, Entry, EntryKind
from rollstream.schemas.ingest.gather import gather
from rollstream.schemas.ingest.record import IngestRecord, decode_record
from rollstream.schemas.wire_schemas import PREFIX_BYTES

SCHEMA = wire_schemas.shipped().newest("ingest_record")
# An int and a long have the same bytes; so numbers may be written that fastavro calls no int.
WIDE = fastavro.parse_schema(json.loads(json.dumps(SCHEMA.source).replace('"int"', '"long"')))


def wire_of(value: bytes) -> dict[str, Any]:
    """The record as any Avro library reads it."""
    stream = BytesIO(value)
    stream.seek(PREFIX_BYTES)
    wire: Any = fastavro.schemaless_reader(stream, SCHEMA.parsed, None)
    assert stream.read() == b""
    fields: dict[str, Any] = wire
    return fields


def written(wire: dict[str, Any]) -> bytes:
    """The record as any Avro library writes it."""
    stream = BytesIO()
    fastavro.schemaless_writer(stream, WIDE, wire)
    return SCHEMA.prefix + stream.getvalue()


def changed(value: bytes, **fields: Any) -> bytes:
    return written({**wire_of(value), **fields})


def extras_changed(value: bytes, **fields: Any) -> bytes:
    return changed(value, extras={**wire_of(value)["extras"], **fields})


@given(records())
def test_every_entry_comes_back_as_it_was(given_entries: list[Entry]) -> None:
    record = make_record(given_entries, environment="code", worker_id="wörker", partitions=7)
    assert (record.environment, record.worker_id, record.partitions) == ("code", "wörker", 7)
    assert record.count == len(given_entries)
    assert record.broken == {}
    assert [record.entry(index) for index in range(record.count)] == given_entries
    assert list(record.kinds) == [entry.kind for entry in given_entries]
    for field in named("shared", "text", "number"):
        values = [entry.fields.get(field.name, field.default) for entry in given_entries]
        assert record.values(field.name) == values


@given(records())
def test_a_record_is_what_any_avro_library_writes(given_entries: list[Entry]) -> None:
    value = encode_record(given_entries, partitions=2**31 - 1)
    assert written(wire_of(value)) == value


def test_equal_entries_give_equal_bytes_whatever_their_mappings_order() -> None:
    collections: dict[str, dict[str, Any]] = {
        "rewards": {"b": 1.0, "a": 2.0},
        "attachments": {"b": b"1", "a": b"2"},
        "token_arrays": {"b": np.zeros(3, np.uint8), "a": np.zeros(3, np.uint8)},
    }
    turned = {name: dict(reversed(given.items())) for name, given in collections.items()}
    one, other = make_entry(**collections), make_entry(**turned)
    assert one == other
    assert encode_record([one]) == encode_record([other])


@given(records(), st.data())
def test_a_part_is_a_record_of_these_entries_alone(
    given_entries: list[Entry], data: st.DataObject
) -> None:
    value = encode_record(given_entries)
    some = data.draw(st.lists(st.integers(0, len(given_entries) - 1), min_size=1, max_size=4))
    assert decode_record(value).part(some) == encode_record([given_entries[i] for i in some])


class Counted(list[Any]):
    """Counts how often it is gone through."""

    passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return super().__iter__()


def test_parts_of_one_do_not_each_go_through_all_attachments() -> None:
    given_entries = [make_entry(rollout_uid=f"u{n}", attachments={"a": b"1"}) for n in range(64)]
    record = make_record(given_entries)
    attached = record.header["extras"]["attachments"] = Counted(
        record.header["extras"]["attachments"]
    )
    for index, entry in enumerate(given_entries):
        assert record.part([index]) == encode_record([entry])
    assert attached.passes <= 1


def test_tokens_are_views_of_the_bytes() -> None:
    value = encode_record(members(2))
    record = decode_record(value)
    view = record.bytes_of(record.arrays["output_tokens"], 0, 2)
    assert view.obj is value
    assert np.frombuffer(view, "<i4").tolist() == [21, 22, 23] * 2


def test_key_is_the_group_or_else_the_example() -> None:
    assert make_entry(group_uid="g", example_id="x").key == "g"
    assert make_entry(group_uid="", example_id="x").key == "x"


# --- what is no record ---


def all_work(record: IngestRecord) -> None:
    """Everything that a reader may ask of a record whose frame is sound."""
    everything = list(range(record.count))
    again = decode_record(record.part(everything))
    assert again.broken.keys() == record.broken.keys()
    for field in named("once", "shared", "text", "number"):
        assert len(record.values(field.name)) == record.count
    segments = [
        index
        for index in everything
        if record.kinds[index] == EntryKind.SEGMENT and index not in record.broken
    ]
    if segments:
        assert gather([record] * len(segments), segments).rows == len(segments)


def work_or_unreadable(value: bytes) -> None:
    # Anything else that is raised fails the test.
    with contextlib.suppress(UnreadableEvent):
        record = decode_record(value)
        all_work(record)
        wire = wire_of(value)
        assert wire.pop("payload") == bytes(record.payload)
        assert repr(wire) == repr(record.header)


@given(st.binary(max_size=200))
def test_garbage_behind_the_prefix_is_unreadable_or_works(junk: bytes) -> None:
    work_or_unreadable(SCHEMA.prefix + junk)


SOUND = st.sampled_from([golden_record(), encode_record(members(1)), encode_record(members(40))])


@given(
    SOUND | st.lists(entries(), min_size=1, max_size=3).map(encode_record),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
)
def test_flipped_bytes_are_unreadable_or_work(value: bytes, flips: list[tuple[float, int]]) -> None:
    bytes_now = bytearray(value)
    for where, byte in flips:
        bytes_now[int(where * len(bytes_now))] = byte
    work_or_unreadable(bytes(bytes_now))


@given(SOUND, st.data())
def test_a_record_that_ends_early_or_late_is_torn(value: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(PREFIX_BYTES, len(value) - 1))
    for torn in (value[:cut], value + b"\0"):
        with pytest.raises(UnreadableEvent) as told:
            decode_record(torn)
        assert told.value.reason == "torn"


NUMBERS = st.integers(-3, 3) | st.sampled_from([2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 65_537])


@given(st.data(), st.sampled_from(["", "extras"]))
def test_any_number_in_any_place_is_unreadable_or_works(data: st.DataObject, part: str) -> None:
    wire = wire_of(golden_record())
    within = wire[part] if part else wire
    name = data.draw(st.sampled_from(sorted(within)))
    old = within[name]
    if isinstance(old, int):
        within[name] = data.draw(NUMBERS)
    elif isinstance(old, bytes) and name != "payload":
        within[name] = data.draw(st.binary(min_size=len(old), max_size=len(old)) | st.binary())
    elif isinstance(old, list) and old and isinstance(old[0], dict):
        one = data.draw(st.sampled_from(old))
        of = data.draw(st.sampled_from([k for k, v in one.items() if isinstance(v, int)] or [""]))
        if of:
            one[of] = data.draw(NUMBERS)
    work_or_unreadable(written(wire))


@pytest.mark.parametrize("value", [b"", b"\xc3", b"hello, this is no event", b"{}"])
def test_bytes_without_the_marker_are_not_an_event(value: bytes) -> None:
    with pytest.raises(UnreadableEvent) as told:
        decode_record(value)
    assert told.value.reason == "not_an_event"


def test_an_unknown_fingerprint_is_named() -> None:
    with pytest.raises(UnreadableEvent, match="0102030405060708") as told:
        decode_record(wire_schemas.MARKER + bytes(range(1, 9)) + b"payload")
    assert told.value.reason == "unknown_schema"


def test_an_event_is_no_record() -> None:
    with pytest.raises(UnreadableEvent) as told:
        decode_record(encode(Claimed(owner="a", nonce="n")))
    assert told.value.reason == "not_an_event"


def i4(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


TWO = encode_record(
    [
        make_entry(rollout_uid=uid, token_arrays={"experts": np.zeros((3, 2), np.uint8)})
        for uid in ("a", "b")
    ]
)
EXPERTS = {"name": "experts", "dtype": "|u1", "shape": [2], "presence": 1}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"count": 0}, "count is 0"),
        ({"count": -1}, "count is -1"),
        ({"count": 3}, "prompt_count has 8 bytes"),
        ({"count": ENTRIES_MAX + 1}, "count is 65537"),
        ({"count": 2**31 - 1}, "count is 2147483647"),
        ({"kinds": b"\0"}, "kinds has 1 bytes"),
        ({"worker_id": "w" * 4_097}, "worker_id has 4097 characters"),
        ({"rollout_uid": b""}, "2 segments, none with a rollout_uid"),
        ({"rollout_uid": b"", "kinds": b"\0\0"}, "2 segments, none with a rollout_uid"),
        ({"rollout_uid": i4(0, 0)}, "2 segments, none with a rollout_uid"),
        ({"shared": []}, "shared_indexes"),
        ({"shared_indexes": i4(0, 1)}, "shared_indexes"),
        ({"shared_indexes": i4(0, -1)}, "shared_indexes"),
        ({"shared_indexes": i4(0)}, "shared_indexes has 4 bytes"),
        ({"rollout_uid": i4(1)}, "rollout_uid has 4 bytes"),
        ({"rollout_uid": i4(-1, 3)}, "rollout_uid has 4294967298 bytes in the payload"),
        ({"rollout_uid": i4(1, 2**31 - 1)}, "rollout_uid has 2147483648 bytes in the payload"),
        ({"rollout_uid": i4(1, 2)}, "experts has 12 bytes in the payload, and 11 are left"),
        ({"rollout_uid": i4(1, 0)}, "payload has"),
        ({"created_ts": i4(1, 2)}, "created_ts has 8 bytes"),
        ({"prompt_count": i4(2, -1)}, "prompt_tokens has 17179869188 bytes in the payload"),
        ({"token_count": i4(3, 4)}, "experts has 14 bytes in the payload"),
        (
            {"token_count": i4(2**31 - 1, 2**31 - 1)},
            "output_tokens has 17179869176 bytes in the payload",
        ),
        ({"prompt_tokens": 0}, "prompt_tokens is 0; every entry has it"),
        ({"output_tokens": 2}, "output_tokens is 2; every entry has it"),
        ({"logprobs": 3}, "logprobs is 3"),
        ({"loss_mask": -1}, "loss_mask is -1"),
        ({"loss_mask": 1}, "experts has 12 bytes in the payload, and 6 are left"),
    ],
    ids=str,
)
def test_a_record_whose_lengths_disagree_is_inconsistent(change: dict[str, Any], told: str) -> None:
    with pytest.raises(UnreadableEvent, match=told) as raised:
        decode_record(changed(TWO, **change))
    assert raised.value.reason == "inconsistent"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"token_arrays": []}, "payload has"),
        ({"token_arrays": [EXPERTS, {**EXPERTS, "presence": 0}]}, "'experts' twice"),
        ({"token_arrays": [{**EXPERTS, "name": f"n{i}"} for i in range(65)]}, "has 65 names"),
        ({"token_arrays": [{**EXPERTS, "name": ""}]}, "has 0 characters; give 1 to 200"),
        (
            {"rewards": {"names": ["n" * 4_097], "counts": b"", "indexes": b"", "values": b""}},
            "rewards has a name that has 4097 characters",
        ),
        (
            {"token_arrays": [{**EXPERTS, "shape": [3]}]},
            "experts has 18 bytes in the payload, and 12 are left",
        ),
        ({"token_arrays": [{**EXPERTS, "shape": [-1]}]}, "shape"),
        ({"token_arrays": [{**EXPERTS, "shape": [2**21]}]}, "shape"),
        ({"token_arrays": [{**EXPERTS, "shape": [0, 2**31 - 1, 2**31 - 1]}]}, "shape"),
        ({"token_arrays": [{**EXPERTS, "shape": [1] * 64}]}, "shape"),
        ({"token_arrays": [{**EXPERTS, "dtype": "|O"}]}, "dtype"),
        ({"token_arrays": [{**EXPERTS, "dtype": ">i2"}]}, "dtype"),
        ({"token_arrays": [{**EXPERTS, "dtype": "b3"}]}, "dtype"),
        ({"token_arrays": [{**EXPERTS, "dtype": "i1,i1"}]}, "dtype"),
        ({"token_arrays": [{**EXPERTS, "dtype": ""}]}, "dtype"),
        ({"token_arrays": [{**EXPERTS, "presence": 4}]}, "experts is 4"),
        ({"attachments": [{"entry": 2, "name": "n", "data": b""}]}, "attachment of entry 2"),
        ({"attachments": [{"entry": -1, "name": "n", "data": b""}]}, "attachment of entry -1"),
        ({"failures": [{"entry": 2, "count": 1, "reason": ""}]}, "entry 2 of 2"),
        ({"failures": [{"entry": 0, "count": 1, "reason": ""}] * 2}, "entry 0 of 2"),
        (
            {"rewards": {"names": ["a"], "counts": i4(1), "indexes": b"", "values": b""}},
            "counts has 4 bytes",
        ),
        (
            {"rewards": {"names": ["a"], "counts": i4(1, 0), "indexes": b"", "values": b""}},
            "rewards: counts, indexes and values disagree",
        ),
        (
            {"rewards": {"names": [], "counts": i4(1, 0), "indexes": i4(0), "values": b"8" * 8}},
            "the 0 names",
        ),
        (
            {"rewards": {"names": ["a"], "counts": i4(1, -1), "indexes": b"", "values": b""}},
            "rewards: counts, indexes and values disagree",
        ),
    ],
    ids=str,
)
def test_extras_that_disagree_are_inconsistent(change: dict[str, Any], told: str) -> None:
    with pytest.raises(UnreadableEvent, match=told) as raised:
        decode_record(extras_changed(TWO, **change))
    assert raised.value.reason == "inconsistent"


def test_components_that_are_all_empty_are_those_of_no_entry() -> None:
    """Empty bytes stand for a count of 0 an entry, as in every column."""
    nothing = {"names": [], "counts": b"", "indexes": b"", "values": b""}
    record = decode_record(extras_changed(TWO, rewards=nothing))
    assert list(record.components()) == [{}, {}]
    assert gather([record] * 2, [0, 1]).rewards is None
    assert record.part([0, 1]) == TWO


@pytest.mark.parametrize("number", [2**31, 2**62])
def test_an_entry_is_gathered_beside_one_whose_number_no_column_holds(number: int) -> None:
    sound, broken = make_entry(rollout_uid="a"), make_entry(rollout_uid="b", group_size=7)
    wire = wire_of(encode_record([sound, broken]))
    wire["shared"][1]["group_size"] = number
    record = decode_record(written(wire))
    assert record.broken.keys() == {1}
    assert gather([record], [0]).scalars["rollout_uid"] == ["a"]


def test_huge_counts_take_no_memory() -> None:
    """A block of 2^62 items, and texts and arrays of 2^31 bytes."""
    huge = b"\xfe" + b"\xff" * 7 + b"\x7f"
    plain = wire_of(encode_record(members(1)))
    values = [
        SCHEMA.prefix + b"\0\0\x02\x02\0" + huge + b"\0" * 40,
        SCHEMA.prefix + huge + b"a" * 40,
        *(written({**plain, name: i4(2**31 - 1)}) for name in ("example_id", "token_count")),
        written({**plain, "count": 2**31 - 1}),
    ]
    decode_record(written(plain))
    tracemalloc.start()
    try:
        for value in values:
            with pytest.raises(UnreadableEvent):
                decode_record(value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_names_of_a_dtype_are_read_as_the_one_on_the_wire() -> None:
    for dtype in ("uint8", "u1", "|u1"):
        record = decode_record(extras_changed(TWO, token_arrays=[{**EXPERTS, "dtype": dtype}]))
        assert record.token_arrays["experts"].signature == ArraySignature("|u1", (2,))


def test_columns_of_a_record_with_dispatches_are_those_of_its_segments() -> None:
    record = make_record([make_dispatched(), *members(2)])
    columns = gather([record] * 2, [1, 2])
    assert columns.scalars["rollout_uid"] == make_columns(members(2)).scalars["rollout_uid"]
