"""The digest covers every field and every border, and nothing of how the rows were put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import ROLLOUT
from harness.rollouts import make_segment, members, token_array
from harness.strategies import segments
from rollstream.schemas.codec import Segment
from rollstream.schemas.columns import Columns
from rollstream.schemas.digest import checksum, combined, row_digests


def digest_of(*rows: Segment) -> bytes:
    (digest,) = row_digests(Columns.from_segments(rows), [0])
    return digest


@given(st.lists(segments(), min_size=2, max_size=6), st.data())
def test_rows_have_the_digest_that_they_have_alone(
    rows: list[Segment], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(rows) - 1))
    together = row_digests(Columns.from_segments(rows), [0, cut])
    assert together == [digest_of(*rows[:cut]), digest_of(*rows[cut:])]


CHANGES: list[dict[str, Any]] = [
    {"environment": "code"},
    {"example_id": "ex-2"},
    {"group_uid": "group-2"},
    {"group_size": 9},
    {"rollout_uid": "uid-9"},
    {"segment_idx": 2},
    {"is_last_segment": False},
    {"continuation_of": "uid-9"},
    {"prefix_hash": "1" * 32},
    {"lineage": "other"},
    {"policy_version": "step-9"},
    {"policy_epoch": 3},
    {"weight_step": 119},
    {"replica_id": "replica-9"},
    {"worker_id": "worker-9"},
    {"created_ts": 1},
    {"reward": 0.5},
    {"reward": None},
    {"split": "eval"},
    {"stop_reason": "stop"},
    {"prompt_tokens": [11, 13]},
    {"output_tokens": [21, 22, 24]},
    {"logprobs": [-0.5, -0.5, -0.25]},
    {"logprobs": None},
    {"loss_mask": [True, True, True]},
    {"loss_mask": None},
    {"rewards": {"format": 0.25}},
    {"rewards": {}},
    {"metadata": "{}"},
    {"actor_logprobs": None},
    {"actor_logprob_sum": None},
    {"actor_policy_version": ""},
    {"ref_logprobs": [-1.0, -2.0, -3.5]},
    {"token_rewards": None},
    {"weight_steps": [120, 121, 121]},
    {"token_arrays": []},
    {"token_arrays": [token_array("routed_experts", np.ones((3, 2, 2), np.uint8))]},
    {"attachments": [{"name": "image", "data": b"\x89PNH"}]},
    {"messages": ""},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(next(iter(change.items())))[:40])
def test_a_change_of_any_field_changes_the_digest(change: dict[str, Any]) -> None:
    assert digest_of(make_segment(**{**ROLLOUT, **change})) != digest_of(make_segment(**ROLLOUT))


def test_every_field_is_among_the_changes() -> None:
    header, body = make_segment(**ROLLOUT)
    fields = {*header._fields, *body, *body["extras"]} - {"extras", "prompt_count", "token_count"}
    assert {name for change in CHANGES for name in change} == fields


def test_texts_do_not_run_into_each_other() -> None:
    one = digest_of(make_segment(example_id="a\x1f"), make_segment(example_id="b"))
    other = digest_of(make_segment(example_id="a"), make_segment(example_id="\x1fb"))
    assert one != other


def test_tokens_do_not_run_from_row_to_row() -> None:
    one = digest_of(make_segment(prompt_tokens=[1, 2]), make_segment(prompt_tokens=[3]))
    other = digest_of(make_segment(prompt_tokens=[1]), make_segment(prompt_tokens=[2, 3]))
    assert one != other


def test_order_counts() -> None:
    one, two = members(2)
    assert digest_of(one, two) != digest_of(two, one)
    assert combined([b"1" * 16, b"2" * 16]) != combined([b"2" * 16, b"1" * 16])


def test_checksum_is_xxh3_128_in_hexadecimal() -> None:
    # The hash of nothing, as the xxHash project publishes it.
    assert checksum(b"") == "99aa06d3014798d86001c324468d497f"
