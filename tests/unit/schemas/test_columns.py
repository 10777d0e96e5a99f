"""Columns gathered from records, and the users' records as views of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import ROLLOUT
from harness.rollouts import (
    WORKER,
    make_columns,
    make_dispatched,
    make_entry,
    make_record,
    members,
)
from harness.strategies import records, segments
from rollstream.schemas.columns import ArraySignature, Columns
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.fields import array_fields, scalar_fields
from rollstream.schemas.ingest.entry import Entry
from rollstream.schemas.ingest.gather import gather
from rollstream.schemas.records import RolloutGroup, RolloutMetadata, records_from


def value_of(columns: Columns, name: str, row: int) -> Any:
    value: Any = columns.scalars[name][row]
    if isinstance(value, np.generic):
        value = value.item()
    return None if value != value else value  # noqa: PLR0124 - NaN: none.


@given(records(segments()))
def test_each_row_is_its_segment(entries: list[Entry]) -> None:
    columns = make_columns(entries, environment="math")
    assert columns.rows == len(entries)
    of_record = {"environment": "math", "worker_id": WORKER}
    for row, entry in enumerate(entries):
        fields = {**of_record, **entry.fields}
        for field in scalar_fields():
            assert value_of(columns, field.name, row) == fields.get(field.name, field.default)
        for name in array_fields():
            found = columns.arrays[name].row(row) if name in columns.arrays else None
            assert (None if found is None else found.tobytes()) == fields.get(name), name
        named = {name: ragged.row(row) for name, ragged in columns.token_arrays.items()}
        assert {
            name: (array.dtype.str, array.shape[1:], array.tobytes())
            for name, array in named.items()
            if array is not None
        } == fields.get("token_arrays", {})
        rewards = {} if columns.rewards is None else columns.rewards.row(row)
        assert rewards == fields.get("rewards", {})
        attachments = {} if columns.attachments is None else columns.attachments[row]
        assert attachments == fields.get("attachments", {})


@given(st.lists(segments(), min_size=1, max_size=6), st.data())
def test_rows_of_several_records_are_those_of_one(
    entries: list[Entry], data: st.DataObject
) -> None:
    records = []
    indexes: list[int] = []
    first = 0
    while first < len(entries):
        stop = data.draw(st.integers(first + 1, len(entries)))
        before, behind = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
        around = [*[make_dispatched()] * before, *entries[first:stop], *[make_entry()] * behind]
        record = make_record(around)
        records += [record] * (stop - first)
        indexes += range(before, before + stop - first)
        first = stop
    assert described(gather(records, indexes)) == described(make_columns(entries))


def described(columns: Columns) -> Any:
    """Bit for bit, with dtypes and which arrays there are."""
    arrays = {**columns.arrays, **{f"/{k}": v for k, v in columns.token_arrays.items()}}
    return (
        columns.rows,
        {
            name: (values.dtype.str, values.tobytes()) if isinstance(values, np.ndarray) else values
            for name, values in columns.scalars.items()
        },
        {
            name: (
                ragged.signature,
                ragged.values.tobytes(),
                ragged.offsets.tolist(),
                None if ragged.present is None else ragged.present.tolist(),
            )
            for name, ragged in arrays.items()
        },
        None
        if columns.rewards is None
        else [columns.rewards.row(row) for row in range(columns.rows)],
        columns.attachments,
    )


def test_arrays_that_no_row_has_are_left_out() -> None:
    assert set(make_columns(members(3)).arrays) == {"prompt_tokens", "output_tokens", "logprobs"}


def test_what_only_the_neighbours_in_a_record_have_is_left_out() -> None:
    record = make_record([make_entry(**ROLLOUT), make_entry(logprobs=None)])
    columns = gather([record], [1])
    assert set(columns.arrays) == {"prompt_tokens", "output_tokens"}
    assert (columns.token_arrays, columns.rewards, columns.attachments) == ({}, None, None)


def test_an_absent_row_is_none_and_an_empty_one_is_empty() -> None:
    columns = make_columns([make_entry(logprobs=None), make_entry(output_tokens=[], logprobs=[])])
    assert columns.arrays["logprobs"].row(0) is None
    empty = columns.arrays["logprobs"].row(1)
    assert empty is not None
    assert empty.size == 0


def test_signatures_name_dtype_and_trailing_shape_of_named_arrays() -> None:
    arrays = {"experts": np.zeros((3, 2, 2), np.uint8), "entropy": np.zeros(3, np.float32)}
    record = make_record([make_entry(), make_entry(token_arrays=arrays)])
    assert record.signatures(0) == {}
    assert record.signatures(1) == {
        "experts": ArraySignature("|u1", (2, 2)),
        "entropy": ArraySignature("<f4", ()),
    }


@pytest.mark.proves("A1", "F15")
def test_a_record_shows_everything_that_was_published() -> None:
    (record,) = records_from(make_columns([make_entry(**ROLLOUT)]))
    assert record.example_id == "ex-1"
    assert record.segment_idx == 1
    assert record.continuation_of == "uid-0"
    assert record.stop_reason == "length"
    assert record.output_tokens.tolist() == [21, 22, 23]
    assert record.loss_mask is not None
    assert record.loss_mask.tolist() == [True, False, True]
    assert record.rewards == {"format": 0.5}
    assert record.metadata == {"temperature": 0.8}
    assert record.old_logprobs == -1.5
    assert record.weight_steps is not None
    assert record.weight_steps.tolist() == [120, 120, 121]
    assert record.token_arrays["routed_experts"].shape == (3, 2, 2)
    assert record.token_arrays["routed_experts"].dtype == np.uint8
    assert record.attachments == {"image": b"\x89PNG"}
    assert record.messages == ({"role": "user", "content": "2+2?"},)


def test_a_record_copies_no_array() -> None:
    columns = make_columns(members(2))
    for record in records_from(columns):
        assert np.shares_memory(record.output_tokens, columns.arrays["output_tokens"].values)


@pytest.mark.proves("E1")
def test_a_record_says_who_made_it_when_and_with_which_weights() -> None:
    entry = make_entry(created_ts=1_500_000, weight_step=7)
    (record,) = records_from(make_columns([entry], worker_id="w"))
    assert record.rollout_metadata == RolloutMetadata("w", 1.5, 7)


@pytest.mark.proves("A2")
def test_a_group_sums_up_its_members() -> None:
    rows = [
        make_entry(rollout_uid="b", replica_id="r2", policy_version="step-1"),
        make_entry(rollout_uid="a", replica_id="r1", policy_version="step-2"),
    ]
    group = RolloutGroup.of("id", records_from(make_columns(rows)), sealed_ts=5)
    assert group.policy_version == "mixed"
    assert group.metadata == {
        "count": 2,
        "uids": ["a", "b"],
        "replicas": ["r1", "r2"],
        "segment": 0,
    }


def test_metadata_that_is_no_json_is_told() -> None:
    columns = make_columns([make_entry(metadata="{")])
    with pytest.raises(UnreadableEvent, match="metadata of uid-0"):
        records_from(columns)
