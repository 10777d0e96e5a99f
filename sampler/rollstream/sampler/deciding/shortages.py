"""Why there are not enough groups, in words that say what to do. Pure."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from rollstream.sampler.errors import NotEnoughGroups
from rollstream.schemas.reasons import DropReason
from rollstream.streams.folds.sampler.eligible import Waits
from rollstream.streams.folds.sampler.remedies import describe_waiting, why_dropped
from rollstream.streams.folds.sampler.state import SamplerState


class Shortage(NamedTuple):
    """A command waits for ``wanted`` groups for the batch of ``step``; ``sources`` names
    the environments that they may come from, in words."""

    step: int
    wanted: int
    sources: str

    def error(self, state: SamplerState) -> NotEnoughGroups:
        """The error for a command that waited in vain: what is ready, waits, and was dropped."""
        ready = {name: count for name, count in sorted(state.ready.counts().items()) if count}
        waiting = Counter[Waits](state.waiting.values())
        if state.eval_groups:
            waiting["eval"] = state.eval_groups
        totals = state.outcomes.totals()
        dropped = {why.value: totals[why] for why in DropReason if why in totals}
        name, choosing = state.name, state.choosing
        reasons = describe_waiting(waiting, name, choosing)
        reasons += [
            f"{n} were dropped as {why}: "
            + why_dropped(DropReason(why), name, choosing, state.policy_epoch)
            for why, n in sorted(dropped.items())
        ]
        message = (
            f"step {self.step} needs {self.wanted} groups ({self.sources}); "
            f"ready: {ready or 'none'}. "
            + (". ".join(reasons) or "None waits and none was dropped: no more were sealed")
            + ". Groups that are not sealed yet are not counted here: see with `rollstream status` "
            "that env workers and sealers run, then wait longer, or ask for fewer"
        )
        return NotEnoughGroups(
            message,
            step=self.step,
            wanted=self.wanted,
            ready=ready,
            waiting=dict[str, int](waiting.items()),
            dropped=dropped,
        )
