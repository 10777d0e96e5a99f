"""Why there are not enough groups, in words that say what to do. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rollstream.folds.group.eligible import Waits
from rollstream.folds.remedies import describe_waiting, why_dropped
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.ratio import Held
from rollstream.sampler.errors import NotEnoughGroups
from rollstream.schemas.reasons import DropReason
from rollstream.streams.folds.refs import ref_of


class Shortage(NamedTuple):
    """A command waits for ``wanted`` groups for the batch of ``step``; ``sources`` names
    the environments that they may come from, in words, and ``quotas`` how many from which.
    ``held``: why it would wait if they were there. ``unfit``: why groups are not chosen that are
    not dropped on record."""

    step: int
    wanted: int
    sources: str
    quotas: Sequence[tuple[Sequence[str], int]]
    held: Held | None = None
    unfit: Sequence[str] = ()

    def error(self, state: SamplerState) -> NotEnoughGroups:
        """The error for a command that waited in vain: what is ready, waits, and was dropped."""
        ready = dict(sorted(state.ready.counts().items()))
        waiting = Counter[Waits](state.waiting.values())
        if state.evaluated.groups:
            waiting["eval"] = state.evaluated.groups
        totals = state.outcomes.totals()
        dropped = {why.value: totals[why] for why in DropReason if why in totals}
        name, choosing = state.name, state.choosing
        reasons = [*self.unfit] if self.held is None else [self.held.why(name), *self.unfit]
        reasons += describe_waiting(waiting, name, choosing, state.late.environments_behind())
        reasons += [
            f"{n} were dropped as {why}: "
            + why_dropped(DropReason(why), name, choosing, state.policy_epoch)
            for why, n in sorted(dropped.items())
        ]
        reasons += _out_of_reach(state, totals.get("retired", 0))
        reasons += [
            f"{log} is read no more, so no group that was sealed there later comes: {why}"
            for log, why in state.aside.items()
        ]
        no_more = "no more were sealed"
        if sum(ready.values()) >= self.wanted:
            no_more = "too few of the ready ones are what is asked for"
        message = (
            f"step {self.step} needs {self.wanted} groups ({self.sources}); "
            f"ready: {ready or 'none'}. "
            + (". ".join(reasons) or f"None waits and none was dropped: {no_more}")
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


def _out_of_reach(state: SamplerState, retired: int) -> list[str]:
    """Of groups that neither wait nor were dropped: which ones, and what gives them back."""
    reasons = []
    limit = state.choosing.max_samples
    batches = [batch for batch in state.open_batches() if batch.status is None]
    unacked = {ref_of(group) for batch in batches for group in batch.groups}
    if limit != 1 and unacked:
        uses = "they are" if limit < 0 else f"those used less often than max_samples = {limit} are"
        reasons.append(
            f"{len(unacked):,} are in batches that are not acked: {uses} ready again after "
            "ack(batch)"
        )
    if retired:
        reasons.append(
            f"{retired:,} were retired: their files are deleted (`rollstream retain`), since every "
            "sampler that was configured then was done with them; only new groups can be served"
        )
    return reasons
