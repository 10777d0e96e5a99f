"""Batches out of columns: ragged, padded, shared among ranks, measured."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.batches import assembled, batch_of
from harness.groups import EVERY_COLUMN, GroupSpec, routed_experts
from rollstream.sampler.batch.assembled import ALIGNMENT
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.padded import PaddedLayout
from rollstream.sampler.batch.requested import (
    column_names,
)
from rollstream.sampler.errors import ArrayMissing, ArraysDiffer, InvalidRequest, RowsOutOfReach
from rollstream.sampler.rows.resolved import slots_of
from rollstream.schemas.errors import MissingExtra


def test_a_batch_is_ragged_prompt_first_and_groups_stand_together() -> None:
    batch = batch_of([GroupSpec(prompt=2, output=3), GroupSpec(prompt=1, output=4)])
    assert batch.offsets.tolist() == [0, 5, 10, 15, 20]
    assert batch.prompt_lengths.tolist() == [2, 2, 1, 1]
    assert batch.group_index.tolist() == [0, 0, 1, 1]
    for i in range(4):
        rollout = batch.tokens[batch.offsets[i] : batch.offsets[i + 1]]
        assert rollout.tolist() == list(range(rollout[0], rollout[0] + 5))
    assert batch.logprobs[:5].tolist() == [0, 0, -1 / 8, -2 / 8, -3 / 8]
    assert batch.loss_mask[:5].tolist() == [False, False, True, True, True]
    assert batch.rewards.tolist() == [0, 1, 0, 1]
    assert batch.reward_components["format"].tolist() == [0, 0.5, 0, 0.5]
    assert {name: (array.dtype.name, array.shape) for name, array in batch.arrays().items()} == {
        "tokens": ("int32", (20,)),
        "offsets": ("int64", (5,)),
        "prompt_lengths": ("int32", (4,)),
        "loss_mask": ("bool", (20,)),
        "logprobs": ("float32", (20,)),
        "rewards": ("float32", (4,)),
        "group_index": ("int32", (4,)),
        "trajectory_index": ("int32", (4,)),
        "trajectory_returns": ("float32", (4,)),
        "weight_steps": ("int64", (4,)),
        "policy_epochs": ("int32", (4,)),
        "off_branch": ("bool", (4,)),
        "reward_components/format": ("float32", (4,)),
    }


@pytest.mark.proves("F15")
def test_masks_stand_at_the_output_tokens_of_the_rows_that_have_them() -> None:
    masked = GroupSpec(rewards=(1.0,) * 3, extras=({}, {"loss_mask": (True, False, True)}, {}))
    batch = batch_of([masked, GroupSpec(loss_mask=(False, True, False))])
    assert batch.loss_mask.reshape(5, 5).astype(int).tolist() == [
        [0, 0, 1, 1, 1],
        [0, 0, 1, 0, 1],
        [0, 0, 1, 1, 1],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 1, 0],
    ]


@pytest.mark.proves("F20")
@pytest.mark.parametrize("members", [(1,), (0, 1)], ids=["one", "all"])
def test_logprobs_that_nobody_gave_are_nan_and_no_numbers(members: tuple[int, ...]) -> None:
    extras = [{"logprobs": None} if member in members else {} for member in (0, 1)]
    batch = batch_of([GroupSpec(extras=extras), GroupSpec()])
    given = [0, 0, -1 / 8, -2 / 8, -3 / 8]
    for row, found in enumerate(batch.logprobs.reshape(4, 5).tolist()):
        if row in members:
            assert found[:2] == [0, 0]
            assert np.isnan(found[2:]).all()
        else:
            assert found == given
    padded = batch.padded(6, pad_id=9)
    for row in members:
        assert np.isnan(padded.logprobs[row]).tolist() == [False, False, True, True, True, False]


@pytest.mark.proves("F15")
def test_token_arrays_are_there_when_asked_for_and_0_where_a_row_has_none() -> None:
    specs = [GroupSpec(extras=({}, routed_experts())), GroupSpec()]
    assert batch_of(specs).token_arrays == {}
    batch = batch_of(specs, columns=["routed_experts"])
    assert batch.columns == ("routed_experts",)
    experts = batch.token_arrays["routed_experts"]
    assert (experts.dtype, experts.shape) == (np.dtype("u1"), (20, 2))
    assert experts[5:10].tolist() == [[0, 0], [0, 0], [0, 1], [2, 3], [4, 5]]
    assert not experts[:5].any()
    assert not experts[10:].any()


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", "<c8"])
def test_token_arrays_of_floats_are_nan_where_a_row_has_none(dtype: str) -> None:
    values = np.arange(6, dtype=dtype).reshape(3, 2)
    specs = [GroupSpec(extras=({"token_arrays": {"values": values}},))]
    found = batch_of(specs, columns=["values"]).token_arrays["values"]
    assert (found.dtype, found.shape) == (np.dtype(dtype), (10, 2))
    assert np.array_equal(found[2:5], values)
    assert not found[[0, 1, 5, 6]].any()
    assert np.isnan(found[7:]).all()


def test_two_files_with_different_token_arrays_have_both_in_one_batch() -> None:
    weights = {"token_arrays": {"weights": np.array([1.5, 2.5, 3.5], "<f8")}}
    files = [GroupSpec(extras=(routed_experts(),) * 2)], [GroupSpec(extras=(weights,) * 2)]
    arrays = batch_of(*files, columns=["weights", "routed_experts"]).token_arrays
    assert list(arrays) == ["routed_experts", "weights"]
    assert arrays["routed_experts"][2:5].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert not arrays["routed_experts"][10:].any()
    assert np.isnan(arrays["weights"].reshape(4, 5)[:2, 2:]).all()
    assert arrays["weights"][10:15].tolist() == [0, 0, 1.5, 2.5, 3.5]


def test_token_arrays_that_do_not_fit_together_are_told_to_who_asks_for_them() -> None:
    files = [[GroupSpec(extras=(routed_experts(top_k=k),))] for k in (2, 8)]
    batch = batch_of(*files, columns=["routed_experts"])
    assert dict(batch.token_arrays) == {}
    with pytest.raises(
        ArraysDiffer, match=r"\(2,\)\] in groups 0; .*\(8,\)\] in groups 1; read it"
    ):
        batch.token_arrays["routed_experts"]


def test_a_column_that_nobody_has_is_told_with_those_that_there_are() -> None:
    specs = [GroupSpec(extras=(routed_experts(),))]
    for name in ("routed_expert", "tokens", "attachments"):
        arrays = batch_of(specs, columns=[name]).token_arrays
        assert (dict(arrays), arrays.get(name), name in arrays) == ({}, None, False)
        told = rf"^columns names '{name}'.*they have \['routed_experts'\]"
        with pytest.raises(ArrayMissing, match=told):
            arrays[name]
    with pytest.raises(ArrayMissing, match="'routed_experts' was not asked for; name it in col"):
        batch_of(specs).token_arrays["routed_experts"]


@pytest.mark.parametrize(
    "columns", ["metadata", b"metadata", None, 7, [b"metadata"], [1], [""]], ids=repr
)
def test_what_is_no_sequence_of_names_is_refused(columns: Any) -> None:
    with pytest.raises(InvalidRequest, match="columns is"):
        column_names(columns)
    assert column_names(["b", "a", "b"]) == ("b", "a")


@pytest.mark.parametrize("name", ["old_logprobs", "ref_logprobs", "token_rewards"])
def test_optional_floats_are_0_at_prompts_and_nan_where_a_row_has_none(name: str) -> None:
    specs = [GroupSpec(extras=({}, {name: [1.0, 2.0, 3.0]})), GroupSpec()]
    assert getattr(batch_of(specs), name) is None
    found = getattr(batch_of(specs, columns=[name]), name)
    assert found.dtype == np.float32
    assert found[5:10].tolist() == [0, 0, 1, 2, 3]
    rows = found.reshape(4, 5)[[0, 2, 3]]
    assert not rows[:, :2].any()
    assert np.isnan(rows[:, 2:]).all()
    of_none = getattr(batch_of([GroupSpec()], columns=[name]), name)
    assert np.isnan(of_none.reshape(2, 5)[:, 2:]).all(), "a batch in which no row has it"


def test_weight_steps_of_tokens_are_the_rows_where_it_has_no_others() -> None:
    specs = [GroupSpec(weight_steps=(7, 3), extras=({}, {"weight_steps": [3, 3, 4]}))]
    batch = batch_of(specs, columns=["token_weight_steps"])
    assert batch.token_weight_steps is not None
    assert batch.token_weight_steps.dtype == np.int64
    assert batch.token_weight_steps.tolist() == [-1, -1, 7, 7, 7, -1, -1, 3, 3, 4]
    assert batch.weight_steps.tolist() == [7, 3]


def test_metadata_is_what_the_producer_gave() -> None:
    specs = [GroupSpec(extras=({"metadata": '{"temperature": 0.8}'},))]
    assert batch_of(specs).metadata is None
    assert batch_of(specs, columns=["metadata"]).metadata == ({"temperature": 0.8}, {})


def test_reward_components_are_nan_where_a_row_has_none() -> None:
    specs = [GroupSpec(extras=({"rewards": {"length": 0.25}},)), GroupSpec()]
    found = batch_of(specs, [GroupSpec(extras=({"rewards": {}}, {"rewards": {}}))])
    assert list(found.reward_components) == ["format", "length"]
    for name, values in {"format": [np.nan, 0.5, 0, 0.5], "length": [0.25] + [np.nan] * 3}.items():
        expected = np.array([*values, np.nan, np.nan], np.float32)
        np.testing.assert_array_equal(found.reward_components[name], expected)


def test_a_batch_has_no_trace_of_what_its_memory_held_before() -> None:
    masked = GroupSpec(
        loss_mask=(True, False, True),
        extras=(routed_experts(), {"ref_logprobs": [1, 2, 3], "weight_steps": [1, 2, 3]}),
    )
    for specs in ([masked, GroupSpec()], [GroupSpec(prompt=7, output=1), masked]):
        size = len(assembled(specs, columns=EVERY_COLUMN).buffer) + ALIGNMENT
        made = []
        for held in (0x00, 0xA5, 0xFF):
            np.full(size, held, np.uint8)  # Freed at once: the batch is made there.
            made.append(batch_of(specs, columns=EVERY_COLUMN).arrays())
        assert len(made[0]) == 19
        for name, array in made[0].items():
            assert {array.tobytes()} == {other[name].tobytes() for other in made}, name


def test_a_batch_crosses_as_one_buffer_and_is_the_same_there() -> None:
    specs = [GroupSpec(prompt=129, output=1000, extras=(routed_experts(1000),))] * 8
    made = assembled(specs, columns=EVERY_COLUMN)
    buffers: list[pickle.PickleBuffer] = []
    header = pickle.dumps(made, protocol=5, buffer_callback=buffers.append)
    assert [len(buffer.raw()) for buffer in buffers] == [len(made.buffer)]
    assert len(header) < 4096
    frozen = bytes(buffers[0].raw())
    there = pickle.loads(header, buffers=[frozen]).batch(waited_s=0.5, read_group=None)
    here = made.batch(waited_s=0.5, read_group=None)
    start = np.frombuffer(frozen, np.uint8).__array_interface__["data"][0]
    for name, array in here.arrays().items():
        view = there.arrays()[name]
        assert array.flags.writeable
        assert not view.flags.writeable
        assert (view.dtype, view.shape) == (array.dtype, array.shape), name
        assert view.tobytes() == array.tobytes(), name
        at = view.__array_interface__["data"][0] - start
        assert 0 <= at <= len(frozen)
        assert at % ALIGNMENT == 0
        assert array.__array_interface__["data"][0] % ALIGNMENT == 0
    assert (there.uids, there.metadata, there.sampled) == (here.uids, here.metadata, here.sampled)


def pickled(batch: Batch) -> Batch:
    again: Batch = pickle.loads(pickle.dumps(batch))
    return again


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_of_a_batch_is_equal(copied: Callable[[Batch], Batch]) -> None:
    batch = batch_of([GroupSpec(extras=(routed_experts(),)), GroupSpec()], columns=EVERY_COLUMN)
    again = copied(batch)
    arrays = {name: array.tobytes() for name, array in batch.arrays().items()}
    assert {name: array.tobytes() for name, array in again.arrays().items()} == arrays
    assert (again.uids, again.columns, again.metadata) == (
        batch.uids,
        batch.columns,
        batch.metadata,
    )


def test_padded_sequences_begin_in_column_0_and_nothing_is_cut_off() -> None:
    batch = batch_of([GroupSpec(prompt=2, output=3), GroupSpec(prompt=1, output=2)])
    padded = batch.padded(6, 99)
    assert padded.tokens.shape == (4, 6)
    assert padded.tokens[2, 3:].tolist() == [99, 99, 99]
    assert padded.attention_mask.sum(axis=1).tolist() == [5, 5, 3, 3]
    assert padded.tokens[padded.attention_mask].tolist() == batch.tokens.tolist()
    with pytest.raises(InvalidRequest, match="needs 5 columns and length is 4"):
        batch.padded(4, 99)
    with pytest.raises(InvalidRequest, match="length is -1; give 0 or more"):
        batch.padded(-1, 99)
    with pytest.raises(InvalidRequest, match="pad_id is -1; give the id of a token"):
        batch.padded(6, -1)


def test_padded_prompts_end_in_the_same_column() -> None:
    batch = batch_of([GroupSpec(prompt=2, output=3), GroupSpec(prompt=1, output=2)])
    padded = batch.padded(6, 0, layout="prompt_response")
    assert padded.prompt_width == 2
    assert padded.attention_mask[2].tolist() == [False, True, True, True, False, False]
    assert padded.loss_mask[0].tolist() == [False, False, True, True, True, False]
    assert padded.tokens[padded.attention_mask].tolist() == batch.tokens.tolist()


@pytest.mark.parametrize("layout", ["sequence", "prompt_response"])
def test_arrays_that_were_asked_for_are_padded_too(layout: PaddedLayout) -> None:
    extras = (routed_experts(), {"ref_logprobs": [-1, -2, -3], "weight_steps": [5, 6, 7]})
    specs = [GroupSpec(prompt=2, output=3, extras=extras), GroupSpec(prompt=1, output=2)]
    batch = batch_of(specs, columns=EVERY_COLUMN)
    padded = batch.padded(6, 0, layout=layout)
    there = padded.attention_mask
    for name in ("old_logprobs", "ref_logprobs", "token_rewards", "token_weight_steps"):
        found, packed = getattr(padded, name), getattr(batch, name)
        assert (found.shape, found.dtype) == ((4, 6), packed.dtype)
        np.testing.assert_array_equal(found[there], packed)
        assert set(found[~there].tolist()) == {-1 if name == "token_weight_steps" else 0}
    experts = padded.token_arrays["routed_experts"]
    assert (experts.shape, experts.dtype) == ((4, 6, 2), np.dtype("u1"))
    np.testing.assert_array_equal(experts[there], batch.token_arrays["routed_experts"])
    assert not experts[~there].any()
    plain = batch_of(specs).padded(6, 99)
    assert (plain.ref_logprobs, dict(plain.token_arrays)) == (None, {})


def test_what_a_batch_lacks_its_rectangles_lack_for_the_same_reason() -> None:
    files = [[GroupSpec(extras=(routed_experts(top_k=k),))] for k in (2, 8)]
    padded = batch_of(*files, columns=["routed_experts", "weights"]).padded(8, 0)
    for name, error in {"routed_experts": ArraysDiffer, "weights": ArrayMissing}.items():
        with pytest.raises(error, match=name):
            padded.token_arrays[name]


def test_metrics_are_flat_numbers() -> None:
    batch = batch_of(
        [
            GroupSpec(weight_step=1, stop_reason="length"),
            GroupSpec(rewards=(1.0, 1.0), weight_step=3),
        ]
    )
    metrics = batch.metrics()
    assert metrics["reward/math"] == 0.75
    assert metrics["all_equal_share"] == 0.5
    assert metrics["truncated_share"] == 0.5
    assert (metrics["lag/mean"], metrics["lag/max"]) == (1.0, 2.0)
    assert (metrics["groups_ready"], metrics["wait_s"]) == (5.0, 0.5)
    assert replace(batch, current_step=100).metrics()["lag/mean"] == 98.0
    assert all(type(value) is float for value in metrics.values())


def test_metrics_have_the_histogram_of_lag_against_the_step_that_trains() -> None:
    lags = (0, 1, 2, 3, 4, 4, 5, 8, 9, 40)
    steps = tuple(50 - lag for lag in lags)
    batch = batch_of([GroupSpec(rewards=(0.0,) * 11, weight_steps=(*steps, -1))])
    metrics = replace(batch, current_step=50, policy_step=45).metrics()
    counts = {"0": 1, "1": 1, "2": 1, "3-4": 3, "5-8": 2, "over-8": 2}
    found = {name: value for name, value in metrics.items() if name.startswith("lag/")}
    assert found == {
        **{f"lag/{name}": count for name, count in counts.items()},
        "lag/mean": sum(lags) / len(lags),
        "lag/p50": 4.0,
        "lag/max": 40.0,
    }
    ahead = replace(batch, current_step=51, policy_step=45).metrics()
    assert (ahead["lag/0"], ahead["lag/max"]) == (0.0, 41.0)


@pytest.mark.proves("F20")
def test_a_trajectory_counts_once_whatever_number_of_turns_it_has() -> None:
    turns = {
        "rollout_uid": ["one", *["nine"] * 9],
        "segment_idx": np.array([0, *range(9)], np.int32),
        "reward": np.array([1.0, *[float("nan")] * 8, 0.25]),
        "weight_step": np.array([3, 1, *[2] * 8], np.int64),
    }
    batch = batch_of([GroupSpec(rewards=(0.0,) * 10)], scalars=turns)
    assert batch.rewards.tolist() == [1.0, *[0.25] * 9], "a segment without has the next one's"
    assert (len(batch), batch.num_trajectories) == (10, 2)
    assert batch.trajectory_returns.tolist() == [1.0, 0.25]
    metrics = batch.metrics()
    assert (metrics["rollouts"], metrics["segments"]) == (2, 10)
    assert metrics["reward/mean"] == metrics["reward/math"] == 0.625
    assert (metrics["lag/mean"], metrics["lag/max"]) == (1.0, 2.0)
    alike = {
        "rollout_uid": ["one", "one", "two", "two"],
        "segment_idx": np.array([0, 1, 0, 1], np.int32),
        "reward": np.array([0.25, 1.0, 0.25, 1.0]),
    }
    batch = batch_of([GroupSpec(rewards=(0.0,) * 4)], scalars=alike)
    assert batch.trajectory_returns.tolist() == [1.25, 1.25]
    assert batch.metrics()["all_equal_share"] == 1.0
    nan = float("nan")
    mixed = {
        "rollout_uid": ["t", "t", "t", "u"],
        "segment_idx": np.array([0, 1, 2, 0], np.int32),
        "reward": np.array([nan, 0.25, 0.75, 0.5]),
    }
    batch = batch_of([GroupSpec(rewards=(0.0,) * 4)], scalars=mixed)
    assert batch.rewards.tolist() == [0.0, 0.25, 0.75, 0.5], "they sum to what it earned"
    assert batch.trajectory_returns.tolist() == [1.0, 0.5]
    unknown = {
        "rollout_uid": ["t", "t", "u", "v"],
        "segment_idx": np.array([0, 1, 0, 0], np.int32),
        "reward": np.array([nan, nan, nan, 0.5]),
    }
    batch = batch_of([GroupSpec(rewards=(0.0,) * 2)] * 2, scalars=unknown)
    assert batch.rewards[3] == 0.5
    assert np.isnan(batch.rewards[:3]).all(), "neither another trajectory's nor a group's"


def test_an_empty_share_is_a_batch_of_no_rollouts() -> None:
    batch = batch_of()
    assert (len(batch), batch.offsets.tolist()) == (0, [0])
    assert batch.padded(4, 0).tokens.shape == (0, 4)
    assert batch.metrics()["rollouts"] == 0


def test_conversions_name_the_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    with pytest.raises(MissingExtra, match="to_jax needs jax"):
        batch_of([GroupSpec()]).to_jax()


def test_a_batch_without_its_sampler_says_so_when_asked_for_rows() -> None:
    batch = pickle.loads(pickle.dumps(batch_of([GroupSpec()])))
    with pytest.raises(RowsOutOfReach, match="next_batch"):
        batch.records(0)


@pytest.mark.parametrize("read", ["group", "records"])
@pytest.mark.parametrize(
    "group", ["1", 1.5, 1.0, None, True, np.True_, 2, -1, np.int64(2)], ids=repr
)
def test_what_is_no_index_of_a_group_is_refused(read: str, group: Any) -> None:
    batch = batch_of([GroupSpec(), GroupSpec()])
    with pytest.raises(InvalidRequest, match=re.escape(str(group))):
        getattr(batch, read)(group)


@given(st.integers(0, 40), st.integers(1, 9))
def test_shares_cover_every_slot_once_and_differ_by_one_at_most(groups: int, size: int) -> None:
    shares = [slots_of(groups, rank, size) for rank in range(size)]
    assert sorted(slot for slots in shares for slot in slots) == list(range(groups))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_repr_of_a_batch_is_one_line_however_large_it_is() -> None:
    batch = batch_of([GroupSpec(prompt=2, output=3)] * 300)
    assert repr(batch) == (
        "Batch(step 3: groups 300, rows 600, tokens 3,000, mean reward 0.5, of math)"
    )
    assert repr(batch.padded(8, pad_id=0)) == "Padded(rows 600, length 8, outputs from column 0)"
