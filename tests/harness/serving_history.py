"""What a sampler decided about every sealed group, counted from its decision log alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from rollstream.schemas.events import (
    BatchServed,
    Checkpointed,
    ChosenGroup,
    Dropped,
    Event,
    Flushed,
    Replaced,
    Resumed,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef, ref_of
from rollstream.streams.folds.sampler.state import SamplerState


def serving_problems(
    decisions: Iterable[Event], sealed: Collection[GroupRef], state: SamplerState
) -> list[str]:
    """Groups of which it is not true that they are in one batch, dropped once, or still waiting.

    Args:
        decisions: those of the decision log that count, in order.
        sealed: the groups to train on, of all seal logs.
        state: what another reader makes of the same logs: who still waits is asked of it alone.
    """
    history = _History(set(sealed))
    for event in decisions:
        history.add(event)
    waiting = {*state.ready.refs(), *state.waiting}
    ended = history.dropped | history.batch_of.keys()
    problems = history.problems
    problems += [f"{ref} waits and is served or dropped" for ref in sorted(waiting & ended)]
    problems += [f"{ref} waits and was never sealed" for ref in sorted(waiting - history.sealed)]
    return problems + [
        f"{ref} is neither served nor dropped, and does not wait"
        for ref in sorted(history.sealed - ended - waiting)
    ]


def groups_of(log: PartitionAddress, offset: int, event: Event) -> list[GroupRef]:
    """The groups that an event of a seal log sealed."""
    count = len(event.groups) if isinstance(event, Flushed) else 0
    return [GroupRef(*log, offset, index) for index in range(count)]


def bytes_held(decisions: Iterable[Event]) -> Mapping[tuple[int, int], set[bytes]]:
    """By trainer epoch and step, the digests of the batches that the step had in that epoch: those
    that were served or replaced in it, and those that its resume held."""
    epoch = 0
    now: dict[int, bytes] = {}
    held: defaultdict[tuple[int, int], set[bytes]] = defaultdict(set)
    for event in decisions:
        match event:
            case BatchServed() | Replaced():
                now[event.step] = event.digest
                held[epoch, event.step].add(event.digest)
            case Resumed():
                epoch = event.trainer_epoch
                newest = -1 if event.checkpointed_step is None else event.checkpointed_step
                if event.later == "release":
                    now = {step: digest for step, digest in now.items() if step <= newest}
                for step, digest in now.items():
                    held[epoch, step].add(digest)
            case _:
                pass
    return held


class _History:
    """Where each group is after the decisions so far."""

    def __init__(self, sealed: set[GroupRef]) -> None:
        self.sealed = sealed
        self.batch_of: dict[GroupRef, int] = {}
        self.dropped: set[GroupRef] = set()
        self.problems: list[str] = []
        self._batches: dict[int, list[GroupRef]] = {}
        self._final: set[int] = set()

    def add(self, event: Event) -> None:
        match event:
            case BatchServed():
                if event.step in self._batches:
                    self.problems.append(f"step {event.step} was served twice")
                self._final.discard(event.step)
                self._batches[event.step] = [self._serve(g, event.step) for g in event.groups]
            case Replaced():
                batch = self._batches[event.step]
                for slot, chosen in zip(event.slots.tolist(), event.groups, strict=True):
                    del self.batch_of[batch[slot]]
                    self._drop(batch[slot])
                    batch[slot] = self._serve(chosen, event.step)
            case Dropped():
                for group in event.groups:
                    self._drop(ref_of(group))
            case Checkpointed():
                self._finish(event.step)
            case Resumed():
                self._resume(event)
            case _:
                pass

    def _serve(self, chosen: ChosenGroup, step: int) -> GroupRef:
        ref = ref_of(chosen)
        if ref not in self.sealed:
            self.problems.append(f"{ref} was served and never sealed")
        if ref in self.dropped:
            self.problems.append(f"{ref} was served for step {step} and dropped before")
        if ref in self.batch_of:
            self.problems.append(f"{ref} was served for steps {self.batch_of[ref]} and {step}")
        self.batch_of[ref] = step
        return ref

    def _drop(self, ref: GroupRef) -> None:
        if ref not in self.sealed:
            self.problems.append(f"{ref} was dropped and never sealed")
        if ref in self.batch_of:
            self.problems.append(f"{ref} was dropped and is in the batch of {self.batch_of[ref]}")
        if ref in self.dropped:
            self.problems.append(f"{ref} was dropped twice")
        self.dropped.add(ref)

    def _resume(self, event: Resumed) -> None:
        """Of later batches, those that are not final give their groups back."""
        newest = -1 if event.checkpointed_step is None else event.checkpointed_step
        self._finish(newest)
        if event.later == "release":
            for step in [at for at in self._batches if at > newest]:
                for ref in self._batches.pop(step):
                    if step not in self._final:
                        del self.batch_of[ref]

    def _finish(self, newest: int) -> None:
        self._final |= {step for step in self._batches if step <= newest}
