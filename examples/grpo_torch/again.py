"""Whether a run that lost a rank is the run that it would have been without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from examples.grpo_torch import settings
from examples.grpo_torch.ranks import Ranks
from examples.grpo_torch.trained import Trained, recorded
from rollstream.sampler.history import replay_step


@dataclass(frozen=True)
class Comparison:
    """A step as it was first served, and whether all later answers were the same bytes.

    Attributes:
        times: how often ranks took it, in the killed run and in the one without a kill.
        digests: all of them, and that which is recomputed from the logs, are one.
        weights: after it, those of the first time, after the resume, and without a kill are one.
    """

    step: int
    times: int
    digests: bool
    weights: bool


def train_again(ranks: Ranks, steps: int) -> list[Comparison]:
    """Trains the steps once more from the first weights, without a kill, on what the log holds, and
    compares each digest and all weights with those of the run in ``ranks``.

    Generation is asynchronous, so that another run would sample other rollouts. This one is asked
    for the same steps: what they are made of was decided by the log, not by who was killed.
    """
    ranks.report(f"training steps 0 to {steps - 1} once more, without a kill …")
    unkilled = replace(ranks, folder=ranks.folder / "again", steps=steps)
    unkilled.train()
    taken = [*_of_all_ranks(ranks), *_of_all_ranks(unkilled)]
    return [_compared(ranks, step, [t for t in taken if t.step == step]) for step in range(steps)]


def _compared(ranks: Ranks, step: int, taken: Sequence[Trained]) -> Comparison:
    recomputed = replay_step(settings.SAMPLER, step, config=ranks.config, clock=ranks.clock)
    digests = {t.digest for t in taken} | {one.digest.hex() for one in recomputed}
    return Comparison(
        step=step,
        times=len({t.epoch for t in taken}),
        digests=len(digests) == 1,
        weights=len({t.weights for t in taken}) == 1,
    )


def _of_all_ranks(ranks: Ranks) -> list[Trained]:
    paths = [ranks.folder / f"rank-{rank}.jsonl" for rank in range(settings.RANKS)]
    return [trained for path in paths for trained in recorded(path)]
