"""Draws ``learning_curve.png``: reward, policy lag and ready groups over the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from examples.demo.history import History
from examples.demo.settings import REWARD_FLOOR

mpl.use("Agg")  # No display is needed.

from matplotlib import pyplot as plt

_SMOOTH = 10
_COLOURS = ("#1f77b4", "#d95f02", "#1b9e77")


def draw_curve(
    history: History,
    environments: Sequence[str],
    path: Path,
    *,
    title: str = "Rollstream demo: a policy that learns",
) -> None:
    """Writes the picture."""
    steps = np.array([s.step for s in history.steps])
    figure, (top, middle, bottom) = plt.subplots(
        3, 1, figsize=(9, 8), sharex=True, height_ratios=(3, 1.3, 1.3), layout="constrained"
    )
    for environment, colour in zip(environments, _COLOURS, strict=False):
        seen = np.array([s.rewards.get(environment, np.nan) for s in history.steps])
        top.plot(steps, seen, color=colour, alpha=0.25, linewidth=0.8)
        top.plot(steps, _smoothed(seen), color=colour, linewidth=2, label=environment)
    top.axhline(REWARD_FLOOR, color="grey", linestyle=":", linewidth=1)
    top.set(ylabel="mean reward", ylim=(0, 1.02), title=title)
    top.legend(loc="lower right", frameon=False)
    middle.plot(steps, [s.lag_mean for s in history.steps], color="#444444", label="mean")
    middle.plot(
        steps, [s.lag_max for s in history.steps], color="#bbbbbb", linewidth=0.8, label="largest"
    )
    middle.set(ylabel="policy lag\n(steps)", ylim=(0, None))
    middle.legend(loc="upper right", frameon=False, ncols=2)
    bottom.plot(steps, [s.groups_ready for s in history.steps], color="#7570b3")
    bottom.set(ylabel="groups ready", xlabel="optimizer step", ylim=(0, None))
    for step, text in history.marks:
        for axes in (top, middle, bottom):
            axes.axvline(step, color="crimson", linewidth=0.8, linestyle="--")
        top.annotate(text, (step, 0.02), rotation=90, fontsize=8, color="crimson", ha="right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A trailing mean that leaves gaps out."""
    return np.array(
        [
            np.nanmean(part) if np.isfinite(part).any() else np.nan
            for part in (values[max(0, i - _SMOOTH + 1) : i + 1] for i in range(len(values)))
        ]
    )
