"""What it takes to read a rank's share of a recorded batch, wherever that is done. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.group.known import KnownGroup
from rollstream.sampler.batch.assembled import AssembledBatch, assemble
from rollstream.sampler.batch.decided import Decided
from rollstream.sampler.batch.joining import GroupRows
from rollstream.sampler.batch.requested import agreed_signatures, token_array_names
from rollstream.sampler.errors import SamplerError
from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.events import CarriedRows


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

    def assembled(
        self,
        parts: Sequence[GroupRows],
        signatures_of: Callable[[str], Mapping[str, ArraySignature]],
    ) -> AssembledBatch:
        """The share with its rows.

        Args:
            parts: the rows of ``groups``, also those that the decision leaves out.
            signatures_of: dtype and trailing shape of the named arrays of a file.
        """
        token_arrays: Mapping[str, ArraySignature] = {}
        refused: Mapping[str, SamplerError] = {}
        if names := token_array_names(self.columns):
            paths = self.decided.paths
            found = {path: signatures_of(path) for path in set(paths)}
            token_arrays, refused = agreed_signatures(names, [found[path] for path in paths])
        return assemble(
            self.decided,
            [part.only(self.masks.get(part.slot)) for part in parts],
            carried=self.carried,
            columns=self.columns,
            token_arrays=token_arrays,
            refused=refused,
            dp_rank=self.dp_rank,
            dp_size=self.dp_size,
            groups_ready=self.groups_ready,
        )


def with_rows(result: AssembledBatch | Share) -> AssembledBatch:
    """The result of a command whose rows the sampler reads."""
    assert isinstance(result, AssembledBatch), result
    return result
