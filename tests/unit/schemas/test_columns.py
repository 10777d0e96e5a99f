"""Segments as ragged columns, and records as views of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import golden_rollout
from harness.rollouts import make_segment, members
from harness.strategies import segments
from rollstream.schemas.codec import Segment
from rollstream.schemas.columns import Columns, array_fields, rare_fields, scalar_fields
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.records import RolloutGroup, RolloutMetadata, records_from


@given(st.lists(segments(), max_size=5))
def test_each_row_is_its_segment(rows: list[Segment]) -> None:
    columns = Columns.from_segments(rows)
    assert columns.rows == len(rows)
    for index, segment in enumerate(rows):
        extras = segment.body["extras"] or {}
        for name in array_fields():
            packed = extras.get(name) if name in rare_fields() else segment.body[name]
            row = columns.arrays[name].row(index) if name in columns.arrays else None
            assert (None if row is None else row.tobytes()) == packed, name
        given = {**segment.header._asdict(), **segment.body}
        for name in set(scalar_fields()) - rare_fields():
            assert columns.scalars[name][index] == given[name]


def test_arrays_that_no_row_has_are_left_out() -> None:
    columns = Columns.from_segments(members(3))
    assert set(columns.arrays) == {"prompt_tokens", "output_tokens", "logprobs"}


def test_an_absent_row_is_none_and_an_empty_one_is_empty() -> None:
    columns = Columns.from_segments(
        [make_segment(logprobs=None), make_segment(output_tokens=[], logprobs=[])]
    )
    assert columns.arrays["logprobs"].row(0) is None
    empty = columns.arrays["logprobs"].row(1)
    assert empty is not None
    assert empty.size == 0


@pytest.mark.proves("A1", "F15")
def test_a_record_shows_everything_that_was_published() -> None:
    (record,) = records_from(Columns.from_segments([golden_rollout()]))
    assert record.example_id == "ex-1"
    assert record.segment_idx == 1
    assert record.continuation_of == "uid-0"
    assert record.stop_reason == "length"
    assert record.output_tokens.tolist() == [21, 22, 23]
    assert record.loss_mask is not None
    assert record.loss_mask.tolist() == [True, False, True]
    assert record.rewards == {"format": 0.5}
    assert record.metadata == {"temperature": 0.8}
    assert record.actor_logprobs == -1.5
    assert record.weight_steps is not None
    assert record.weight_steps.tolist() == [120, 120, 121]
    assert record.token_arrays["routed_experts"].shape == (3, 2, 2)
    assert record.token_arrays["routed_experts"].dtype == np.uint8
    assert record.attachments == {"image": b"\x89PNG"}
    assert record.messages == ({"role": "user", "content": "2+2?"},)


def test_a_record_copies_no_array() -> None:
    columns = Columns.from_segments(members(2))
    for record in records_from(columns):
        assert np.shares_memory(record.output_tokens, columns.arrays["output_tokens"].values)


@pytest.mark.proves("E1")
def test_a_record_says_who_made_it_when_and_with_which_weights() -> None:
    (record,) = records_from(
        Columns.from_segments([make_segment(worker_id="w", created_ts=1_500_000, weight_step=7)])
    )
    assert record.rollout_metadata == RolloutMetadata("w", 1.5, 7)


@pytest.mark.proves("A2")
def test_a_group_sums_up_its_members() -> None:
    rows = [
        make_segment(rollout_uid="b", replica_id="r2", policy_version="step-1"),
        make_segment(rollout_uid="a", replica_id="r1", policy_version="step-2"),
    ]
    group = RolloutGroup.of("id", records_from(Columns.from_segments(rows)), sealed_ts=5)
    assert group.policy_version == "mixed"
    assert group.metadata == {
        "count": 2,
        "uids": ["a", "b"],
        "replicas": ["r1", "r2"],
        "segment": 0,
    }


def test_metadata_that_is_no_json_is_told() -> None:
    columns = Columns.from_segments([make_segment(metadata="{")])
    with pytest.raises(UnreadableEvent, match="metadata of uid-0"):
        records_from(columns)
