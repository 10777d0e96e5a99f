"""Rollouts that were aborted before their first token, all the way into a loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from harness.example_files import example
from harness.published_run import Run
from rollstream.sampler import (
    Batch,
    Examples,
    GrpoBatchMaker,
    Packs,
    RlooBatchMaker,
    TrainingBatches,
    plan_packs,
)
from rollstream.sampler.training.examples.advantages import Advantage
from rollstream.sampler.training.examples.prompt_response import PromptResponse

LOSSES: Any = example("05_losses_in_numpy.py")
ABORTED: dict[str, Any] = {"output_tokens": [], "stop_reason": "abort"}


@pytest.fixture(params=[True, False], ids=["alone", "among others"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Two groups: one of rollouts without output, and one with or without."""
    run = Run(tmp_path)
    run.publish("aborted", **ABORTED)
    run.publish("other", **(ABORTED if request.param else {}))
    run.seal(2)
    return run


def batch_of(run: Run) -> Batch:
    with run.sampler() as sampler:
        sampler.resume(None)
        return sampler.next_batch(0, 2, timeout_s=0.0)


def check_finite(values: Any) -> None:
    assert np.isfinite(values).all()


def test_its_batch_and_rectangles_are_whole(run: Run) -> None:
    batch = batch_of(run)
    assert sorted(batch.prompt_lengths.tolist()) == [2] * 4
    with np.errstate(all="raise"):
        check_finite(list(batch.metrics().values()))
        for layout in ("sequence", "prompt_response"):
            padded = batch.padded(8, 0, layout=layout)
            assert padded.loss_mask.sum() == batch.loss_mask.sum()


@pytest.mark.parametrize("advantage", get_args(Advantage))
def test_its_packs_and_losses_are_numbers(run: Run, advantage: Advantage) -> None:
    batch = batch_of(run)
    with np.errstate(all="raise"):
        examples = Examples.of(batch, advantage)
        check_finite(examples.advantages)
        check_finite(list(examples.metrics().values()))
        plan = plan_packs(examples.lengths, 8, ranks=2)
        check_finite(list(plan.metrics(examples).values()))
        packs = [Packs.of(examples, plan, rank=rank, pad_id=0) for rank in range(2)]
        assert sum(int(one.loss_mask.sum()) for one in packs) == examples.loss_mask.sum()
        sides = PromptResponse.of(batch, examples, 0)
        assert int(sides.loss_mask.sum()) == examples.loss_mask.sum()
        log_probs = np.full(len(examples.tokens), -0.5)
        loss = LOSSES.grpo_loss(examples, log_probs, log_probs)
        check_finite([loss.value, *loss.gradient, loss.clipped])


@pytest.mark.parametrize("maker", [GrpoBatchMaker, RlooBatchMaker])
def test_makers_make_steps_of_them(run: Run, maker: Any) -> None:
    with run.sampler() as sampler, np.errstate(all="raise"):
        sampler.resume(None)
        made = TrainingBatches(sampler, maker(), num_groups=2, batch_size=4).next(0, timeout_s=0.0)
        check_finite(made.examples.advantages)
        check_finite(list(made.examples.metrics().values()))
