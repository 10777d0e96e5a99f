"""What a sampler decided about every sealed group, counted from its decision log alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from rollstream.folds import state
from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.state import SamplerState
from rollstream.schemas.events import (
    Acked,
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


def serving_problems(
    decisions: Iterable[Event], sealed: Collection[GroupRef], folded: SamplerState
) -> list[str]:
    """Groups of which it is not true that they are in one batch at a time and in no more than
    ``max_samples``, dropped once, or still waiting.

    Args:
        decisions: those of the decision log that count, in order.
        sealed: the groups to train on, of all seal logs.
        folded: what another reader makes of the same logs: who still waits is asked of it alone.
    """
    history = _History(set(sealed), folded.choosing.max_samples)
    for event in decisions:
        history.add(event)
    waiting = {*folded.ready.refs(), *folded.waiting}
    held = {ref for batch in history.carriable().values() for ref in batch.all_refs}
    ended = held | history.dropped | {ref for ref in history.batches_of if history.is_taken(ref)}
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

    def __init__(self, sealed: set[GroupRef], max_samples: int) -> None:
        self.sealed = sealed
        self.batches_of: defaultdict[GroupRef, list[int]] = defaultdict(list)
        self.dropped: set[GroupRef] = set()
        self._replaced: set[GroupRef] = set()
        self._skipped: defaultdict[int, set[GroupRef]] = defaultdict(set)  # By batch.
        self.problems: list[str] = []
        self._batches: dict[int, list[GroupRef]] = {}
        self._numbers: dict[int, int] = {}  # By step: a step may have another batch later.
        self._final: set[int] = set()
        self._acked: set[int] = set()
        self._max_samples = max_samples
        self._count = 0
        self._step_of: dict[int, int] = {}
        self._shaped: dict[int, ServedBatch] = {}
        self._forgotten: set[int] = set()

    def is_taken(self, ref: GroupRef) -> bool:
        """Whether the group is in a batch that is not acked, or whose ack skipped it, or used
        up."""
        numbers = self.batches_of[ref]
        if any(ref in self._skipped[number] for number in numbers):
            return True
        done = self._final | self._acked
        return not done.issuperset(numbers) or 0 <= self._max_samples <= len(numbers)

    def add(self, event: Event) -> None:
        match event:
            case BatchServed():
                if event.step in self._batches:
                    self.problems.append(f"step {event.step} was served twice")
                self._count += 1
                self._numbers[event.step] = self._count
                self._step_of[self._count] = event.step
                self._batches[event.step] = [self._serve(g, event.step) for g in event.groups]
                self._carry(event)
            case Replaced():
                batch = self._batches[event.step]
                for slot, chosen in zip(event.slots.tolist(), event.groups, strict=True):
                    self.batches_of[batch[slot]].remove(self._numbers[event.step])
                    if self._max_samples == 1 or batch[slot] not in self.dropped:
                        # Else it was, after another use of it. A batch that is replayed may have
                        # it too, and keeps it.
                        self._drop(batch[slot], kept=self._max_samples != 1)
                    self._replaced.add(batch[slot])
                    batch[slot] = self._serve(chosen, event.step)
                if event.step in self._shaped:
                    self._shaped[event.step] = self._shaped[event.step].replaced_by(event, 0)
            case Dropped():
                for group in event.groups:
                    self._drop(ref_of(group))
            case Acked():
                number, batch = self._numbers[event.step], self._batches[event.step]
                self._acked.add(number)
                self._skipped[number].update(
                    batch[slot] for slot in (*event.skipped, *event.filtered)
                )
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
        for at, shaped in self.carriable().items():
            if ref in shaped.all_refs and at != step:
                self.problems.append(
                    f"{ref} was chosen for step {step} and may be carried from step {at}"
                )
        numbers = self.batches_of[ref]
        if numbers and self.is_taken(ref):
            before = self._step_of[numbers[-1]]
            self.problems.append(f"{ref} was served for steps {before} and {step}")
        numbers.append(self._numbers[step])
        return ref

    def _carry(self, event: BatchServed) -> None:
        """A group may be in several batches so: those of the steps that follow one another."""
        batch, before = ServedBatch.of(event, 0), self._shaped.get(event.step - 1)
        had = () if before is None else before.all_refs
        self.problems += [
            f"step {event.step} carries {ref}, which step {event.step - 1} has not"
            for ref in batch.carried_refs
            if ref not in had
        ]
        if batch.is_shaped:
            self._shaped[event.step] = batch

    def carriable(self) -> dict[int, ServedBatch]:
        """Those that the step after may carry from: of final batches that are held the newest step,
        and the newest final one."""
        final = [step for step in self._batches if self._numbers[step] in self._final]
        newest = max(self._batches, default=-1), max(final, default=-1)
        return {
            step: batch
            for step, batch in self._shaped.items()
            if step in self._batches
            and self._numbers[step] not in self._forgotten
            and (step in newest or step not in final)
        }

    def _forget(self) -> None:
        """Final batches beyond the newest are no longer held."""
        held = [
            step
            for step in sorted(self._batches)
            if self._numbers[step] in self._final - self._forgotten
        ]
        self._forgotten |= {self._numbers[step] for step in held[: -state.FINAL_BATCHES_KEPT]}

    def _drop(self, ref: GroupRef, *, kept: bool = False) -> None:
        if ref not in self.sealed:
            self.problems.append(f"{ref} was dropped and never sealed")
        if self.batches_of[ref] and self.is_taken(ref) and not kept:
            step = self._step_of[self.batches_of[ref][-1]]
            self.problems.append(f"{ref} was dropped and is in the batch of {step}")
        if ref in self.dropped:
            self.problems.append(f"{ref} was dropped twice")
        self.dropped.add(ref)

    def _resume(self, event: Resumed) -> None:
        """Of later batches, those that are not final give their groups back."""
        newest = -1 if event.checkpointed_step is None else event.checkpointed_step
        self._finish(newest)
        later = {number for step, number in self._numbers.items() if step > newest}
        self._acked -= later
        for number in later - self._final:
            self._skipped[number].clear()
        if event.later == "release":
            for step in [at for at in self._batches if at > newest]:
                for ref in self._batches.pop(step):
                    if self._numbers[step] not in self._final:
                        self.batches_of[ref].remove(self._numbers[step])
                        if ref not in self._replaced:
                            self.dropped.discard(ref)

    def _finish(self, newest: int) -> None:
        self._final |= {self._numbers[step] for step in self._batches if step <= newest}
        self._forget()
