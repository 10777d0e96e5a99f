"""Where the trainer left weights that it had made: one branch a policy epoch. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rollstream.schemas.events import PolicyPublished, Resumed
from rollstream.schemas.order import UNKNOWN_STEP, Branch


class Branches:
    """What every decision knew of them is kept, so that a batch is marked alike whenever it is
    read. It grows by one or two entries a resume.

    A trainer's checkpoint after batch n holds weights n + 1: these are common to both branches. A
    pool's reader begins after a fetch, and its trainer has done at most as many optimizer steps.
    Which weights it went on with it says, or the first policy it publishes does: from its step on
    weights of older epochs are other ones.

    Attributes:
        begun: as they are now, by policy epoch.
    """

    def __init__(self) -> None:
        self.begun: dict[int, Branch] = {}
        self._known_at: dict[int, Branch] = {}  # By offset of the decision that says so.
        self._of_reader: int | None = None  # Epoch that a pool's reader did not say a step of.
        self._published = UNKNOWN_STEP  # The lowest step in that epoch.

    def resume(self, offset: int, event: Resumed) -> None:
        """A resume begins an epoch, or goes on in one of which nothing was used."""
        said = event.weight_step != UNKNOWN_STEP
        guesses = event.reads_pool and not said
        self._of_reader = event.policy_epoch if guesses else None
        self._published = UNKNOWN_STEP
        if event.policy_epoch > 0:
            final = -1 if event.checkpointed_step is None else event.checkpointed_step
            step = event.weight_step if said else final + 1
            self._know(offset, Branch(event.policy_epoch, step))

    def publish(self, offset: int, event: PolicyPublished) -> None:
        """A policy says what its epoch has in common with older ones."""
        epoch, first = event.policy_epoch, self._published == UNKNOWN_STEP
        if epoch != self._of_reader or epoch not in self.begun:
            return
        if first or event.step < self._published:
            self._published = event.step
            self._know(offset, Branch(epoch, event.step - 1))

    def entries(self) -> tuple[tuple[int, Branch], ...]:
        """What is known, by the offset of the decision that says so; of ``branches_at``."""
        return tuple(self._known_at.items())

    def now(self) -> tuple[Branch, ...]:
        """All of them, as they are known now."""
        return tuple(self.begun.values())

    def _know(self, offset: int, branch: Branch) -> None:
        self.begun[branch.epoch] = self._known_at[offset] = branch


def branches_at(
    entries: Iterable[tuple[int, Branch]], policy_epoch: int, offset: int
) -> tuple[Branch, ...]:
    """Those up to this epoch, as the decision at ``offset`` knew them."""
    known = {
        branch.epoch: branch
        for at, branch in entries
        if at <= offset and branch.epoch <= policy_epoch
    }
    return tuple(known.values())
