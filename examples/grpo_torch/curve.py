"""Draws ``learning_curve.png``: reward of batches and on held-out problems, and policy lag."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from examples.grpo_torch.settings import HELD_OUT, REWARD_AFTER, REWARD_BEFORE
from examples.grpo_torch.trained import Trained
from rollstream.sampler import Evaluation

mpl.use("Agg")  # No display is needed.

from matplotlib import pyplot as plt


def draw_curve(
    trained: Sequence[Trained],
    held_out: Sequence[Evaluation],
    killed_at: int | None,
    path: Path,
) -> None:
    """Writes the picture."""
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(9, 6), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    steps = [one.step for one in trained]
    top.plot(steps, [t.reward for t in trained], color="#1f77b4", alpha=0.5, label="batches")
    top.plot(
        [one.weight_step for one in held_out],
        [one.total.reward_mean for one in held_out],
        color="#d95f02",
        marker="o",
        linewidth=2,
        label=f"{HELD_OUT} held-out problems",
    )
    for goal in (REWARD_BEFORE, REWARD_AFTER):
        top.axhline(goal, color="grey", linestyle=":", linewidth=1)
    top.set(ylabel="mean reward", ylim=(0, 1.02), title="GRPO: spelling backward")
    top.legend(loc="lower right", frameon=False)
    bottom.plot(steps, [t.lag for t in trained], color="#444444")
    bottom.set(ylabel="mean policy lag\n(steps)", xlabel="optimizer step", ylim=(0, None))
    if killed_at is not None:
        for axes in (top, bottom):
            axes.axvline(killed_at, color="crimson", linewidth=0.8, linestyle="--")
        top.annotate(
            "kill -9", (killed_at, 0.5), rotation=90, fontsize=8, color="crimson", ha="right"
        )
    figure.savefig(path, dpi=120)
    plt.close(figure)
