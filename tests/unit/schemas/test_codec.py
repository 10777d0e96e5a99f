"""Events to bytes and back; what is no event of ours is ``UnreadableEvent``, nothing else."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import KINDS, events, example, same
from harness.rollouts import encode_segment
from rollstream.schemas import wire_schemas
from rollstream.schemas.codec import decode, decode_as, encode
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Adopted, Claimed


@given(st.one_of([events(kind) for kind in KINDS]))
def test_any_event_comes_back_as_it_was(event: Any) -> None:
    assert same(decode(encode(event)), event)


@given(st.sampled_from([example(kind) for kind in KINDS]), st.data())
def test_an_event_that_ends_early_or_late_is_torn(event: Any, data: st.DataObject) -> None:
    value = encode(event)
    cut = data.draw(st.integers(wire_schemas.PREFIX_BYTES, len(value) - 1))
    for torn in (value[:cut], value + b"\0"):
        with pytest.raises(UnreadableEvent) as told:
            decode(torn)
        assert told.value.reason == "torn"


@given(
    st.sampled_from([schema.prefix for schema in wire_schemas.shipped().schemas]),
    st.binary(max_size=80),
)
def test_garbage_behind_a_known_prefix_is_an_event_or_unreadable(
    prefix: bytes, junk: bytes
) -> None:
    _decode_or_unreadable(prefix + junk)


@given(
    st.sampled_from([*map(encode, map(example, KINDS))]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
)
def test_flipped_bytes_are_an_event_or_unreadable(
    value: bytes, flips: list[tuple[float, int]]
) -> None:
    changed = bytearray(value)
    for place, byte in flips:
        changed[int(place * len(changed))] = byte
    _decode_or_unreadable(bytes(changed))


def _decode_or_unreadable(value: bytes) -> None:
    # Anything else that is raised fails the test.
    with contextlib.suppress(UnreadableEvent):
        decode(value)


@pytest.mark.parametrize("value", [b"", b"\xc3", b"hello, this is no event", b"{}"])
def test_bytes_without_the_marker_are_not_an_event(value: bytes) -> None:
    with pytest.raises(UnreadableEvent) as told:
        decode(value)
    assert told.value.reason == "not_an_event"


def test_an_unknown_fingerprint_is_named() -> None:
    with pytest.raises(UnreadableEvent, match="0102030405060708") as told:
        decode(wire_schemas.MARKER + bytes(range(1, 9)) + b"payload")
    assert told.value.reason == "unknown_schema"


def test_decode_as_says_what_stands_in_the_wrong_place() -> None:
    assert decode_as(Claimed, encode(Claimed(owner="a", nonce="n"))).owner == "a"
    with pytest.raises(UnreadableEvent, match="Adopted where Claimed is due"):
        decode_as(Claimed, encode(example(Adopted)))


def test_a_record_of_an_ingest_log_is_no_event() -> None:
    with pytest.raises(UnreadableEvent) as told:
        decode(encode_segment())
    assert told.value.reason == "not_an_event"


def test_a_record_without_bytes_is_said_to_be_empty() -> None:
    with pytest.raises(UnreadableEvent, match=r"^not_an_event: empty record$"):
        decode(b"")
