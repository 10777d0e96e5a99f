"""What a loss is computed from, made of a batch."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.batches import batch_of
from harness.groups import EVERY_COLUMN, GroupSpec, every_extra
from rollstream.sampler import ArrayMissing, Batch, InvalidRequest
from rollstream.sampler.training.examples.examples import Examples, RLExample

PER_TOKEN = ("old_logprobs", "ref_logprobs", "token_rewards", "token_weight_steps")


def turns(*uids: str) -> list[dict[str, Any]]:
    """Segments: those of one uid are of one trajectory."""
    return [{"rollout_uid": uid, "segment_idx": uids[:i].count(uid)} for i, uid in enumerate(uids)]


def a_batch(**request: Any) -> Batch:
    """A group whose second trajectory has two turns, and one with masks and without log-probs."""
    masked = {"loss_mask": (True, False, True)}
    return batch_of(
        [GroupSpec(rewards=(1.0, 0.25, 0.5), extras=turns("a", "b", "b"))],
        [
            GroupSpec(
                rewards=(0.0, 2.0, 4.0),
                weight_steps=(3, 4, -1),
                prompt=1,
                extras=[{**every_extra(), **masked}, {"logprobs": None, **masked}, every_extra()],
            )
        ],
        **request,
    )


@pytest.mark.proves("D4")
def test_an_example_has_a_value_for_each_position() -> None:
    examples = Examples.of(a_batch())
    assert len(examples) == 6
    first = examples[0]
    assert isinstance(first, RLExample)
    assert [array.dtype for array in first] == [np.int32, np.bool_, np.float32, np.float32]
    assert first.tokens.tolist() == list(range(first.tokens[0], first.tokens[0] + 5))
    assert first.loss_mask.tolist() == [False, False, True, True, True]
    # The other trajectory of its group earned 0.25 and 0.5.
    assert first.advantage.tolist() == [0, 0, 0.25, 0.25, 0.25]
    assert first.generator_log_probs.tolist() == [0, 0, -1 / 8, -2 / 8, -3 / 8]
    masked = examples[3]
    assert masked.advantage.tolist() == [0, -3, 0, -3]
    assert masked.generator_log_probs.tolist() == [0, -1 / 8, 0, -3 / 8]
    without = examples[4].generator_log_probs
    assert np.isnan(without).tolist() == [False, True, False, True]
    assert without[2] == 0
    assert [example.tokens.tolist() for example in examples] == [
        examples[at - 6].tokens.tolist() for at in range(6)
    ]
    with pytest.raises(IndexError):
        examples[6]


@pytest.mark.proves("D4", "A17")
def test_segments_of_a_trajectory_share_the_advantage_of_its_return() -> None:
    examples = Examples.of(a_batch(), "dr_grpo")
    assert examples.trajectories.tolist() == [0, 1, 1, 2, 3, 4]
    assert [example.advantage[-1] for example in examples] == [0.125, -0.125, -0.125, -2, 0, 2]


@pytest.mark.proves("A24", "D4")
def test_a_loss_finds_whatever_else_the_batch_has_for_each_token() -> None:
    batch = a_batch(columns=EVERY_COLUMN)
    found = Examples.of(batch, rows=[5, 0]).token_arrays
    assert set(found) == {"routed_experts", *PER_TOKEN}
    for name in PER_TOKEN:
        column = getattr(batch, name)
        np.testing.assert_array_equal(found[name], np.concatenate((column[-4:], column[:5])))
    assert found["routed_experts"].shape == (9, 2)
    with pytest.raises(ArrayMissing, match="'entropy' was not asked for"):
        found["entropy"]


def test_an_array_that_no_group_has_says_so_of_examples_as_of_the_batch() -> None:
    with pytest.raises(ArrayMissing, match="'entropy', which is none of"):
        Examples.of(a_batch(columns=["entropy"]), rows=[1]).token_arrays["entropy"]


def test_a_whole_batch_in_order_is_not_copied() -> None:
    batch = a_batch(columns=EVERY_COLUMN)
    examples = Examples.of(batch)
    again = examples.take(range(6))
    assert examples.tokens is again.tokens is batch.tokens
    assert examples.loss_mask is again.loss_mask is batch.loss_mask
    assert again.generator_log_probs is examples.generator_log_probs
    for name in PER_TOKEN:
        assert examples.token_arrays[name] is again.token_arrays[name] is getattr(batch, name)
    assert examples.token_arrays["routed_experts"] is batch.token_arrays["routed_experts"]
    assert np.shares_memory(examples[2].tokens, batch.tokens)


@pytest.mark.proves("D4")
@given(rows=st.lists(st.integers(0, 5), max_size=9), data=st.data())
def test_examples_of_rows_are_those_rows_in_that_order(
    rows: list[int], data: st.DataObject
) -> None:
    batch = a_batch(columns=EVERY_COLUMN)
    whole, some = Examples.of(batch), Examples.of(batch, rows=rows)
    indices = data.draw(
        st.lists(st.sampled_from(range(len(rows))), max_size=4) if rows else st.just([])
    )
    for found, expected in ((some, rows), (some.take(indices), [rows[i] for i in indices])):
        assert found.rows.tolist() == expected
        assert found.lengths.tolist() == [whole.lengths[row] for row in expected]
        assert found.weight_steps.tolist() == [batch.weight_steps[row] for row in expected]
        assert found.policy_versions == tuple(batch.policy_versions[row] for row in expected)
        assert found.trajectories.tolist() == [batch.trajectory_index[row] for row in expected]
        for one, row in zip(found, expected, strict=True):
            for array, column in zip(one, whole[row], strict=True):
                np.testing.assert_array_equal(array, column)
        assert found.token_arrays["routed_experts"].shape == (len(found.tokens), 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda e: e[0:2], r"is slice\(0, 2, None\); .* examples\.take\(range\(begin, end\)\)"),
        (lambda e: e["a"], "is 'a'; give a whole number"),
        (lambda e: e.take([-7]), "indices has -7; there are 6"),
        (lambda e: e.take([6]), "indices has 6; there are 6"),
        (lambda e: e.take(np.array([2**64 - 1], np.uint64)), "indices has 18446744073709551615"),
        (lambda e: e.of(a_batch(), merge_turns="yes"), "merge_turns is 'yes'; give True or"),
    ],
)
def test_what_is_no_index_is_refused(wrong: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        wrong(Examples.of(a_batch()))


def test_indices_count_from_the_end_where_they_are_negative() -> None:
    examples = Examples.of(a_batch())
    assert examples.take([-1, 0, -6]).rows.tolist() == [5, 0, 0]
    assert examples[-1].tokens.tolist() == examples.take([-1])[0].tokens.tolist()


def test_advantages_may_be_somebody_elses() -> None:
    given_by_hand = np.array([1, 2, 3, 4, 5], np.float32)
    examples = Examples.of(a_batch(), given_by_hand, rows=[2, 5])
    assert [example.advantage[-1] for example in examples] == [2, 5]


def test_an_empty_batch_has_no_examples() -> None:
    assert list(Examples.of(batch_of())) == []


def test_examples_can_be_copied_to_another_process_and_are_shown_in_a_line() -> None:
    examples = pickle.loads(pickle.dumps(Examples.of(a_batch(columns=["routed_experts"]))))
    assert examples.token_arrays["routed_experts"].shape == (27, 2)
    assert repr(examples) == "Examples(6, tokens 27)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": [0, 6]}, "rows has 6; there are 6, which count from 0"),
        ({"rows": [-1]}, "rows has -1"),
        ({"rows": [0.5]}, r"rows is \[0.5\]; give a sequence of whole numbers"),
        ({"rows": [True, False]}, "give a sequence of whole numbers"),
        ({"rows": [[0]]}, "give a sequence of whole numbers"),
        ({"rows": [[0], [0, 1]]}, "give a sequence of whole numbers"),
        ({"batch": None}, "batch is None; give the Batch that next_batch returned"),
        ({"advantages": [[0], [0, 1]]}, "give a number for each"),
        ({"advantages": np.ma.zeros(5)}, "give a number for each"),
        (
            {"advantages": np.full(5, 1e300)},
            r"advantages has 1e\+300 at 0, .* that float32 has room",
        ),
        ({"advantages": "gae"}, "advantage 'gae' is unknown"),
        ({"advantages": np.zeros(6)}, r"advantages are float64 \[6\]; give .* the 5 trajectories"),
        ({"advantages": np.full(5, "a")}, "give a number for each"),
        ({"advantages": np.array([0, 1, np.nan, 3, 4])}, "advantages has nan at 2, .*give finite"),
    ],
)
def test_what_is_no_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Examples.of(**{"batch": a_batch(), **arguments})


def test_examples_that_lack_log_probs_can_be_left_out() -> None:
    examples = Examples.of(a_batch(columns=EVERY_COLUMN), rows=[4, 0, 4, 5])
    known = [not np.isnan(one.generator_log_probs).any() for one in examples]
    assert False in known
    assert True in known
    assert examples.have_log_probs().tolist() == known
    assert examples.have_log_probs("ref_logprobs").tolist() == [
        not np.isnan(values[mask]).any()
        for values, mask in (
            (
                examples.token_arrays["ref_logprobs"][begin:end],
                examples.loss_mask[begin:end],
            )
            for begin, end in pairwise(examples.offsets.tolist())
        )
    ]
    with pytest.raises(ArrayMissing, match="'old_logprobs'"):
        Examples.of(a_batch()).have_log_probs("old_logprobs")


def test_one_example_and_its_arrays_are_shown_in_a_line() -> None:
    examples = Examples.of(a_batch(columns=["routed_experts"]))
    one = examples[0]
    shown = f"RLExample(tokens {len(one.tokens)}, trained {np.count_nonzero(one.loss_mask)})"
    assert repr(one) == shown
    assert repr(examples.token_arrays) == "TokenArrays(routed_experts uint8 [27, 2])"
