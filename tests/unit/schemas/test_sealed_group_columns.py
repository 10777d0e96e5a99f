"""The groups of a flush are a sequence of groups, stored as columns."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import events, example, same
from rollstream.schemas.codec import EventCodec, decode, encode
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Flushed, SealedGroup, SealedGroupColumns
from rollstream.schemas.wire_schemas import SchemaRegistry, shipped

GROUPS = st.lists(events(SealedGroup), max_size=5)
ONE = example(SealedGroup)


@given(GROUPS)
def test_columns_are_the_groups_that_they_were_made_of(groups: list[SealedGroup]) -> None:
    columns = SealedGroupColumns.of(groups)
    assert [*columns] == groups
    assert [columns[index] for index in range(len(columns))] == groups
    assert columns[1:3] == tuple(groups[1:3])
    for name in SealedGroup._fields:
        assert [*columns.column(name)] == [getattr(group, name) for group in groups]


@given(st.lists(events(SealedGroup), min_size=1, max_size=3))
def test_a_group_has_values_of_python(groups: list[SealedGroup]) -> None:
    """So that what is made of it is the same JSON and the same bytes of a snapshot."""
    columns = SealedGroupColumns.of(groups)
    for group in (columns[0], next(iter(columns))):
        assert [type(value) for value in group] == [type(value) for value in groups[0]]


def test_no_group_is_past_the_last_one() -> None:
    columns = SealedGroupColumns.of([ONE])
    assert columns[-1] == ONE
    with pytest.raises(IndexError):
        columns[1]


@pytest.mark.proves("F19")
@given(events(Flushed))
def test_an_event_with_rows_is_read_as_one_with_columns(event: Flushed) -> None:
    rows = next(schema for schema in shipped().versions("flushed") if schema.version == 2)
    older = EventCodec(SchemaRegistry({"flushed.v2.avsc": json.dumps(rows.source)}), [Flushed])
    assert same(decode(older.encode(event)), event)


def test_columns_that_are_no_groups_cannot_be_read() -> None:
    columns = SealedGroupColumns.of([ONE, ONE])
    with pytest.raises(UnreadableEvent, match="1 rows of 2 groups"):
        replace(columns, rows=columns.rows[:1])
    with pytest.raises(UnreadableEvent, match="split_idxs up to 1 of 1 splits"):
        replace(columns, split_idxs=np.array([0, 1], np.int32))
    with pytest.raises(UnreadableEvent, match="lineage_idxs"):
        replace(columns, lineage_idxs=np.array([0, -1], np.int32))


def test_bytes_whose_columns_are_no_groups_are_no_event() -> None:
    event = replace(example(Flushed), groups=SealedGroupColumns.of([ONE]))
    value = encode(event)
    uids = b"\x02" + bytes([2 * len(b"group_uid-\xc3\xa9")]) + "group_uid-é".encode() + b"\x00"
    assert value.count(uids) == 1
    with pytest.raises(UnreadableEvent, match="0 group_uids of 1 groups"):
        decode(value.replace(uids, b"\x00"))
