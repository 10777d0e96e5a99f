"""The digest covers every field and every border, and nothing of how the rows were put together."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.columns import columns
from harness.digest_reference import reference_digest
from harness.events import ROLLOUT
from harness.rollouts import make_columns, make_entry, make_record, members
from harness.strategies import segments
from rollstream.schemas.columns import Columns, Components, Ragged
from rollstream.schemas.digest import checksum, combined, row_digests
from rollstream.schemas.fields import row_fields
from rollstream.schemas.ingest.entry import Entry
from rollstream.schemas.ingest.gather import gather


def digest_of(*rows: Entry, **of_record: Any) -> bytes:
    (digest,) = row_digests(make_columns(rows, **of_record), [0])
    return digest


@given(st.lists(segments(), min_size=2, max_size=6), st.data())
def test_rows_have_the_digest_that_they_have_alone(rows: list[Entry], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(rows) - 1))
    together = row_digests(make_columns(rows), [0, cut])
    assert together == [digest_of(*rows[:cut]), digest_of(*rows[cut:])]


drawn = st.one_of(columns(), st.lists(segments(), min_size=1, max_size=6).map(make_columns))


@given(drawn, st.data())
def test_digests_are_what_their_format_says(rows: Columns, data: st.DataObject) -> None:
    cuts = data.draw(st.sets(st.integers(0, rows.rows - 1)))
    starts = sorted({0, *cuts})
    bounds = zip(starts, [*starts[1:], rows.rows], strict=True)
    assert row_digests(rows, starts) == [reference_digest(rows, *bound) for bound in bounds]


@given(st.lists(segments(), min_size=1, max_size=6))
def test_rows_have_one_digest_however_many_records_they_came_in(rows: list[Entry]) -> None:
    columns = gather([make_record([row]) for row in rows], [0] * len(rows))
    assert row_digests(columns, [0]) == [digest_of(*rows)]


def test_a_field_that_no_row_has_is_not_in_the_digest() -> None:
    columns = make_columns(members(2))
    absent = Ragged(np.empty(0, np.bool_), np.zeros(3, np.int64), np.zeros(2, np.bool_))
    nothing = Components((), np.zeros(3, np.int64), np.empty(0, np.int32), np.empty(0))
    empty = dataclasses.replace(
        columns,
        arrays={**columns.arrays, "loss_mask": absent},
        token_arrays={"experts": absent},
        rewards=nothing,
        attachments=[{}, {}],
    )
    assert row_digests(empty, [0]) == row_digests(columns, [0])


def test_digest_of_rows_never_changes_between_releases() -> None:
    """Manifests hold digests; a field that is added must not change those of rows without it."""
    (plain,) = row_digests(make_columns(members(2)), [0])
    (everything,) = row_digests(make_columns([make_entry(**ROLLOUT)]), [0])
    assert plain.hex() == "8c2b23e92f4aa7919f3026b1b5c44fb5"
    assert everything.hex() == "2ead5dcf5309821ac119a862dd43a2a7"


CHANGES: list[dict[str, Any]] = [
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
    {"logprob_sum": -1.5},
    {"old_logprobs": None},
    {"old_logprob_sum": None},
    {"old_policy_version": ""},
    {"ref_logprobs": [-1.0, -2.0, -3.5]},
    {"token_rewards": None},
    {"weight_steps": [120, 121, 121]},
    {"token_arrays": {}},
    {"token_arrays": {"routed_experts": np.ones((3, 2, 2), np.uint8)}},
    {"token_arrays": {"routed_experts": np.arange(12, dtype=np.uint8).reshape(3, 4)}},
    {"token_arrays": {"routed_experts": np.arange(12, dtype=np.int8).reshape(3, 2, 2)}},
    {"token_arrays": {"routed": np.arange(12, dtype=np.uint8).reshape(3, 2, 2)}},
    {"attachments": {"image": b"\x89PNH"}},
    {"attachments": {}},
    {"messages": ""},
    {"trajectory_uid": "t-1"},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(next(iter(change.items())))[:40])
def test_a_change_of_any_field_changes_the_digest(change: dict[str, Any]) -> None:
    assert digest_of(make_entry(**{**ROLLOUT, **change})) != digest_of(make_entry(**ROLLOUT))


@pytest.mark.parametrize("change", [{"environment": "code"}, {"worker_id": "worker-9"}])
def test_a_change_of_what_a_record_has_once_changes_the_digest(change: dict[str, str]) -> None:
    assert digest_of(make_entry(), **change) != digest_of(make_entry())


def test_every_field_is_among_the_changes() -> None:
    counts = {"prompt_count", "token_count"}  # Of tokens, which are among them.
    of_record = {"environment", "worker_id"}
    changed = {name for change in CHANGES for name in change}
    assert changed == set(row_fields()) - counts - of_record


def test_texts_do_not_run_into_each_other() -> None:
    one = digest_of(make_entry(example_id="a\x1f"), make_entry(example_id="b"))
    other = digest_of(make_entry(example_id="a"), make_entry(example_id="\x1fb"))
    assert one != other


def test_tokens_do_not_run_from_row_to_row() -> None:
    one = digest_of(make_entry(prompt_tokens=[1, 2]), make_entry(prompt_tokens=[3]))
    other = digest_of(make_entry(prompt_tokens=[1]), make_entry(prompt_tokens=[2, 3]))
    assert one != other


def test_order_counts() -> None:
    one, two = members(2)
    assert digest_of(one, two) != digest_of(two, one)
    assert combined([b"1" * 16, b"2" * 16]) != combined([b"2" * 16, b"1" * 16])


def test_checksum_is_xxh3_128_in_hexadecimal() -> None:
    # The hash of nothing, as the xxHash project publishes it.
    assert checksum(b"") == "99aa06d3014798d86001c324468d497f"
