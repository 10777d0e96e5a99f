"""Recorded batches with their groups, found once for all ranks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known import KnownGroup
from rollstream.folds.state import SamplerState
from rollstream.sampler.batch.decided import Decided
from rollstream.sampler.batch.share import Share
from rollstream.sampler.decide.batches.held_batches import groups_of
from rollstream.sampler.decide.batches.next_batch import BatchCommand
from rollstream.schemas.order import Branch

KEPT = 4  # Batches: ranks may be a step apart, and a shaped step reads the one before.


def slots_of(num_groups: int, dp_rank: int, dp_size: int) -> range:
    """The slots of a recorded batch that a rank reads: slot ``p`` goes to rank ``p mod dp_size``.

    So groups stay whole, and the remainder goes to the lowest ranks. Peers in tensor, pipeline or
    context parallel groups pass the same rank and get the same bytes.
    """
    assert 0 <= dp_rank < dp_size
    return range(dp_rank, num_groups, dp_size)


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """A batch, its groups by slot, and what each rank gets of it."""

    served: ServedBatch
    groups: Sequence[KnownGroup]
    decided: Decided

    @classmethod
    def of(
        cls, served: ServedBatch, groups: Sequence[KnownGroup], lineage: str, of: Sequence[Branch]
    ) -> Self:
        """``of``: the branches of this lineage when the batch was decided."""
        return cls(served, groups, Decided.of(served, groups, {lineage: of}))

    def share(self, command: BatchCommand, ready: int) -> Share:
        """The share that is asked for, when so many groups were ``ready``."""
        slots = slots_of(len(self.groups), command.dp_rank, command.dp_size)
        chosen, new = self.served.all_groups, len(self.served.groups)
        return Share(
            self.decided,
            [(slot, self.groups[slot]) for slot in slots],
            {slot: mask for slot in slots if (mask := chosen[slot].row_mask) is not None},
            {slot: self.served.carried[slot - new] for slot in slots if slot >= new},
            command.columns,
            command.dp_rank,
            command.dp_size,
            ready,
        )


class HeldBatches:
    """The batches that were asked for last; of each the groups are looked up once."""

    def __init__(self) -> None:
        self._resolved: OrderedDict[tuple[int, bytes], Resolved] = OrderedDict()

    def of(self, served: ServedBatch, state: SamplerState) -> Resolved:
        """A batch that the state holds; raises as ``group_of``."""
        key = served.chosen_at, served.digest
        found = self._resolved.pop(key, None)
        if found is None:
            branches = state.branches_of(served)
            found = Resolved.of(served, groups_of(served, state), state.choosing.lineage, branches)
        self._resolved[key] = found
        if len(self._resolved) > KEPT:
            self._resolved.popitem(last=False)
        return found
