"""The loss of ``examples/05_losses_in_numpy.py``, by hand, by loops and by finite differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.batches import batch_of
from harness.example_files import example
from harness.groups import GroupSpec
from rollstream.sampler import Examples

LOSSES: Any = example("05_losses_in_numpy.py")


def examples_with_a_mask() -> Examples:
    """Two groups, one of whose rollouts lacks log-probs and one a token of its output."""
    extras: list[dict[str, Any]] = [{"loss_mask": (True, False, True)}, {"logprobs": None}]
    specs = [GroupSpec(rewards=(0.0, 1.0, 1.0), extras=extras), GroupSpec(output=6)]
    return Examples.of(batch_of(specs), "grpo")


@pytest.mark.proves("A24")
def test_the_loss_of_four_tokens_worked_out_by_hand() -> None:
    specs = [GroupSpec(prompt=1, output=2, extras=[{"logprobs": [-1.0, -1.0]}] * 2)]
    examples = Examples.of(batch_of(specs))
    assert examples.advantages.tolist() == [0, -1, -1, 0, 1, 1]
    old = np.array([np.nan, -1, -1 + math.log(4), np.nan, -1, -1 + math.log(0.5)])
    now = old + np.log([1, 0.5, 1.5, 1, 1.1, 1.5])
    # Weights 1, 2 (truncated), 1, 0.5; ratios 0.5 and 1.5 of the last are clipped.
    loss = LOSSES.grpo_loss(examples, now, old)
    assert loss.value == pytest.approx((0.8 + 2 * 1.5 - 1.1 - 0.5 * 1.28) / 4)
    assert loss.gradient == pytest.approx([0, 0, 0.75, 0, -0.275, 0])
    assert loss.clipped == 0.5


@pytest.mark.proves("A24")
@given(seed=st.integers(0, 1000), spread=st.sampled_from([0.01, 0.3, 1.0]))
def test_the_gradient_is_that_of_finite_differences(seed: int, spread: float) -> None:
    examples = examples_with_a_mask()
    random, total = np.random.default_rng(seed), len(examples.tokens)
    old = random.normal(-1.0, 0.5, total)
    now = old + random.normal(0.0, spread, total)
    found = LOSSES.grpo_loss(examples, now, old)
    assert found.value == pytest.approx(naive_loss(examples, now, old))
    for token in range(total):
        sides = []
        for step in (1e-6, -1e-6):
            moved = now.copy()
            moved[token] += step
            sides.append(naive_loss(examples, moved, old))
        assert found.gradient[token] == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-6)
    assert not found.gradient[~examples.loss_mask].any()


def naive_loss(examples: Examples, now: Any, old: Any) -> float:
    """Token after token."""
    terms: list[float] = []
    for token in range(len(examples.tokens)):
        if not examples.loss_mask[token]:
            continue
        advantage = float(examples.advantages[token])
        ratio = math.exp(now[token] - old[token])
        kept = min(max(ratio, 1 - LOSSES.CLIP_LOW), 1 + LOSSES.CLIP_HIGH)
        generator = float(examples.generator_log_probs[token])
        weight = 1.0
        if not math.isnan(generator):
            weight = min(math.exp(old[token] - generator), LOSSES.WEIGHT_MAX)
        terms.append(-weight * min(ratio * advantage, kept * advantage))
    return sum(terms) / len(terms)


def test_examples_of_no_batch_have_no_loss() -> None:
    loss = LOSSES.grpo_loss(Examples.of(batch_of()), np.empty(0), np.empty(0))
    assert (loss.value, loss.clipped) == (0.0, 0.0)
