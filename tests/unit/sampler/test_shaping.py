"""Batches out of columns: ragged, padded, shared among ranks, measured."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.groups import GroupSpec, flush_of, group_segments
from rollstream.sampler.deciding.batches import share
from rollstream.sampler.errors import InvalidRequest, MissingExtra, RowsOutOfReach
from rollstream.sampler.shaping.assembled import GroupRows, assemble
from rollstream.sampler.shaping.batch import Batch
from rollstream.sampler.shaping.scratch import Fresh, Scratch
from rollstream.schemas.columns import Columns
from rollstream.schemas.events import BatchServed
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.sampler.known import known_groups
from rollstream.streams.folds.sampler.served import ServedBatch


def batch_of(
    specs: Sequence[GroupSpec], *, step: int = 3, memory: Scratch | Fresh | None = None
) -> Batch:
    """A batch of all groups, as if they had been read from one file."""
    log = PartitionAddress("math", 1, 0)
    groups = known_groups(log, 0, flush_of(specs, name="f")) if specs else []
    segments = [s for i, spec in enumerate(specs) for s in group_segments(spec, "math", f"f-g{i}")]
    columns = Columns.from_segments(segments)
    event = BatchServed(
        epoch=0,
        nonce="n",
        now_ts=7,
        trainer_epoch=1,
        step=step,
        batch_id="b",
        seed=0,
        request="{}",
        policy_step=-1,
        cursor=(),
        groups=(),
        digest=b"d",
    )
    parts = [GroupRows(i, g, columns) for i, g in enumerate(groups)]
    served = ServedBatch(event, 0, (), (), b"d")
    assembled = assemble(served, parts, memory=memory or Fresh(), groups_ready=5)
    return assembled(waited_s=0.5, read_group=None)


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
        "weight_steps": ("int64", (4,)),
        "reward_components/format": ("float32", (4,)),
    }


@pytest.mark.proves("F15")
def test_masks_and_token_arrays_stand_at_the_output_tokens() -> None:
    masked = GroupSpec(loss_mask=(True, False, True), experts=True)
    batch = batch_of([masked, GroupSpec()])
    assert batch.loss_mask[:5].tolist() == [False, False, True, False, True]
    assert batch.loss_mask[10:15].tolist() == [False, False, True, True, True]
    experts = batch.token_arrays["routed_experts"]
    assert (experts.dtype, experts.shape) == (np.dtype("u1"), (20, 2))
    assert experts[:5].tolist() == [[0, 0], [0, 0], [0, 1], [2, 3], [4, 5]]
    assert not experts[10:].any()


def test_token_arrays_that_do_not_fit_together_are_told() -> None:
    specs = [GroupSpec(experts=True), GroupSpec(experts=True, top_k=8)]
    with pytest.raises(InvalidRequest, match=r"'routed_experts' is uint8 .*\(2,\).*\(8,\)"):
        batch_of(specs)


def test_memory_that_held_another_batch_leaves_no_trace() -> None:
    memory = Scratch()
    masked = GroupSpec(loss_mask=(True, False, True))
    batch_of([GroupSpec(prompt=1, output=9), masked, masked], memory=memory)
    for specs in ([masked, GroupSpec()], [GroupSpec(prompt=7, output=1)]):
        again, fresh = batch_of(specs, memory=memory), batch_of(specs)
        for name, array in fresh.arrays().items():
            assert array.tobytes() == again.arrays()[name].tobytes(), name


def test_padded_sequences_begin_in_column_0_and_nothing_is_cut_off() -> None:
    batch = batch_of([GroupSpec(prompt=2, output=3), GroupSpec(prompt=1, output=2)])
    padded = batch.padded(6, -1)
    assert padded.tokens.shape == (4, 6)
    assert padded.tokens[2, 3:].tolist() == [-1, -1, -1]
    assert padded.attention_mask.sum(axis=1).tolist() == [5, 5, 3, 3]
    assert padded.tokens[padded.attention_mask].tolist() == batch.tokens.tolist()
    with pytest.raises(InvalidRequest, match="needs 5 columns and length is 4"):
        batch.padded(4, -1)


def test_padded_prompts_end_in_the_same_column() -> None:
    batch = batch_of([GroupSpec(prompt=2, output=3), GroupSpec(prompt=1, output=2)])
    padded = batch.padded(6, -1, layout="prompt_response")
    assert padded.prompt_width == 2
    assert padded.attention_mask[2].tolist() == [False, True, True, True, False, False]
    assert padded.loss_mask[0].tolist() == [False, False, True, True, True, False]
    assert padded.tokens[padded.attention_mask].tolist() == batch.tokens.tolist()


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
    assert all(type(value) is float for value in metrics.values())


def test_an_empty_share_is_a_batch_of_no_rollouts() -> None:
    batch = batch_of([])
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
    shares = [share(groups, rank, size) for rank in range(size)]
    assert sorted(slot for slots in shares for slot in slots) == list(range(groups))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
