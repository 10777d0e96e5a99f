"""Records of columns are read as fastavro reads them."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import events, example
from rollstream.schemas import codec
from rollstream.schemas.column_reader import has_columns, reader_of
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Flushed
from rollstream.schemas.wire_schemas import read_avro, shipped

_SCHEMA = shipped().newest("flushed")
_READ = reader_of(_SCHEMA.parsed)
_TEXTS = {"type": "array", "items": "string"}
# Equally long and not, in ASCII and not, with lengths that take one byte and two.
_COLUMNS = st.one_of(
    st.lists(st.text("ab", min_size=3, max_size=3)),
    st.lists(st.text("ab", min_size=70, max_size=70), max_size=4),
    st.lists(st.sampled_from(["é", "ß", "ab", ""])),
    st.lists(st.just("")),
)


def test_records_with_columns_are_told_from_others() -> None:
    newest = {schema.name: schema for schema in shipped().schemas}
    found = {name for name, schema in newest.items() if has_columns(schema.parsed)}
    assert found == {"flushed"}


@given(events(Flushed), _COLUMNS)
def test_a_record_is_what_fastavro_reads(event: Flushed, uids: list[str]) -> None:
    segments = replace(event.segments, uids=tuple(uids))
    value = codec.encode(replace(event, segments=segments))
    assert _both(value)[0] == _both(value)[1]


@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=3))
def test_bytes_that_both_read_are_read_alike(flips: list[tuple[float, int]]) -> None:
    changed = bytearray(codec.encode(example(Flushed)))
    for place, byte in flips:
        changed[int(place * len(changed))] = byte
    found = _both(_SCHEMA.prefix + bytes(changed[len(_SCHEMA.prefix) :]))
    assert None in found or found[0] == found[1]


@given(_COLUMNS, _COLUMNS)
def test_blocks_of_an_array_are_joined(first: list[str], second: list[str]) -> None:
    value = _block(first, named=True) + _block(second, named=False) + b"\0"
    assert reader_of(_TEXTS)(value, 0) == (first + second, len(value))


def _block(texts: list[str], *, named: bool) -> bytes:
    """A block of an array, of which the size in bytes may be named."""
    if not texts:
        return b""
    plain = _encoded(_TEXTS, texts)[:-1]
    if not named:
        return plain
    count = _encoded("long", len(texts))
    items = plain[len(count) :]
    return _encoded("long", -len(texts)) + _encoded("long", len(items)) + items


def _encoded(avro_type: Any, value: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, avro_type, value)
    return stream.getvalue()


@pytest.mark.parametrize("value", [b"\x04\x02a", b"\x02\x01", b"\xff" * 20, b"\x02\x80", b""])
def test_an_array_that_ends_early_is_refused(value: bytes) -> None:
    with pytest.raises((EOFError, IndexError, ValueError)):
        reader_of(_TEXTS)(value, 0)


def test_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="double"):
        reader_of({"type": "array", "items": "double"})


def _both(value: bytes) -> list[Any]:
    """What this reader and fastavro make of it; None: it is unreadable."""
    found: list[Any] = [None, None]
    for at, read in enumerate((_READ, None)):
        with contextlib.suppress(UnreadableEvent):
            found[at] = read_avro(_SCHEMA, _SCHEMA.parsed, value, None, read)
    return found
