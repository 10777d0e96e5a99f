"""The producers of a report are a collection of rows, stored as columns."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import events, example, same
from rollstream.schemas.codec import EventCodec, decode, encode
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import PartitionReport, ProducerColumns, ProducerInFlight
from rollstream.schemas.wire_schemas import SchemaRegistry, shipped

PRODUCERS = st.lists(
    events(ProducerInFlight), max_size=5, unique_by=lambda producer: producer.producer_id
)
ONE = ProducerInFlight("a", begun=3, open=2, waiting=1, last_ts=2**40)


@given(PRODUCERS)
def test_columns_are_the_producers_that_they_were_made_of(
    producers: list[ProducerInFlight],
) -> None:
    columns = ProducerColumns.of(producers)
    assert [*columns] == producers
    assert len(columns) == len(producers)


def test_the_last_of_what_rows_say_of_one_producer_holds() -> None:
    assert [*ProducerColumns.of([ONE, ONE._replace(open=5)])] == [ONE._replace(open=5)]


@pytest.mark.proves("F19")
@given(events(PartitionReport))
def test_a_report_with_rows_is_read_as_one_with_columns(report: PartitionReport) -> None:
    rows = shipped().versions("partition_report")[0]
    files = {"partition_report.v1.avsc": json.dumps(rows.source)}
    older = EventCodec(SchemaRegistry(files), [PartitionReport])
    assert same(decode(older.encode(report)), report)


def test_columns_that_are_no_producers_cannot_be_read() -> None:
    columns = ProducerColumns.of([ONE, ONE._replace(producer_id="b")])
    with pytest.raises(UnreadableEvent, match=r"lengths \[1, 2\]"):
        replace(columns, open=columns.open[:1])
    with pytest.raises(UnreadableEvent, match="producer twice"):
        replace(columns, producer_ids=("a", "a"))


def test_bytes_whose_columns_are_no_producers_are_no_event() -> None:
    columns = ProducerColumns.of([ONE, ONE._replace(producer_id="b")])
    value = encode(replace(example(PartitionReport), producers=columns))
    assert value.count(b"\x02a\x02b") == 1
    with pytest.raises(UnreadableEvent, match="producer twice"):
        decode(value.replace(b"\x02a\x02b", b"\x02a\x02a"))
