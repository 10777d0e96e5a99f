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
from rollstream.streams.folds.refs import GroupRef, ref_of


class SamplerProgress:
    """Counts over the events that count, in the order of offsets.

    Attributes:
        owner: of the newest claim.
        taken: groups that cannot be served any more: served, dropped or replaced.
        batches: served so far.
        open: step to groups, for batches that are not final.
        next_step: the first step that was not served.
        policy_step: newest that was published; -1: none.
        decided_ts: broker's time of the newest decision that is no drop, microseconds; before there
            is one, of the oldest claim. None: there is neither.
        dropped_since: groups dropped behind that decision, by reason.
    """

    def __init__(self) -> None:
        self.owner = ""
        self.taken: set[GroupRef] = set()
        self.batches = 0
        self.open: dict[int, list[GroupRef]] = {}
        self.next_step = 0
        self.policy_step = -1
        self.decided_ts: int | None = None
        self.dropped_since: Counter[str] = Counter()
        self._acked: set[str] = set()  # By id: a batch that is replayed is acked again.
        self._final_end = 0  # Behind the newest final step that is held; every older one is final.

    @property
    def acked(self) -> int:
        """Batches that were acked."""
        return len(self._acked)

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
                self.taken.update(map(ref_of, event.groups))
                self.dropped_since[event.reason] += len(event.groups)
                return
            case BatchServed():
                self.batches += 1
                self.open[event.step] = [ref_of(group) for group in event.groups]
                self.taken.update(self.open[event.step])
                self.next_step = event.step + 1
            case Acked():
                self._acked.add(event.batch_id)
            case Replaced():
                self._replace(event)
            case Checkpointed():
                self._finish(event.step)
            case Resumed():
                self._resume(event)
            case PolicyPublished():
                self.policy_step = max(self.policy_step, event.step)
            case _:
                return
        self.decided_ts = timestamp_us
        self.dropped_since.clear()

    def _replace(self, event: Replaced) -> None:
        groups = self.open[event.step]
        for index, chosen in zip(event.slots.tolist(), event.groups, strict=True):
            groups[index] = ref_of(chosen)  # What stood there stays taken, whatever is released.
        self.taken.update(map(ref_of, event.groups))

    def _finish(self, step: int) -> None:
        for at in [at for at in self.open if at <= step]:
            del self.open[at]
            self._final_end = max(self._final_end, at + 1)

    def _resume(self, event: Resumed) -> None:
        self._finish(event.first_step - 1)
        if event.later == "release":
            for groups in self.open.values():
                self.taken.difference_update(groups)
            self.open.clear()
            self._final_end = min(self._final_end, event.first_step)
        self.next_step = max((event.first_step, self._final_end, *(at + 1 for at in self.open)))
        self.policy_step = min(self.policy_step, event.first_step)
