"""Turns that extend one another are trained on as one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.batches import batch_of
from harness.groups import EVERY_COLUMN, GroupSpec, every_extra
from rollstream.sampler import (
    Batch,
    Examples,
    GrpoBatchMaker,
    Packs,
    examples_of,
    make_batch,
    plan_packs,
    rollouts_of,
)

pytestmark = pytest.mark.proves("A17")


class Turn(NamedTuple):
    prompt: Sequence[int]
    output: Sequence[int]
    mask: Sequence[bool] | None = None


def a_batch(*trajectories: Sequence[Turn], columns: Sequence[str] = (), **more: Any) -> Batch:
    """A group of these trajectories; token ``i`` of turn ``k`` was sampled with ``-(k + i / 8)``,
    and turn ``k`` under weights ``k``."""
    extras, rewards = [], []
    for uid, turns in enumerate(trajectories):
        for idx, turn in enumerate(turns):
            size = len(turn.output)
            fields = {
                **every_extra(size),
                "rollout_uid": f"r{uid}",
                "segment_idx": idx,
                "prompt_tokens": np.array(turn.prompt, np.int32),
                "output_tokens": np.array(turn.output, np.int32),
                "logprobs": -(idx + np.arange(1, size + 1, dtype="<f4") / 8),
                "loss_mask": turn.mask,
                "weight_steps": None,
                "weight_step": idx,
                "policy_version": f"step-{idx}",
            }
            extras.append({**fields, **more})
            rewards.append(float(uid) if idx == len(turns) - 1 else 0.0)
    spec = GroupSpec(rewards=tuple(rewards), extras=extras)
    return batch_of([spec], columns=columns)


def test_a_conversation_is_one_sequence_with_each_token_once() -> None:
    batch = a_batch(
        [
            Turn([1, 2], [3, 4]),
            Turn([1, 2, 3, 4, 9], [5], mask=[True]),
            Turn([1, 2, 3, 4, 9, 5], [6, 9, 7], mask=[True, False, True]),
        ],
        [Turn([1, 2], [8])],
        columns=["token_weight_steps"],
    )
    examples = Examples.of(batch, "dr_grpo", merge_turns=True)
    whole, single = examples
    assert whole.tokens.tolist() == [1, 2, 3, 4, 9, 5, 6, 9, 7]
    assert whole.loss_mask.tolist() == [0, 0, 1, 1, 0, 1, 1, 0, 1]
    assert whole.generator_log_probs.tolist() == [
        *[0, 0, -0.125, -0.25, 0],  # The first turn, and what the environment answered.
        *[-1.125],
        *[-2.125, 0, -2.375],
    ]
    assert whole.advantage.tolist() == [0, 0, -0.5, -0.5, 0, -0.5, -0.5, 0, -0.5]
    assert single.advantage.tolist() == [0, 0, 0.5]
    assert examples.token_arrays["token_weight_steps"].tolist() == [
        *[-1, -1, 0, 0, -1, 1, 2, 2, 2],
        *[-1, -1, 0],
    ]
    assert examples.rows.tolist() == [2, 3]
    assert examples.turns.tolist() == [3, 1]
    assert examples.trajectories.tolist() == [0, 1]
    assert examples.weight_steps.tolist() == [2, 0]
    assert examples.policy_versions == ("step-2", "step-0")
    assert examples.metrics() == {
        "examples": 2,
        "tokens": 12,
        "trained_tokens": 6,
        "turns/merged": 2,
        "turns/apart": 0,
    }


def test_packs_keep_the_masks_of_merged_turns_that_count_as_many_tokens_as_the_last_output() -> (
    None
):
    batch = a_batch([Turn([1], [2]), Turn([1, 2], [3, 4], mask=[True, False])], [Turn([5], [6])])
    examples = Examples.of(batch, "dr_grpo", merge_turns=True)
    packs = Packs.of(examples, plan_packs(examples.lengths, 6))
    assert packs.tokens.tolist() == [[1, 2, 3, 4, 5, 6]]
    assert packs.loss_mask.tolist() == [[False, True, True, False, False, True]]
    assert packs.advantages.tolist() == [[0, -0.5, -0.5, 0, 0, 0.5]]
    assert packs.generator_log_probs.tolist() == [[0, -0.125, -1.125, 0, 0, -0.125]]


def test_a_turn_that_does_not_extend_the_one_before_stands_apart_and_is_counted() -> None:
    """A chat template that drops what was thought, then two turns that extend one another; and a
    prompt that ends within what was sampled, though its output goes on as that did."""
    batch = a_batch(
        [
            Turn([1], [50, 2]),
            Turn([1, 2, 3], [51, 4]),
            Turn([1, 2, 3, 51, 4, 5], [52]),
        ],
        [Turn([1], [2, 3]), Turn([1, 2], [3, 4])],
        [Turn([1], [2]), Turn([1, 2], [3])],
    )
    examples = Examples.of(batch, merge_turns=True)
    assert [one.tokens.tolist() for one in examples] == [
        [1, 50, 2],
        [1, 2, 3, 51, 4, 5, 52],
        [1, 2, 3],
        [1, 2, 3, 4],
        [1, 2, 3],
    ]
    assert examples.turns.tolist() == [1, 2, 1, 1, 2]
    assert examples.apart.tolist() == [False, True, False, True, False]
    assert examples.metrics()["turns/apart"] == 2
    some = examples.take([4, 1])
    assert some.metrics()["turns/apart"] == 1
    assert some.metrics()["turns/merged"] == 2
    assert Examples.of(batch).metrics()["turns/apart"] == 0


def test_a_generation_that_was_interrupted_goes_on_without_a_gap() -> None:
    batch = a_batch([Turn([1], [2, 3]), Turn([1, 2, 3], []), Turn([1, 2, 3], [4])])
    (example,) = Examples.of(batch, merge_turns=True)
    assert example.tokens.tolist() == [1, 2, 3, 4]
    assert example.loss_mask.tolist() == [False, True, True, True]
    assert example.generator_log_probs.tolist() == [0, -0.125, -0.25, -2.125]


def test_turns_without_log_probs_are_told_within_their_sequence() -> None:
    batch = a_batch([Turn([1], [2]), Turn([1, 2, 9], [3])], logprobs=None)
    (example,) = Examples.of(batch, merge_turns=True)
    assert np.isnan(example.generator_log_probs).tolist() == [False, True, False, True]


def test_rows_of_one_turn_are_not_copied() -> None:
    batch = batch_of([GroupSpec(rewards=(0.0, 1.0, 1.0))])
    assert Examples.of(batch, merge_turns=True).tokens is batch.tokens


def test_an_empty_batch_merges_to_nothing() -> None:
    examples = Examples.of(batch_of(), merge_turns=True)
    assert len(examples) == 0
    assert examples.metrics()["turns/merged"] == 0


def test_what_a_maker_chose_is_merged_in_its_order() -> None:
    turns = [Turn([1], [2]), Turn([1, 2, 9], [3])]
    batch = a_batch(turns, turns, turns[:1], turns)
    made = make_batch(GrpoBatchMaker(seed=1), batch, 8)
    assert sorted(made.trajectories.tolist()) == [0, 1, 2, 3]
    assert [rollout.weight_step for rollout in rollouts_of(batch)] == [1, 1, 0, 1]
    examples = examples_of(batch, made, merge_turns=True)
    assert examples.trajectories.tolist() == made.trajectories.tolist()
    for example, trajectory, advantage in zip(
        examples, made.trajectories.tolist(), made.advantages.tolist(), strict=True
    ):
        assert example.tokens.tolist() == [1, 2, 9, 3][: 2 if trajectory == 2 else 4]
        assert set(example.advantage[example.loss_mask].tolist()) == {advantage}


@st.composite
def conversations(draw: st.DrawFn) -> list[Turn]:
    """Turns that mostly extend one another, of few tokens, so that they also do by chance."""
    tokens = st.lists(st.integers(0, 1), max_size=4)
    turns: list[Turn] = []
    for _ in range(draw(st.integers(1, 5))):
        before = [*turns[-1].prompt, *turns[-1].output] if turns else []
        prompt = draw(st.sampled_from((before, before, before[:-1], before[1:]))) + draw(tokens)
        output = draw(tokens)
        mask = draw(st.none() | st.lists(st.booleans(), min_size=len(output), max_size=len(output)))
        turns.append(Turn(prompt, output, mask))
    return turns


def values_of(batch: Batch, row: int) -> list[list[Any]]:
    """What each token of a row has, by the batch's own columns."""
    span = slice(*batch.offsets[row : row + 2].tolist())
    named = {name: getattr(batch, name) for name in EVERY_COLUMN if hasattr(batch, name)}
    arrays: list[NDArray[Any]] = [batch.token_arrays["routed_experts"]]
    of_tokens = {"old_logprobs", "ref_logprobs", "token_rewards", "token_weight_steps"}
    arrays += [named[name] for name in sorted(of_tokens & named.keys())]
    columns = [batch.loss_mask, np.where(batch.loss_mask, batch.logprobs, 0), *arrays]
    return [column[span].tolist() for column in columns]


def naive(batch: Batch, rows: list[int]) -> tuple[list[list[int]], list[list[Any]], int]:
    """Each sequence's tokens and what each token has, token by token; and how many are apart."""
    sequences: list[list[int]] = []
    values: list[list[Any]] = []
    apart = 0
    before = [-1, *rows]
    for previous, row in pairwise(before):
        tokens = batch.tokens[batch.offsets[row] : batch.offsets[row + 1]].tolist()
        prompt = tokens[: batch.prompt_lengths[row]]
        mine = list(zip(*values_of(batch, row), strict=True))
        later = 0 <= previous < row and (
            batch.trajectory_index[previous] == batch.trajectory_index[row]
        )
        if later and prompt[: len(sequences[-1])] == sequences[-1]:
            values[-1] += mine[len(sequences[-1]) :]
            sequences[-1] = tokens
        else:
            apart += later
            sequences.append(tokens)
            values.append(mine)
    return sequences, values, apart


@given(trajectories=st.lists(conversations(), min_size=1, max_size=4), data=st.data())
def test_sequences_are_those_of_a_loop_over_tokens(
    trajectories: list[list[Turn]], data: st.DataObject
) -> None:
    batch = a_batch(*trajectories, columns=EVERY_COLUMN)
    everything = list(range(len(batch)))
    rows = data.draw(st.just(everything) | st.lists(st.sampled_from(everything), max_size=8))
    examples = Examples.of(batch, rows=rows, merge_turns=True)
    sequences, values, apart = naive(batch, rows)
    assert [example.tokens.tolist() for example in examples] == sequences
    assert examples.metrics()["turns/apart"] == apart
    assert examples.turns.sum() == len(rows)
    arrays = examples.token_arrays
    names = sorted(set(arrays) - {"routed_experts"})
    columns = [examples.loss_mask, examples.generator_log_probs, arrays["routed_experts"]]
    columns += [arrays[name] for name in names]
    found = list(zip(*(column.tolist() for column in columns), strict=True))
    assert repr(found) == repr([one for sequence in values for one in sequence])
