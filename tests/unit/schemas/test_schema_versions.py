"""Events of several versions of one schema: each reader has them as its newest one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import events as any_event
from harness.events import example, same
from harness.versions import (
    REGION,
    RETIRED,
    changed,
    flushed_with,
    registry,
    shipped_source,
)
from rollstream.schemas.codec import EventCodec
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Flushed

V1 = changed(shipped_source("flushed"), add=[RETIRED])
V2 = changed(shipped_source("flushed"), add=[REGION])
OlderFlushed = flushed_with(retired="")
NewerFlushed = flushed_with(region="nowhere")
OLDER = EventCodec(registry(flushed_v1=V1), [OlderFlushed])
NEWER = EventCodec(registry(flushed_v1=V1, flushed_v2=V2), [NewerFlushed])


def as_kind(kind: type[Flushed], event: Flushed, **fields: Any) -> Flushed:
    """The event as one of another version."""
    own = {field.name: getattr(event, field.name) for field in dataclasses.fields(Flushed)}
    return kind(**own, **fields)


@pytest.mark.proves("F19")
@given(any_event(Flushed), st.text(max_size=4))
def test_an_older_event_is_read_with_defaults_and_without_what_was_removed(
    event: Flushed, retired: str
) -> None:
    value = OLDER.encode(as_kind(OlderFlushed, event, retired=retired))
    assert same(NEWER.decode(value), as_kind(NewerFlushed, event, region="nowhere"))


@given(any_event(Flushed), st.text(max_size=4))
def test_versions_stand_in_one_log(event: Flushed, region: str) -> None:
    newer = as_kind(NewerFlushed, event, region=region)
    log = [OLDER.encode(as_kind(OlderFlushed, event)), NEWER.encode(newer)]
    assert same(NEWER.decode(log[1]), newer)
    assert same(NEWER.decode(log[0]), as_kind(NewerFlushed, event))


@pytest.mark.proves("F19")
def test_a_newer_event_is_of_an_unknown_schema() -> None:
    value = NEWER.encode(as_kind(NewerFlushed, example(Flushed)))
    with pytest.raises(UnreadableEvent) as raised:
        OLDER.decode(value)
    assert raised.value.reason == "unknown_schema"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Of ``Sounded``."""

    depths: Any
    raw: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sounded:
    """An event with every kind of default."""

    name: str
    depths: Any
    raw: bytes
    marks: Marks
    many: tuple[str, ...]
    step: int | None


PACKED = {"type": "bytes", "logicalType": "packed-array", "dtype": "<i4", "shape": []}
SOUNDED_V1 = {"type": "record", "name": "Sounded", "fields": [{"name": "name", "type": "string"}]}
SOUNDED_V2 = changed(
    SOUNDED_V1,
    add=[
        {"name": "depths", "type": PACKED, "default": ""},
        {"name": "raw", "type": "bytes", "default": "\u00ff\u0000"},
        {
            "name": "marks",
            "type": {
                "type": "record",
                "name": "Marks",
                "fields": [{"name": "depths", "type": PACKED}, {"name": "raw", "type": "bytes"}],
            },
            "default": {"depths": "\u0001\u0000\u0000\u0000", "raw": "\u00fe"},
        },
        {"name": "many", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "step", "type": ["null", "long"], "default": None},
    ],
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    name: str


def test_defaults_of_every_type_are_what_the_schema_says_each_time() -> None:
    named = type("Sounded", (_Named,), {})
    value = EventCodec(registry(sounded_v1=SOUNDED_V1), [named]).encode(named(name="a"))
    codec = EventCodec(registry(sounded_v1=SOUNDED_V1, sounded_v2=SOUNDED_V2), [Sounded])
    for _ in range(2):  # The first one read must not change the defaults of the next.
        found = codec.decode(value)
        assert (found.name, found.raw, found.many, found.step) == ("a", b"\xff\0", (), None)
        assert (found.depths.dtype, found.depths.size) == (np.dtype("<i4"), 0)
        assert (found.marks.depths.tolist(), found.marks.raw) == ([1], b"\xfe")
