"""A sampler's decisions as counts: the fold over ``sampler.<name>`` that status needs. Pure."""

from __future__ import annotations

from collections import Counter

from rollstream.schemas.events import (
    Acked,
    BatchServed,
    Checkpointed,
    Claimed,
    Dropped,
    Event,
    PolicyPublished,
    Replaced,
    Resumed,
)


class SamplerProgress:
    """Counts over the events that count, in the order of offsets.

    Attributes:
        owner: of the newest claim.
        taken: groups that cannot be served any more: served, dropped or replaced.
        batches: served so far.
        acked: batches that were acked.
        open: step to number of groups, for batches that are not final.
        next_step: behind the newest batch.
        policy_step: newest that was published; -1: none.
        decided_ts: broker's time of the newest decision that is no drop, microseconds; before there
            is one, of the oldest claim. None: there is neither.
        dropped_since: groups dropped behind that decision, by reason.
    """

    def __init__(self) -> None:
        self.owner = ""
        self.taken = 0
        self.batches = 0
        self.acked = 0
        self.open: dict[int, int] = {}
        self.next_step = 0
        self.policy_step = -1
        self.decided_ts: int | None = None
        self.dropped_since: Counter[str] = Counter()

    def apply(self, timestamp_us: int, event: Event) -> None:
        """The next event that counts."""
        match event:
            case Claimed():
                self.owner = event.owner
                if self.decided_ts is None:
                    self.decided_ts = timestamp_us
                return
            case Dropped():
                # No trainer gets further by a drop: where every group is dropped, it waits.
                self.taken += len(event.groups)
                self.dropped_since[event.reason] += len(event.groups)
                return
            case BatchServed():
                self.batches += 1
                self.taken += len(event.groups)
                self.open[event.step] = len(event.groups)
                self.next_step = max(self.next_step, event.step + 1)
            case Acked():
                self.acked += 1
            case Replaced():
                self.taken += len(event.groups)
            case Checkpointed():
                self.open = {s: groups for s, groups in self.open.items() if s > event.step}
            case Resumed():
                self._resume(event)
            case PolicyPublished():
                self.policy_step = max(self.policy_step, event.step)
            case _:
                return
        self.decided_ts = timestamp_us
        self.dropped_since.clear()

    def _resume(self, event: Resumed) -> None:
        later = {s: groups for s, groups in self.open.items() if s >= event.first_step}
        if event.later == "release":
            self.taken -= sum(later.values())
            later = {}
        # Batches up to the checkpoint are final with the resume.
        self.open = later
        self.next_step = event.first_step
        self.policy_step = min(self.policy_step, event.first_step)
