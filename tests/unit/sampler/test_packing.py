"""Examples packed into sequences of one length, balanced over ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.batches import batch_of
from harness.groups import GroupSpec, every_extra
from rollstream.sampler import Examples, InvalidRequest, PackPlan, Packs, plan_packs
from rollstream.sampler.batch.token_arrays import TokenArrays


def spans(plan: PackPlan) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    """By rank and pack: where each example begins and ends, and which it is; in order."""
    found: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for example, (rank, pack) in enumerate(zip(plan.rank, plan.pack, strict=True)):
        assert (rank < 0) == (pack < 0) == (plan.start[example] < 0)
        if rank >= 0:
            start = int(plan.start[example])
            end = start + int(plan.lengths[example])
            found[int(rank), int(pack)].append((start, end, example))
    return {where: sorted(of_pack) for where, of_pack in found.items()}


def check_places(plan: PackPlan) -> None:
    """None overlaps, none reaches beyond its pack, and there is no gap before or between them."""
    for (rank, pack), of_pack in spans(plan).items():
        assert rank < plan.ranks
        assert pack < plan.packs_per_rank
        ends = [0, *[end for _, end, _ in of_pack]]
        assert [start for start, _, _ in of_pack] == ends[:-1]
        assert ends[-1] <= plan.length


def examples_of(lengths: list[int]) -> Examples:
    """Examples whose values differ, with named arrays of several widths."""
    total, count = sum(lengths), len(lengths)
    numbers = np.arange(1, total + 1)
    arrays: dict[str, NDArray[Any]] = {
        "wide": np.stack([numbers % 251, numbers % 7, numbers % 5], 1).astype(np.uint8),
        "half": numbers.astype(np.float16),
        "double": numbers.astype(np.float64),
        "matrix": np.arange(total * 6, dtype=np.int16).reshape(total, 2, 3),
    }
    return Examples(
        tokens=numbers.astype(np.int32),
        offsets=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        loss_mask=numbers % 3 > 0,
        advantages=(numbers / 8).astype(np.float32),
        generator_log_probs=(-numbers / 16).astype(np.float32),
        token_arrays=TokenArrays(arrays, {}),
        rows=np.arange(count),
        turns=np.ones(count, np.int32),
        apart=np.zeros(count, np.bool_),
        trajectories=np.arange(count, dtype=np.int32),
        weight_steps=np.zeros(count, np.int64),
        policy_versions=("v",) * count,
    )


@pytest.mark.proves("D5")
@given(
    lengths=st.lists(st.integers(0, 40), max_size=60),
    ranks=st.integers(1, 5),
    packs_per_rank=st.none() | st.integers(1, 4),
    too_long=st.sampled_from(["drop", "truncate"]),
    weight=st.sampled_from([0.0, 1 / 8192, 0.1, 3.0]),
)
def test_each_example_is_whole_in_one_pack_or_named_as_left_out(
    lengths: list[int], ranks: int, packs_per_rank: int | None, too_long: Any, weight: float
) -> None:
    plan = plan_packs(
        lengths,
        32,
        ranks=ranks,
        packs_per_rank=packs_per_rank,
        too_long=too_long,
        attention_weight=weight,
    )
    check_places(plan)
    over = [example for example, length in enumerate(lengths) if length > 32]
    assert plan.too_long.tolist() == over
    wanted = [n for n in range(len(lengths)) if n not in over or too_long == "truncate"]
    placed = sorted(example for of_pack in spans(plan).values() for *_, example in of_pack)
    assert placed + plan.left_over.tolist() == wanted  # The last ones first.
    assert [int(plan.lengths[n]) for n in placed] == [min(lengths[n], 32) for n in placed]
    assert plan.lengths.sum() == sum(min(lengths[n], 32) for n in placed)
    if packs_per_rank is None:
        assert not len(plan.left_over)
        # First Fit Decreasing's guarantee, in equal counts for all ranks.
        fewest = -(-sum(min(lengths[n], 32) for n in wanted) // 32)
        assert plan.packs_per_rank <= -(-(fewest * 2 + 1) // ranks)
    else:
        assert plan.packs_per_rank == packs_per_rank


@given(lengths=st.lists(st.integers(0, 32), max_size=40), ranks=st.integers(1, 4))
def test_metrics_are_those_of_a_naive_count(lengths: list[int], ranks: int) -> None:
    plan = plan_packs(lengths, 32, ranks=ranks, attention_weight=0.25)
    cost = np.zeros((ranks, plan.packs_per_rank))
    for where, of_pack in spans(plan).items():
        cost[where] = sum((end - start) + 0.25 * (end - start) ** 2 for start, end, _ in of_pack)
    assert plan.costs() == pytest.approx(cost)
    # The dearest pack of each rank comes first.
    assert (np.diff(cost, axis=1) <= 0).all()
    mean = cost.sum() / ranks
    packs = ranks * plan.packs_per_rank
    rounds = next(k for k in range(41) if k * ranks * 32 >= sum(lengths))
    assert plan.metrics() == pytest.approx(
        {
            "packs": packs,
            "packs/lower_bound": rounds * ranks,
            "packs/fill": sum(lengths) / (packs * 32) if packs else 1,
            "packs/rank_imbalance": max(map(sum, cost)) / mean if mean else 1,
            "packs/micro_step_imbalance": sum(map(max, cost.T)) / mean if mean else 1,
            "packs/too_long": 0,
            "packs/left_over": 0,
            "packs/tokens_cut": 0,
        }
    )


def lognormal(seed: int, longest: int) -> Any:
    """64 groups of 8 of a reasoning model: 128 prompt tokens and a lognormal response."""
    drawn = np.random.default_rng(seed).lognormal(np.log(1024) - 0.32, 0.8, 512)
    return np.minimum(128 + np.clip(drawn, 1, 8192).astype(np.int64), longest)


@pytest.mark.proves("D5")
@pytest.mark.parametrize("length", [8_192, 32_768])
def test_responses_of_lognormal_lengths_fill_packs_and_balance_ranks(length: int) -> None:
    found = [plan_packs(lognormal(n, length), length, ranks=8).metrics() for n in range(40)]
    rounds_over = [(one["packs"] - one["packs/lower_bound"]) / 8 for one in found]
    assert max(rounds_over) <= 1
    assert np.mean(rounds_over) <= 0.1
    assert np.median([one["packs/rank_imbalance"] for one in found]) <= 1.02
    assert max(one["packs/rank_imbalance"] for one in found) <= 1.05
    assert max(one["packs/micro_step_imbalance"] for one in found) <= 1.12


def test_where_only_best_fit_finds_room_its_packs_are_dealt_evenly() -> None:
    found = plan_packs(lognormal(191, 8_192), 8_192, ranks=8).metrics()
    assert found["packs"] == found["packs/lower_bound"]
    assert found["packs/fill"] > 0.995
    assert found["packs/rank_imbalance"] < 1.001


@pytest.mark.proves("D5")
def test_truncated_examples_keep_their_first_tokens_and_are_counted() -> None:
    examples = examples_of([10, 4])
    plan = plan_packs(examples.lengths, 6, too_long="truncate")
    assert plan.too_long.tolist() == [0]
    assert plan.metrics()["packs/too_long"] == 1
    packs = Packs.of(examples, plan)
    assert packs.tokens.tolist() == [[1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 0, 0]]
    dropped = Packs.of(examples, plan_packs(examples.lengths, 6, too_long="drop"))
    assert dropped.tokens.tolist() == [[11, 12, 13, 14, 0, 0]]


@pytest.mark.proves("D5")
@pytest.mark.parametrize(
    ("options", "tokens", "trained"),
    [
        ({"too_long": "truncate"}, 4 + 3, 3 + 2),
        ({"too_long": "truncate", "packs_per_rank": 2}, 4 + 9, 3 + 6),
        ({"too_long": "drop"}, 10 + 9, 7 + 6),
    ],
)
def test_what_is_cut_of_long_examples_is_counted_in_tokens_of_the_loss(
    options: dict[str, Any], tokens: int, trained: int
) -> None:
    examples = examples_of([10, 4, 9])  # The loss counts two tokens of three.
    plan = plan_packs(examples.lengths, 6, **options)
    assert (plan.tokens_cut, plan.metrics()["packs/tokens_cut"]) == (tokens, tokens)
    assert plan.metrics(examples)["packs/tokens_cut"] == trained


def test_an_example_longer_than_a_pack_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidRequest, match=r"example 1 has 9 tokens and a pack 8; raise length"):
        plan_packs([8, 9], 8)
    with pytest.raises(InvalidRequest, match="and 2 others are too long"):
        plan_packs([9, 8, 9, 10], 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length is 0; give 1 or more"),
        ({"length": 2**31}, "positions are int32: give at most 2147483647"),
        ({"ranks": 0}, "ranks is 0; give 1 or more"),
        ({"ranks": 1.5}, "ranks is 1.5"),
        ({"ranks": 10**12}, "ranks is 1000000000000; give at most 65536"),
        ({"packs_per_rank": 10**9, "ranks": 8}, "is 1000000000, for 8 ranks; give at most 2097152"),
        ({"packs_per_rank": 0}, "packs_per_rank is 0; give 1 or more"),
        ({"too_long": "cut"}, "too_long is 'cut'; use one of"),
        ({"attention_weight": -1}, "attention_weight is -1; give 0 or more"),
        ({"attention_weight": float("nan")}, "give a finite number"),
        ({"lengths": [3, -1]}, "example 1 has -1 tokens; give 0 or more"),
        ({"lengths": [1.5]}, r"lengths is float64 \[1\]; give whole numbers"),
        ({"lengths": [[1]]}, r"lengths is int64 \[1, 1\]; give whole numbers"),
        ({"lengths": [[1], [1, 2]]}, r"lengths is object \[\]; give whole numbers"),
        ({"lengths": np.ma.array([1, 2], mask=[False, True])}, "give whole numbers"),
        ({"lengths": [True, False]}, r"lengths is bool \[2\]; give whole numbers"),
        ({"length": True}, "length is True; give a whole number"),
        ({"length": 8.0}, "length is 8.0; give a whole number"),
    ],
)
def test_arguments_that_cannot_be_satisfied_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        plan_packs(**{"lengths": [3, 4], "length": 8, **arguments})


@pytest.mark.proves("F20")
def test_packs_are_of_examples_and_of_their_plan() -> None:
    examples = examples_of([5, 6])
    wrong: Any = examples.tokens
    plan = plan_packs(examples.lengths, 8)
    with pytest.raises(InvalidRequest, match=r"examples is array.*; give Examples.of\(batch\)"):
        Packs.of(wrong, plan)
    with pytest.raises(InvalidRequest, match=r"plan is array.*; give plan_packs\(examples.lengths"):
        Packs.of(examples, wrong)
    others = plan_packs([20, 20, 20], 8, too_long="truncate")
    with pytest.raises(
        InvalidRequest, match="the plan is of 3 examples and these are 2; plan with"
    ):
        others.metrics(examples)


@pytest.mark.parametrize("lengths", [[], [5]], ids=["none", "one"])
def test_fewer_examples_than_ranks_leave_packs_empty(lengths: list[int]) -> None:
    examples = examples_of(lengths)
    plan = plan_packs(examples.lengths, 8, ranks=3)
    assert plan.packs_per_rank == len(lengths)
    packs = [Packs.of(examples, plan, rank=rank, pad_id=7) for rank in range(3)]
    assert [len(of_rank) for of_rank in packs] == [len(lengths)] * 3
    assert [of_rank.tokens.shape for of_rank in packs] == [(len(lengths), 8)] * 3
    if lengths:
        assert [of_rank.tokens.sum() for of_rank in packs] == [15 + 3 * 7, 8 * 7, 8 * 7]
        assert [c.tolist() for of_rank in packs for c in of_rank.cu_seqlens] == [[0, 5], [0], [0]]
        assert [len(e) for of_rank in packs for e in of_rank.examples] == [1, 0, 0]


@pytest.mark.proves("D5")
@given(
    lengths=st.lists(st.integers(0, 20), max_size=40),
    ranks=st.integers(1, 3),
    packs_per_rank=st.none() | st.integers(1, 3),
)
def test_packs_have_each_example_with_all_its_values_and_padding_after_them(
    lengths: list[int], ranks: int, packs_per_rank: int | None
) -> None:
    examples = examples_of(lengths)
    plan = plan_packs(
        examples.lengths, 16, ranks=ranks, packs_per_rank=packs_per_rank, too_long="truncate"
    )
    where = spans(plan)
    for rank in range(ranks):
        packs = Packs.of(examples, plan, rank=rank, pad_id=5)
        arrays = packs.arrays()
        sources = {name: getattr(examples, name) for name in ("loss_mask", "advantages")}
        sources |= {"generator_log_probs": examples.generator_log_probs}
        sources |= {"tokens": examples.tokens}
        sources |= {f"token_arrays/{name}": a for name, a in examples.token_arrays.items()}
        assert set(arrays) == {*sources, "segment_ids", "position_ids"}
        expected = {
            name: np.full(
                (plan.packs_per_rank, 16, *source.shape[1:]),
                5 if name == "tokens" else 0,
                source.dtype,
            )
            for name, source in sources.items()
        }
        expected |= {
            name: np.zeros((plan.packs_per_rank, 16), np.int32)
            for name in ("segment_ids", "position_ids")
        }
        for pack in range(plan.packs_per_rank):
            of_pack = where.get((rank, pack), [])
            for number, (start, end, example) in enumerate(of_pack, 1):
                first = int(examples.offsets[example])
                for name, source in sources.items():
                    expected[name][pack, start:end] = source[first : first + end - start]
                expected["segment_ids"][pack, start:end] = number
                expected["position_ids"][pack, start:end] = range(end - start)
            assert packs.examples[pack].tolist() == [example for *_, example in of_pack]
            bounds = [start for start, _, _ in of_pack] + [of_pack[-1][1] if of_pack else 0]
            assert packs.cu_seqlens[pack].tolist() == bounds
            assert packs.cu_seqlens[pack].dtype == np.int32
        for name, array in arrays.items():
            assert array.dtype == expected[name].dtype, name
            assert np.array_equal(array, expected[name]), name


@pytest.mark.proves("D5")
def test_packs_of_a_batch_have_its_masks_and_named_arrays() -> None:
    spec = GroupSpec(rewards=(1.0, 0.5), extras=[every_extra(), every_extra()])
    batch = batch_of([spec], columns=["ref_logprobs", "routed_experts"])
    examples = Examples.of(batch)
    packs = Packs.of(examples, plan_packs(examples.lengths, 16))
    assert repr(packs) == "Packs(2 examples in 1 sequences of 16 tokens)"
    (order,) = packs.examples
    assert sorted(order.tolist()) == [0, 1]
    used = int(examples.offsets[-1])
    experts, reference = batch.token_arrays["routed_experts"], batch.ref_logprobs
    assert reference is not None
    assert np.array_equal(packs.token_arrays["routed_experts"][0, :used], experts)
    assert np.array_equal(packs.token_arrays["ref_logprobs"][0, :used], reference, equal_nan=True)
    assert np.array_equal(packs.loss_mask[0, :used], batch.loss_mask)
    assert not packs.loss_mask[0, used:].any()


MASKED = {"loss_mask": (True, False, True)}


@pytest.mark.proves("D5")
@pytest.mark.parametrize("length", [6, 2])
@pytest.mark.parametrize(
    ("extras", "masked"),
    [
        ([{**every_extra(), **MASKED}, {"logprobs": None, **MASKED}, every_extra()], True),
        ([{}, {"logprobs": None}, {}], False),
    ],
    ids=["masks", "whole outputs"],
)
def test_packs_have_the_same_bytes_whether_or_not_all_tokens_were_computed_before(
    extras: list[dict[str, Any]], masked: bool, length: int
) -> None:
    batch = batch_of([GroupSpec(rewards=(0.0, 2.0, 4.0), extras=extras, prompt=3)])
    examples = Examples.of(batch, rows=[2, 0, 1])
    computed = replace(Examples.of(batch, rows=[2, 0, 1]))  # Its fields are arrays.
    assert np.isnan(computed.generator_log_probs).any()
    assert set(computed.advantages[computed.loss_mask]) == {-3, 0, 3}
    prompts = batch.prompt_lengths[[2, 0, 1]]
    outputs = np.arange(len(computed.tokens)) >= np.repeat(
        computed.offsets[:-1] + prompts, computed.lengths
    )
    assert np.array_equal(computed.loss_mask, outputs) == (not masked)
    plan = plan_packs(examples.lengths, length, ranks=2, too_long="truncate")
    for rank in range(2):
        found = Packs.of(examples, plan, rank=rank, pad_id=7).arrays()
        for name, array in Packs.of(computed, plan, rank=rank, pad_id=7).arrays().items():
            assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.proves("D5")
@pytest.mark.parametrize(
    ("name", "value"), [("loss_mask", False), ("advantages", 7), ("generator_log_probs", -9)]
)
def test_packs_have_what_was_written_to_the_examples_before(name: str, value: float) -> None:
    batch = batch_of([GroupSpec(rewards=(0.0, 2.0, 4.0), prompt=3)])
    examples = Examples.of(batch, rows=[2, 0, 1])
    for outputs in ([3, 4, 5], [9]):
        getattr(examples, name)[outputs] = value
    packs = Packs.of(examples, plan_packs(examples.lengths, 18))
    (order,) = packs.examples
    spans = [slice(*examples.offsets[i : i + 2]) for i in order.tolist()]
    for field in ("loss_mask", "advantages", "generator_log_probs"):
        expected = np.concatenate([getattr(examples, field)[span] for span in spans])
        assert np.array_equal(getattr(packs, field)[0], expected), field
    assert np.count_nonzero(getattr(packs, name) == value) >= 4


@pytest.mark.proves("D5")
def test_an_example_without_a_token_may_stand_where_another_begins() -> None:
    examples = examples_of([4, 0])
    plan = plan_packs(examples.lengths, 8)
    placed = replace(plan, start=np.array([2, 2], np.int32))
    packs = Packs.of(examples, placed)
    assert packs.segment_ids.tolist() == [[0, 0, 2, 2, 2, 2, 0, 0]]


@pytest.mark.proves("D5")
def test_the_arrays_of_packs_are_theirs_alone_to_write_to() -> None:
    examples = examples_of([5, 3, 4, 2])
    plan = plan_packs(examples.lengths, 6, ranks=2)
    before = {name: array.tobytes() for name, array in examples.arrays().items()}
    kept = Packs.of(examples, plan).arrays()
    of_kept = {name: array.tobytes() for name, array in kept.items()}
    for array in Packs.of(examples, plan).arrays().values():
        array.view(np.uint8)[...] ^= 0xFF
    assert {name: array.tobytes() for name, array in examples.arrays().items()} == before
    assert {name: array.tobytes() for name, array in kept.items()} == of_kept


def test_a_plan_of_other_examples_is_refused() -> None:
    examples = examples_of([3, 4])
    plan = plan_packs(examples.lengths, 8, ranks=2)
    with pytest.raises(InvalidRequest, match="rank is 2; the plan has 2 ranks, from 0"):
        Packs.of(examples, plan, rank=2)
    with pytest.raises(InvalidRequest, match="the plan is of 2 examples and these are 1"):
        Packs.of(examples_of([3]), plan)
    rank = int(plan.rank[0])
    with pytest.raises(InvalidRequest, match="example 0 has 4 tokens and the plan 3 of it"):
        Packs.of(examples_of([4, 4]), plan, rank=rank)


def test_a_plan_says_in_one_line_what_it_is() -> None:
    plan = plan_packs([3, 4], 8, ranks=2)
    assert repr(plan) == "PackPlan(2 examples in 2 x 1 packs of 8 tokens)"
    assert replace(plan, ranks=2).metrics()["packs"] == 2


def test_log_probs_that_a_caller_has_at_prompts_are_in_no_pack() -> None:
    """As of a trainer that computes its own for whole sequences; NaN would make any sum one."""
    batch = batch_of([GroupSpec(rewards=(0.0, 1.0)), GroupSpec(rewards=(1.0, 2.0))])
    anywhere = np.full(len(batch.tokens), -2.0, np.float32)
    anywhere[batch.offsets[0]] = np.nan
    examples = Examples.of(replace(batch, logprobs=anywhere))
    assert examples.loss_mask.sum() == len(batch.tokens) - batch.prompt_lengths.sum()
    packs = Packs.of(examples, plan_packs(examples.lengths, 16))
    assert packs.generator_log_probs.tolist() == np.where(packs.loss_mask, -2.0, 0.0).tolist()
    assert set(examples.generator_log_probs[~examples.loss_mask].tolist()) == {0.0}
