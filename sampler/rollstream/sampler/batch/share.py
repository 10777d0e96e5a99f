"""What it takes to read a rank's share of a recorded batch, wherever that is done. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.group.known import KnownGroup
from rollstream.sampler.batch.decided import Decided
from rollstream.schemas.events import CarriedRows

if TYPE_CHECKING:
    from rollstream.sampler.batch.assembled import AssembledBatch


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """A rank's share: which rows of which files, with their digests, and no payload.

    Attributes:
        decided: what is recorded of the batch.
        groups: of the share, each with its slot.
        masks: by slot, of the groups that do not have all of their rows.
        carried: by slot, of the groups that the step before had.
        columns: that the batch is to have besides.
        groups_ready: when it was asked for.
    """

    decided: Decided
    groups: Sequence[tuple[int, KnownGroup]]
    masks: Mapping[int, NDArray[np.bool_]]
    carried: Mapping[int, CarriedRows]
    columns: tuple[str, ...]
    dp_rank: int
    dp_size: int
    groups_ready: int

    @property
    def rows(self) -> Hashable:
        """Equal for shares of the same rows of the same step, read in the same way, so that only
        what is recorded of the decision may differ."""
        refs = tuple([(slot, group.ref) for slot, group in self.groups])
        branches = tuple(self.decided.branches.items())
        read = self.columns, self.dp_rank, self.dp_size, branches
        return self.decided.step, self.decided.digest, refs, read


def with_rows(result: AssembledBatch | Share) -> AssembledBatch:
    """The result of a command whose rows the sampler reads."""
    assert not isinstance(result, Share), result
    return result
